"""One outer round, top to bottom: START READING HERE.

A peer trains its path on its shard; then, module by module, the outer gradients of everybody whose path uses the
module are averaged in its module group, and the outer optimizer takes a step. Every module has its own clock.

The round sees the other peers only through `swarm.interface`; checkpoints, stages and screens belong to `peer/`.
"""

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from dipaco_swarm.algorithm.outer import OuterGradient
from dipaco_swarm.algorithm.paths import ModuleId
from dipaco_swarm.algorithm.plan import CatchUp
from dipaco_swarm.algorithm.progress import ModuleProgress, Part, adopted, merged, rebased
from dipaco_swarm.algorithm.state import ModuleState
from dipaco_swarm.machine.sparing import Sparing
from dipaco_swarm.pacing import modules_due, note_pace, pacing_of_run, patience, steps_until_due
from dipaco_swarm.path_in_training import Fetching, InFlight, Pace, PathInTraining
from dipaco_swarm.swarm.fetching import Older
from dipaco_swarm.swarm.interface import Agreed, Announcement, Contribution, Outcome, PeerName, Role
from dipaco_swarm.training.inner import StepReport

ANNOUNCE_SECONDS = 2.0
"""How often progress is announced while training."""
LOOK_SECONDS = 1.0
"""So often who waits for several rounds looks at each, as what is over is kept till then; who trains, at its groups."""


@dataclass(frozen=True)
class RoundReport:
    """What a round did, for people."""

    steps: int
    tokens: int
    loss: float
    training_seconds: float
    outcomes: Mapping[ModuleId, Outcome]
    versions: Mapping[ModuleId, int]
    """Versions after the round."""
    contributed: Mapping[ModuleId, int]
    """Tokens behind our outer gradient of each module that was due."""


def run_outer_round(
    peer: PathInTraining,
    *,
    stop: Callable[[], bool] = lambda: False,
    on_step: Callable[[StepReport], None] = lambda report: None,
    on_due: Callable[[Sequence[ModuleId]], None] = lambda modules: None,
    on_commit: Callable[[ModuleId, Agreed, ModuleState], None] = lambda module, agreed, state: None,
    on_wait: Callable[[], None] = lambda: None,
) -> RoundReport:
    """Train the path until a round is due, average what was learned with each module's group, step, announce.

    Where the run overlaps rounds with training, one that is begun here ends in a later call. `on_wait`: called now and
    then where rounds are waited for without training; it may end them, as `PathInTraining.ends_at` does.
    """
    # 1. Inner training, on our own shard, until some module's round is due, or one that is under way is over.
    started = peer.swarm.clock.monotonic()
    trained = _train_until_due(peer, stop, on_step)
    seconds = peer.swarm.clock.monotonic() - started
    due = [] if stop() else _not_behind(peer, modules_due(peer))

    # 2. Outer gradients: what each module has moved since its last agreed state.
    parts = {module: _part(peer, module) for module in due}
    contributions = {module: _contribution(peer, module, part) for module, part in parts.items()}

    # 3. The module groups average them, all groups at once. A round that fails changes nothing.
    before = dict(peer.progress)
    if due:
        _give(peer, parts)
        on_due(due)
    for module, contribution in contributions.items():
        older = Older(peer.progress[module].base, peer.rules.follow(module))
        under_way = peer.swarm.begin_round(contribution, patience=patience(peer, module, seconds), older=older)
        peer.in_flight[module] = InFlight(under_way, parts[module], before[module])
        _go_ahead(peer, module)

    # 4. Where a group agreed, everybody in it has taken the same outer step (`outer_step.py`), in a thread of its
    #    swarm's, and puts on top what it has trained since.
    over: dict[ModuleId, tuple[InFlight, Outcome]] = {}
    for module, outcome in _rounds_over(peer, due, on_wait, stop=stop()):
        local, flight = peer.local(module), peer.in_flight.pop(module)
        over[module] = flight, outcome
        if isinstance(outcome, Agreed):
            state = outcome.state
            assert state is not None, "the swarm was told how to make it"
            note_pace(peer, module, alone=len(outcome.contributors) == 1)
            on_commit(module, outcome, state)  # before anybody can have it from us
            peer.swarm.hold_average(peer.stage, module, outcome.encoded, state.digest)
            if peer.swarm.peer in outcome.tokens:
                merge(peer, module, state, flight.part, local)
            else:
                _adopt_without_us(peer, module, state, flight.before, local)
        else:
            progress = peer.progress[module] if outcome.given else _not_given(peer.progress[module], flight.before)
            peer.progress[module] = replace(progress, failed_at=progress.tokens, failed=flight.part)
            peer.model.load(module.level, local)

    # 5. Say where we are; and where a round failed, look again at where the others are, to catch up if they went on.
    announce(peer)
    if (failed := [m for m, (_, outcome) in over.items() if not isinstance(outcome, Agreed)]) and not stop():
        peer.swarm.look_up(peer.stage, failed, timeout=peer.swarm.timing.look_up)
    return RoundReport(
        steps=trained.steps,
        tokens=trained.tokens,
        loss=trained.loss,
        training_seconds=seconds,
        outcomes={module: outcome for module, (_, outcome) in over.items()},
        versions={module: progress.version for module, progress in peer.progress.items()},
        contributed={module: flight.part.tokens for module, (flight, _) in over.items()},
    )


