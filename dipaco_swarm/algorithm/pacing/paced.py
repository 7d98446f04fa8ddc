"""Paced: a round is due when the group's tokens reach the target, however many members bring them (DeDLOC).

target = tokens of a full round x staffed paths. A fast peer brings more, a slow one what it has, and nobody idles.
Who is alone where others were makes versions no faster than all of them did.
"""

import math

from dipaco_swarm.algorithm.pacing.pacing import GroupView, Pacing

CATCH_UP_ROUNDS = 8
"""A round is put off for a path that is behind: at most this many rounds' worth of tokens, and only if the path is at
most this many versions behind."""
STRANGERS_EVERY = 10 * CATCH_UP_ROUNDS
"""Versions between two that are put off for a stranger's path: who is behind and does not exist costs a tenth."""
ASKED_SHARE = 0.9
"""Of its tokens a round must have before strangers can call us to it: more often than that they make none."""
ASKED_SHARE_OF_NEW = 0.5
"""The same where we know nobody and have had no other version yet. Members of a new run meet as strangers, and the
slowest has half when one has all."""
RETRY_SHARE = 0.05
"""Share of a round's tokens to train after a failed round, before it is tried again."""
PATIENCE_FLOOR_SECONDS = 3.0
"""To be called and to come, where inner steps are short; slow ones have their own (`STEPS_WAITED` in pacing.py)."""


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
    is_new = not view.known and view.passed == math.inf
    asked_share = ASKED_SHARE_OF_NEW if is_new else ASKED_SHARE
    if view.asked and view.group_tokens >= asked_share * view.target:
        return True
    waits = _a_path_catches_up(view) or _half_of_us_catch_up(view) or comes_too_soon(view)
    return view.group_tokens >= view.target * (CATCH_UP_ROUNDS if waits else 1)


def was_put_off(view: GroupView) -> bool:
    """Whether a round that is made now comes so late that somebody must have been waited for."""
    return max(view.group_tokens / view.target, view.fresh / view.round_tokens) >= 2


def _runs_ahead(view: GroupView) -> bool:
    """Whether a member that hears nobody any more would come to its next version sooner than the group did.

    It may be parted from the others, who go on; the fewer versions it is ahead or behind, the less is too old to count.
    """
    return not view.gathering and not view.known and view.passed < view.interval


def _a_path_catches_up(view: GroupView) -> bool:
    """Whether all that train some path of the module are behind this version, and one of them may be on its way to it.

    On a line that needs longer for a module than a round takes, whoever is behind would always be behind. Who falls
    asleep is waited for no longer than it takes to notice, and who is too far behind not at all. Who has never
    contributed is waited for now and then: everybody was new once, and anybody can say that it is on its way.
    """
    here = {view.path, *(other.path for other in view.known if other.version >= view.version)}
    waited_for = view.others if view.since_put_off >= STRANGERS_EVERY else view.known
    coming = [other for other in waited_for if other.speaks and other.path not in here]
    return any(0 < view.version - other.version <= CATCH_UP_ROUNDS for other in coming)


def _half_of_us_catch_up(view: GroupView) -> bool:
    """Whether at least as many known members are on their way to this version as are at it.

    The more replicas a path has, the sooner a round is full: at some point sooner than its version comes to all, and
    every second round would have the same half of them.
    """
    at_it = 1 + sum(other.version >= view.version for other in view.known)
    return sum(other.speaks and 0 < view.version - other.version <= CATCH_UP_ROUNDS for other in view.known) >= at_it


def comes_too_soon(view: GroupView) -> bool:
    """Whether nothing of ours counts with those who are here, and they have too little for a round without it.

    Who has contributed to nothing would sit there and wait for them, the longer the faster it is. Where its steps are
    as long as their rounds it has to: it comes too late else, again and again.
    """
    return not view.counts and not view.too_late and view.their_tokens < ASKED_SHARE * view.their_target


PACED = Paced()
