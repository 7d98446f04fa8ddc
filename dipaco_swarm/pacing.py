"""When a module's round is due, and for how long it waits for others: synchronous, or paced by the group's tokens."""

from collections.abc import Sequence

from dipaco_swarm.algorithm.paths import ModuleId
from dipaco_swarm.path_in_training import PathInTraining
from dipaco_swarm.swarm.interface import Announcement

SYNCHRONOUS_PATIENCE = 10.0
"""In synchronous rounds everybody waits for everybody alive: ten times as long as its own training took..."""
SYNCHRONOUS_PATIENCE_FLOOR_SECONDS = 120.0
"""... and at least this, for the first rounds on a busy machine. Dead peers are noticed much sooner."""
CATCH_UP_ROUNDS = 8
"""So many rounds' worth of training a group waits with its round for a path that is behind, and for so many rounds."""
RETRY_SHARE = 0.05
"""Of a round's training: so much passes after a round that failed before the next try, in paced rounds."""
PACED_PATIENCE_FLOOR_SECONDS = 3.0
"""In paced rounds a member that is called stops at its next inner step; this covers a slow step."""


def modules_due(peer: PathInTraining) -> list[ModuleId]:
    """The modules whose round is due now, in level order."""
    open_modules = [module for module in peer.modules if not peer.module_is_done(module)]
    if peer.rules.rounds.pacing == "synchronous":
        return open_modules
    return [module for module in open_modules if _is_ready(peer, module) and _group_has_enough(peer, module)]


def _is_ready(peer: PathInTraining, module: ModuleId) -> bool:
    """Whether we have something new to contribute; who was not let in would otherwise knock without a pause."""
    progress = peer.progress[module]
    if progress.failed_at is None:
        return progress.tokens > 0
    if peer.swarm.is_gathering(peer.stage, module, progress.version):
        return progress.tokens > progress.failed_at
    return progress.tokens >= progress.failed_at + RETRY_SHARE * peer.rules.round_tokens


def _group_has_enough(peer: PathInTraining, module: ModuleId) -> bool:
    """Whether the group's tokens reach the target: inner_steps x tokens of a step x staffed paths (DeDLOC)."""
    version = peer.progress[module].version
    if peer.swarm.is_gathering(peer.stage, module, version):
        return True
    others = [m for m in peer.swarm.members(peer.stage, module) if m.trains and m.peer != peer.swarm.peer]
    staffed = {peer.path, *(m.path for m in others)}
    tokens = peer.progress[module].tokens + sum(m.tokens for m in others if m.version == version)
    target = peer.rules.round_tokens * len(staffed)
    return tokens >= target * (CATCH_UP_ROUNDS if _a_path_catches_up(peer, version, others) else 1)


def _a_path_catches_up(peer: PathInTraining, version: int, others: Sequence[Announcement]) -> bool:
    """Whether all that train some path of a module are behind this version, and one of them may be on its way to it.

    On a line that needs longer for a module than a round takes, whoever is behind would always be behind. Who falls
    asleep is waited for no longer than it takes to notice, and who is too far behind not at all.
    """
    here = {peer.path, *(m.path for m in others if m.version >= version)}
    coming = [m for m in others if (m.catching_up or m.awake) and m.path not in here]
    return any(m.version >= version - CATCH_UP_ROUNDS for m in coming)


def patience_of(peer: PathInTraining, seconds: float) -> float:
    """How long to wait for members who are alive but not there yet, from how long our own training took."""
    if peer.rules.rounds.pacing == "synchronous":
        return max(SYNCHRONOUS_PATIENCE_FLOOR_SECONDS, SYNCHRONOUS_PATIENCE * seconds)
    return max(PACED_PATIENCE_FLOOR_SECONDS, seconds)
