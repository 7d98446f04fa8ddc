"""What the pacing of a run (`algorithm/pacing/`) is shown of a path in training, and what it says is due."""

import math
from dataclasses import dataclass, replace

from dipaco_swarm.algorithm.pacing.paced import ASKED_SHARE, comes_too_soon, was_put_off
from dipaco_swarm.algorithm.pacing.pacing import GroupView, Other, Pacing, pacing_of
from dipaco_swarm.algorithm.paths import ModuleId
from dipaco_swarm.path_in_training import Pace, PathInTraining

STEPS_WAITED = 2
"""Inner steps: the one that a member is in when it is called, and as long again to come."""


def pacing_of_run(peer: PathInTraining) -> Pacing:
    return pacing_of(peer.rules.rounds.pacing)


def steps_until_due(peer: PathInTraining) -> int:
    """Inner steps until the next round: at most; where a round waits for everybody, exactly, and 0 to make one again.

    Unfinished progress counts, so that a round has its steps also after a restart.
    """
    steps = peer.rules.inner_steps(peer.version)
    if not pacing_of_run(peer).whole:
        return steps  # a paced round ends by the group's tokens; the bound only returns control now and then
    if peer.in_flight:
        since = min(peer.progress[m].tokens - flight.part.tokens for m, flight in peer.in_flight.items())
        return max(0, peer.rules.rounds.overlap_steps - since // peer.rules.tokens_per_step)
    progress = [peer.progress[module] for module in _open(peer)]
    if any(module.failed_at is not None for module in progress):
        return 0
    # all modules have new progress then and are due at once, or two peers would wait for each other in two groups
    tokens = min((module.tokens for module in progress), default=0)
    return max(0, steps - tokens // peer.rules.tokens_per_step)


def modules_due(peer: PathInTraining) -> list[ModuleId]:
    """The modules whose round is due now, in level order."""
    pacing = pacing_of_run(peer)
    return [module for module in _open(peer) if pacing.is_due(view_of_group(peer, module))]


def _open(peer: PathInTraining) -> list[ModuleId]:
    busy = peer.in_flight.keys() | peer.fetching.keys() | peer.taken_back
    return [module for module in peer.modules if not peer.module_is_done(module) and module not in busy]


def view_of_group(peer: PathInTraining, module: ModuleId) -> GroupView:
    """Where the module's group stands, as this peer sees it."""
    progress, pace = peer.progress[module], peer.paces.get(module)
    members = peer.swarm.members(peer.stage, module)
    return GroupView(
        path=peer.path,
        version=progress.version,
        tokens=progress.tokens,
        carried=peer.carried(module),
        failed_at=progress.failed_at,
        gathering=peer.swarm.is_gathering(peer.stage, module, progress.version),
        others=tuple(
            Other(said.path, said.version, said.tokens, said.catching_up or said.awake, said.known)
            for said in members
            if said.path is not None and said.trains and said.peer != peer.swarm.peer
        ),
        round_tokens=peer.rules.round_tokens(progress.version),
        passed=math.inf if pace is None else peer.swarm.clock.monotonic() - pace.since,
        interval=0.0 if pace is None else pace.interval,
        asked=peer.swarm.is_gathering(peer.stage, module, progress.version, by_strangers=True),
        since_put_off=math.inf if pace is None else progress.version - pace.put_off,
        too_late=pace is not None and pace.too_late > 0,
        counts=all(said.known for said in members if said.peer == peer.swarm.peer),
    )


def patience(peer: PathInTraining, module: ModuleId, training_seconds: float) -> float:
    """How long others of the module's group are waited for; with rounds under way, training is cut into pieces.

    What came too late for the round before took its time as well: a round's at most. Before the first one, the last
    piece may be a moment: another module's round was due just now. And whoever is called comes when its step is over:
    the median member has STEPS_WAITED of its own, however soon after the last version the round is.
    """
    pace, progress = peer.paces.get(module, Pace(0.0)), peer.progress[module]
    a_round, speed = peer.rules.round_tokens(progress.version), peer.tokens_per_second or math.inf
    if module not in peer.paces:
        training_seconds = max(training_seconds, min(progress.tokens, a_round) / speed)
    elif peer.rules.rounds.overlaps:
        training_seconds = peer.swarm.clock.monotonic() - pace.since
    training_seconds += min(pace.too_late, a_round) / speed
    return pacing_of_run(peer).patience(max(training_seconds, STEPS_WAITED * peer.rules.tokens_per_step / speed))


def note_pace(peer: PathInTraining, module: ModuleId, *, alone: bool) -> None:
    """The next version is agreed on: how long it took, and whether it was put off."""
    if (pace := peer.paces.get(module)) is None:
        return
    if was_put_off(view_of_group(peer, module)):
        pace = replace(pace, put_off=peer.progress[module].version)
    if not alone:
        pace = replace(pace, interval=peer.swarm.clock.monotonic() - pace.since)
    peer.paces[module] = pace


@dataclass(frozen=True)
class NextRound:
    """How near the next round of a path is, of whichever module comes first; for people."""

    progress: float
    """How much of its training is done, 0 to 1."""
    seconds: float | None
    """Until it is due, at the present pace; None where nobody can say."""


def next_round(peer: PathInTraining) -> NextRound | None:
    """The round that is due next; None when all modules have made their last one.

    What a round that is under way has of ours does not count for the next one. Of the others' training the same share
    is taken not to count: what they gave they say only by their next version.
    """
    found = [_next_round_of(peer, module) for module in peer.modules if not _makes_no_more(peer, module)]
    return max(found, key=lambda one: one.progress, default=None)


def _makes_no_more(peer: PathInTraining, module: ModuleId) -> bool:
    """Whether the module's last round has been made, or is under way."""
    coming, last = peer.progress[module].version + (module in peer.in_flight), peer.rules.last_versions.get(module)
    return last is not None and coming >= last


def _next_round_of(peer: PathInTraining, module: ModuleId) -> NextRound:
    view, flight = view_of_group(peer, module), peer.in_flight.get(module)
    speed = peer.tokens_per_second
    tokens, target = view.tokens, view.round_tokens
    if not pacing_of_run(peer).whole:  # else everybody takes all the steps of a round
        tokens, target = view.group_tokens, view.target
        if comes_too_soon(view):
            tokens, target, speed = view.their_tokens, math.ceil(ASKED_SHARE * view.their_target), 0.0
        others = (said for said in peer.swarm.members(peer.stage, module) if said.peer != peer.swarm.peer)
        speed += sum(said.tokens_per_second for said in others if said.trains)
    if flight is not None and view.tokens:
        tokens = tokens * (view.tokens - flight.part.tokens) // view.tokens
    left = max(0, target - tokens)
    return NextRound(min(1.0, tokens / target), left / speed if speed else None)