def _part(peer: PathInTraining, module: ModuleId) -> Part:
    """What we have to give now. Who waits for everybody gives the same once more, for everybody has it so."""
    progress = peer.progress[module]
    if progress.failed is not None and pacing_of_run(peer).whole:
        return progress.failed
    return Part(progress.tokens, peer.aside(peer.model.vector(module.level)))


def _go_ahead(peer: PathInTraining, module: ModuleId) -> None:
    """Train on from where the round is expected to lead to; what is known of the module stays as it is."""
    if peer.rules.rounds.overlaps:
        peer.model.add(module.level, peer.way_ahead(module))


def _rounds_over(
    peer: PathInTraining, begun: Collection[ModuleId], on_wait: Callable[[], None], *, stop: bool
) -> Iterator[tuple[ModuleId, Outcome]]:
    """Rounds that were under way and have ended, one by one.

    `begun`: those that begin now. They are waited for, without training, where nothing overlaps, or all is trained; and
    where results are merged after exactly so many steps, when these have been taken.
    """
    rounds = peer.rules.rounds
    if rounds.overlap_steps and begun and not stop:
        return  # not even what is over already: on another day it might not be
    wait = stop or rounds.overlap_steps > 0 or not rounds.overlaps or peer.waits_for_rounds
    while True:
        ended = False
        for module, flight in list(peer.in_flight.items()):
            outcome = flight.round.outcome(timeout=LOOK_SECONDS if wait else 0.0)
            if outcome is not None:
                ended = True
                yield module, outcome
        if not wait or not peer.in_flight:
            return
        if ended:  # who needs it for the round that we wait for should not have to wait for us
            announce(peer)
        on_wait()


def _contribution(peer: PathInTraining, module: ModuleId, part: Part) -> Contribution:
    base, rules = peer.progress[module].base, peer.rules
    decay = rules.decay_of(module, part.tokens, peer.trainer.decay_of_step)
    return Contribution(
        group=peer.group_now(module),
        path=peer.path,
        version=base.version,
        gradient=OuterGradient(base.params, part.params, decay),
        tokens=part.tokens,
        digest=base.digest,
        work=base.work,
        decay=decay.amount,
        doubts=peer.doubts.peers,
    )


def _not_behind(peer: PathInTraining, due: Sequence[ModuleId]) -> list[ModuleId]:
    """Those whose round we may begin: who sees nobody else looks again before it goes on alone.

    Others may have come since, or have gone on to the next version and moved on.
    """
    me = peer.swarm.peer
    alone = [m for m in due if not any(said.trains and said.peer != me for said in peer.swarm.members(peer.stage, m))]
    if not alone:
        return [*due]
    peer.swarm.look_up(peer.stage, alone, timeout=peer.swarm.timing.look_up)
    behind = {task.module for task in catch_ups(peer)} & {*alone}
    return [module for module in due if module not in behind]


def _give(peer: PathInTraining, parts: Mapping[ModuleId, Part]) -> None:
    """From now on others may have our progress with these modules, until we hear that they have not."""
    for module, part in parts.items():
        peer.progress[module] = replace(peer.progress[module], given_at=peer.progress[module].version, part=part)


