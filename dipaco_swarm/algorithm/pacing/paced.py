"""Paced: a round is due when the group's tokens reach the target, however many members bring them (DeDLOC).

target = tokens of a full round x staffed paths. A fast peer brings more, a slow one what it has, and nobody idles.
Who is alone where others were makes versions no faster than all of them did.
"""

from dipaco_swarm.algorithm.pacing.pacing import GroupView, Pacing

CATCH_UP_ROUNDS = 8
"""A round is put off for a path that is behind: at most this many rounds' worth of tokens, and only if the path is at
most this many versions behind."""
RETRY_SHARE = 0.05
"""Share of a round's tokens to train after a failed round, before it is tried again."""
PATIENCE_FLOOR_SECONDS = 3.0
"""A member that is called stops at its next inner step; this covers a slow step."""


class Paced(Pacing):
    name = "paced"
    ends_early = True

    def is_due(self, view: GroupView) -> bool:
        return _is_ready(view) and _group_has_enough(view) and not _runs_ahead(view)

    def patience(self, training_seconds: float) -> float:
        return max(PATIENCE_FLOOR_SECONDS, training_seconds)


def _is_ready(view: GroupView) -> bool:
    """Whether we have something new to contribute; who was not let in would otherwise knock without a pause."""
    if view.failed_at is None:
        return view.tokens > 0
    if view.gathering:
        return view.tokens > view.failed_at
    return view.tokens >= view.failed_at + RETRY_SHARE * view.round_tokens


def _group_has_enough(view: GroupView) -> bool:
    """Whether the group's tokens reach the target, or somebody who sees more than we do says so."""
    if view.gathering:
        return True
    return view.group_tokens >= view.target * (CATCH_UP_ROUNDS if _a_path_catches_up(view) else 1)


def _runs_ahead(view: GroupView) -> bool:
    """Whether a member that hears nobody any more would come to its next version sooner than the group did.

    It may be parted from the others, who go on; the fewer versions it is ahead or behind, the less is too old to count.
    """
    return not view.gathering and not view.others and view.passed < view.interval


def _a_path_catches_up(view: GroupView) -> bool:
    """Whether all that train some path of the module are behind this version, and one of them may be on its way to it.

    On a line that needs longer for a module than a round takes, whoever is behind would always be behind. Who falls
    asleep is waited for no longer than it takes to notice, and who is too far behind not at all.
    """
    here = {view.path, *(other.path for other in view.others if other.version >= view.version)}
    coming = [other for other in view.others if other.speaks and other.path not in here]
    return any(other.version >= view.version - CATCH_UP_ROUNDS for other in coming)


PACED = Paced()