def _not_given(progress: ModuleProgress, before: ModuleProgress) -> ModuleProgress:
    """The others have not had our part of this round."""
    return replace(progress, given_at=before.given_at, part=before.part)


def adopt(peer: PathInTraining, module: ModuleId, state: ModuleState) -> None:
    """Replace a module's agreed state by its successor, in the model and for whoever asks for it.

    A round of it that is under way is left: what it was given is not ours any more.
    """
    if (flight := peer.in_flight.pop(module, None)) is not None:
        flight.round.cancel()
    _take(peer, module, *adopted(peer.progress[module], state))


def merge(peer: PathInTraining, module: ModuleId, state: ModuleState, part: Part, local: Tensor) -> None:
    """Replace a module's agreed state by its successor, which has our part; what was trained since stays on top."""
    _take(peer, module, *merged(peer.progress[module], state, part, local))


def _adopt_without_us(
    peer: PathInTraining, module: ModuleId, state: ModuleState, before: ModuleProgress, local: Tensor
) -> None:
    """The others' average came to us, and our part did not come to them in time: it is brought to the next round."""
    progress = _not_given(peer.progress[module], before)
    if progress.is_given:
        progress = replace(progress, given_at=None, part=None)
    peer.progress[module] = progress
    _take(peer, module, *rebased(progress, state, local), carried=progress.tokens)


def rebase(peer: PathInTraining, module: ModuleId, state: ModuleState, local: Tensor) -> None:
    """Replace a module's agreed state by what others agreed on, and keep on top of it what is not in there already.

    `local`: a copy of the module's parameters, `PathInTraining.local`, which is used up.
    """
    _take(peer, module, *rebased(peer.progress[module], state, local), carried=peer.carried(module), is_late=True)


def drop_progress(peer: PathInTraining, module: ModuleId) -> int:
    """Go back to a module's agreed state; returns how many tokens of training are lost."""
    dropped = peer.progress[module].tokens
    adopt(peer, module, peer.progress[module].base)
    return dropped


def _take(
    peer: PathInTraining,
    module: ModuleId,
    progress: ModuleProgress,
    vector: Tensor,
    carried: int = 0,
    *,
    is_late: bool = False,
) -> None:
    peer.model.load(module.level, vector)
    peer.progress[module] = progress
    before = peer.paces.get(module, Pace(0.0))
    peer.paces[module] = replace(
        before,
        since=peer.swarm.clock.monotonic(),
        carried=min(carried, progress.tokens),
        too_late=progress.tokens if is_late else 0,
    )
    peer.swarm.hold(peer.stage, module, progress.base)


def catch_ups(peer: PathInTraining) -> tuple[CatchUp, ...]:
    """Modules of which the group has another state than we: one with more work behind it.

    Without those that nobody would send a moment ago: training goes on meanwhile.
    """
    found = []
    for module in peer.modules:
        if module in peer.in_flight or module in peer.fetching:
            continue  # its round tells, or it is coming
        members = peer.swarm.members(peer.stage, module)
        others = [m for m in members if m.peer != peer.swarm.peer]  # who has just moved on holds it still
        better = peer.newest.better(peer.stage, module, peer.progress[module].claim, others)
        if better is not None:
            found.append(CatchUp(module, better))
    return tuple(found)


def begin_catch_up(peer: PathInTraining, tasks: Sequence[CatchUp]) -> None:
    """Begin to fetch states that groups agree on. Returns at once; `end_catch_up` comes when one is there."""
    _say_what_is_coming(peer, {task.module for task in tasks} | peer.fetching.keys())
    for task in tasks:
        ours = peer.progress[task.module].base
        fetch = peer.newest.begin(peer.stage, task.module, task.to, parameters=len(ours.params), ours=ours)
        peer.fetching[task.module] = Fetching(task.to, fetch)


def end_catch_up(peer: PathInTraining, module: ModuleId) -> bool:
    """Put our progress on top of what came; False when nobody could send it. Waits for it, where it is not there."""
    fetching = peer.fetching[module]
    state = peer.newest.take(module, fetching.claim, fetching.fetch)
    del peer.fetching[module]
    peer.progress[module] = replace(peer.progress[module], catching_up=False)
    if state is not None:
        rebase(peer, module, state, peer.local(module))
        if pacing_of_run(peer).whole:
            # to try again with some modules only, we would wait there for who waits for us with the others
            peer.progress.update({m: replace(progress, failed_at=None) for m, progress in peer.progress.items()})
    announce(peer)
    return state is not None


def _say_what_is_coming(peer: PathInTraining, coming: Collection[ModuleId]) -> None:
    for module, progress in peer.progress.items():
        peer.progress[module] = replace(progress, catching_up=module in coming)
    announce(peer)


def holdings(peer: PeerName, stage: int, states: Mapping[ModuleId, ModuleState], *, moves: bool) -> list[Announcement]:
    """What a peer says about modules that it has trained and now holds. `moves`: to another path; else it leaves."""
    return [
        Announcement(peer, stage, module, None, state.version, state.digest, state.work, moves=moves, role=Role.HOLDS)
        for module, state in states.items()
    ]


def announce(peer: PathInTraining) -> None:
    """Tell the swarm about our modules and our progress."""
    peer.swarm.announce(
        [
            *holdings(peer.swarm.peer, peer.stage, peer.left_behind, moves=peer.moves),
            *(
                Announcement(
                    peer=peer.swarm.peer,
                    stage=peer.stage,
                    module=module,
                    path=peer.path,
                    version=peer.progress[module].version,
                    digest=peer.progress[module].base.digest,
                    work=peer.progress[module].base.work,
                    tokens=peer.fresh(module),
                    tokens_per_second=peer.tokens_per_second,
                    loss=peer.loss,
                    moves=peer.moves,
                    card=peer.card_with(module),
                    catching_up=peer.progress[module].catching_up,
                )
                for module in peer.modules
            ),
        ],
        [peer.group_now(module) for module in peer.modules],
    )


def _is_over(peer: PathInTraining) -> bool:
    """Whether a round or a state that was under way has come."""
    rounds = any(flight.round.outcome() is not None for flight in peer.in_flight.values())
    return rounds or any(fetching.fetch.is_over for fetching in peer.fetching.values())


# ------------------------------------------------------------------------------------------------------ inner training


@dataclass(frozen=True)
class Trained:
    steps: int
    tokens: int
    loss: float


def _train_until_due(peer: PathInTraining, stop: Callable[[], bool], on_step: Callable[[StepReport], None]) -> Trained:
    """Inner steps until a round is due: exactly `inner_steps` of them, or as many as fit until the group is there."""
    for module, progress in peer.progress.items():  # what was newer elsewhere is here by now, or nobody sends it
        peer.progress[module] = replace(progress, catching_up=module in peer.fetching)
    steps = steps_until_due(peer)
    if not steps or peer.waits_for_rounds:
        return Trained(0, 0, math.nan)
    ends_early = pacing_of_run(peer).ends_early
    announced = peer.swarm.clock.monotonic()
    # a path's steps are its rounds', however many peers share the work of a round
    peer.trainer.skip_to(peer.rules.step_at(peer.version))

    def observe(report: StepReport) -> None:
        nonlocal announced
        peer.batches_consumed += 1
        peer.trained += report.tokens
        peer.loss = report.loss
        speed = report.tokens / report.seconds
        peer.tokens_per_second = speed if not peer.tokens_per_second else 0.9 * peer.tokens_per_second + 0.1 * speed
        for module in peer.modules:
            peer.progress[module] = peer.progress[module].trained(report.tokens)
        if peer.swarm.clock.monotonic() - announced > ANNOUNCE_SECONDS:
            announced = peer.swarm.clock.monotonic()
            announce(peer)
        on_step(report)

    def is_called_for() -> bool:
        # who trains on from a state that the group has left soon trains for nothing
        return _is_over(peer) or bool(modules_due(peer)) or bool(catch_ups(peer))

    looking = Sparing(peer.swarm.clock, most=LOOK_SECONDS)
    is_time = lambda: stop() or (ends_early and looking.do(is_called_for, False))  # noqa: E731
    trained = peer.trainer.train(peer.batches, steps, stop=is_time, on_step=observe)
    return Trained(trained.steps, trained.tokens, trained.loss)
