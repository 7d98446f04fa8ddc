"""One outer round, top to bottom: START READING HERE.

A peer trains its path on its shard; then, module by module, the outer gradients of everybody whose path uses the
module are averaged in its module group, and the outer optimizer takes a step. Every module has its own clock.

The round sees the other peers only through `swarm.interface`; checkpoints, stages and screens belong to `peer.py`.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from dipaco_swarm.algorithm.outer import OuterStep, nesterov_step, outer_gradient, rescale
from dipaco_swarm.algorithm.paths import ModuleId, PathIndex, PathTable
from dipaco_swarm.algorithm.plan import CatchUp, Claim, better_claim
from dipaco_swarm.algorithm.state import ModuleState
from dipaco_swarm.manifest import OuterConfig, RoundsConfig
from dipaco_swarm.swarm.interface import Agreed, Announcement, Contribution, ModuleGroup, Outcome, PeerName, Swarm
from dipaco_swarm.training.inner import InnerState, StepReport, TrainReport

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
ANNOUNCE_SECONDS = 2.0
"""How often progress is announced while training."""
LOOK_UP_SECONDS = 20.0
FETCH_SECONDS = 600.0
"""A holder that has not sent a state by then is not sending it."""


@dataclass(frozen=True)
class RoundRules:
    """The parts of the manifest that a round needs."""

    outer: OuterConfig
    rounds: RoundsConfig
    tokens_per_step: int
    """Tokens in the batch of one inner step."""
    last_version: int | None
    """The stage ends when a module has this version; None: when the operator says so."""
    first_step: int = 0
    """Inner steps of a path before this stage."""

    @property
    def round_tokens(self) -> int:
        """Tokens that a path trains on in a full round."""
        return self.rounds.inner_steps * self.tokens_per_step


class Trainable(Protocol):
    """The parameters of a path, level by level."""

    def vector(self, level: int) -> Tensor:
        """A copy of the level's parameters: fp32 on the CPU, shape (parameters,)."""
        ...

    def load(self, level: int, vector: Tensor) -> None:
        """Replace the level's parameters by such a vector."""
        ...


class Trainer(Protocol):
    """The inner optimizer of a path, as `training.inner.InnerTrainer` has it."""

    @property
    def steps_done(self) -> int:
        """Inner steps of the path so far: the clock of the learning rate."""
        ...

    def skip_to(self, steps: int) -> None:
        """Advance the schedule to `steps`, never back: other peers trained this path meanwhile."""
        ...

    def train(
        self,
        batches: Iterator[Tensor],
        steps: int,
        *,
        stop: Callable[[], bool],
        on_step: Callable[[StepReport], None],
    ) -> TrainReport:
        """Take up to `steps` inner steps, one batch each, or fewer once `stop` says so."""
        ...

    def state(self) -> InnerState: ...

    def load_state(self, state: InnerState) -> None: ...


@dataclass
class PathInTraining:
    """A path on this machine during one stage: what the round works on, and all that it changes."""

    swarm: Swarm
    stage: int
    table: PathTable
    path: PathIndex
    groups: Mapping[ModuleId, ModuleGroup]
    rules: RoundRules
    model: Trainable
    trainer: Trainer
    batches: Iterator[Tensor]
    base: dict[ModuleId, ModuleState]
    """The last agreed state of each module; what the model has beyond it is local progress."""
    tokens: dict[ModuleId, int] = field(default_factory=dict)
    """Tokens trained since that state."""
    tokens_per_second: float = 0.0
    loss: float | None = None
    given: dict[ModuleId, int] = field(default_factory=dict)
    """Version from which a module's progress was given to others who may have gone on with it, unheard by us."""
    failed_at: dict[ModuleId, int] = field(default_factory=dict)
    """Tokens of modules when their round failed the last time."""
    batches_consumed: int = 0
    catching_up: set[ModuleId] = field(default_factory=set)
    """Modules of which a newer state is on its way to us."""
    moves: bool = False
    """Whether this peer goes to other paths when it is needed there."""
    left_behind: Mapping[ModuleId, ModuleState] = field(default_factory=dict)
    """Modules of the path that it was on before, held until others have them."""

    @property
    def modules(self) -> tuple[ModuleId, ...]:
        return self.table.modules_of(self.path)

    def is_done(self, module: ModuleId) -> bool:
        return self.rules.last_version is not None and self.base[module].version >= self.rules.last_version


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
) -> RoundReport:
    """Train the path until a round is due, average what was learned with each module's group, step, announce."""
    # 1. Inner training, on our own shard, until some module's round is due.
    started = peer.swarm.clock.monotonic()
    trained = _train_until_due(peer, stop, on_step)
    seconds = peer.swarm.clock.monotonic() - started
    due = [] if stop() else modules_due(peer)

    # 2. Outer gradients: what each module has moved since its last agreed state.
    contributions = [
        Contribution(
            group=peer.groups[module],
            path=peer.path,
            version=peer.base[module].version,
            gradient=outer_gradient(peer.base[module].params, peer.model.vector(module.level)),
            tokens=peer.tokens[module],
            digest=peer.base[module].digest,
            work=peer.base[module].work,
        )
        for module in due
    ]

    # 3. The module groups average them, all groups at once. A round that fails changes nothing.
    if due:
        on_due(due)
    outcomes = peer.swarm.all_reduce(contributions, patience=_patience(peer, seconds)) if contributions else {}

    # 4. Where a group agreed, everybody in it takes the same outer step.
    for module, outcome in outcomes.items():
        if isinstance(outcome, Agreed):
            adopt(peer, module, outer_step(peer.base[module], outcome, peer.rules.outer))
            continue
        peer.failed_at[module] = peer.tokens[module]
        if outcome.given:
            peer.given[module] = peer.base[module].version

    # 5. Say where we are; and where a round failed, look again at where the others are, to catch up if they went on.
    announce(peer)
    failed = [module for module, outcome in outcomes.items() if not isinstance(outcome, Agreed)]
    if failed and not stop():
        peer.swarm.look_up(peer.stage, failed, timeout=LOOK_UP_SECONDS)
    return RoundReport(
        steps=trained.steps,
        tokens=trained.tokens,
        loss=trained.loss,
        training_seconds=seconds,
        outcomes=outcomes,
        versions={module: state.version for module, state in peer.base.items()},
        contributed={part.group.module: part.tokens for part in contributions},
    )


def outer_step(state: ModuleState, agreed: Agreed, config: OuterConfig) -> ModuleState:
    """The next version of a module: rescale by sqrt(n_eff), then Nesterov (docs/paper.md#outer-step)."""
    gradient = agreed.mean
    if config.rescale:
        gradient = torch.cat([rescale(gradient[span.start : span.stop], span.effective_paths) for span in agreed.spans])
    step = OuterStep(config.learning_rate_at(state.version), config.momentum)
    params, momentum = nesterov_step(state.params, state.momentum, gradient, step)
    return ModuleState(state.version + 1, params, momentum, state.work + sum(agreed.tokens.values()))


def adopt(peer: PathInTraining, module: ModuleId, state: ModuleState) -> None:
    """Replace a module's agreed state by its successor, in the model and for whoever asks for it."""
    peer.model.load(module.level, state.params)
    peer.base[module] = state
    peer.tokens[module] = 0
    peer.given.pop(module, None)
    peer.failed_at.pop(module, None)
    peer.swarm.hold(peer.stage, module, state)


def rebase(peer: PathInTraining, module: ModuleId, state: ModuleState) -> None:
    """Replace a module's agreed state by what others agreed on, and keep our local progress on top of it.

    Progress that is in what they agreed on already would count twice.
    """
    if state.work > peer.base[module].work and peer.base[module].version == peer.given.get(module):
        adopt(peer, module, state)
        return
    progress = peer.model.vector(module.level) - peer.base[module].params
    tokens = peer.tokens[module]
    adopt(peer, module, state)
    peer.model.load(module.level, state.params + progress)
    peer.tokens[module] = tokens


def catch_ups(peer: PathInTraining) -> tuple[CatchUp, ...]:
    """Modules of which the group has another state than we: a newer one, or one with more peers behind it."""
    found = []
    for module in peer.modules:
        ours = Claim.of(peer.base[module])
        members = peer.swarm.members(peer.stage, module)
        others = [Claim.of(m) for m in members if m.path is not None and m.peer != peer.swarm.peer]
        better = better_claim(ours, others)
        if better is not None:
            found.append(CatchUp(module, better))
    return tuple(found)


def catch_up(peer: PathInTraining, task: CatchUp) -> bool:
    """Fetch a state that the group agrees on and put our progress on top; False when nobody could send it."""
    parameters = len(peer.base[task.module].params)
    peer.catching_up = {other.module for other in catch_ups(peer)}
    announce(peer)
    state = peer.swarm.fetch_state(
        peer.stage, task.module, task.to.digest, timeout=FETCH_SECONDS, parameters=parameters
    )
    peer.catching_up.discard(task.module)
    if state is not None:
        rebase(peer, task.module, state)
    announce(peer)
    return state is not None


def holdings(peer: PeerName, stage: int, states: Mapping[ModuleId, ModuleState]) -> list[Announcement]:
    """What a peer says about modules that it holds and does not train, because it has moved to another path."""
    return [
        Announcement(
            peer, stage, module, path=None, version=state.version, digest=state.digest, work=state.work, moves=True
        )
        for module, state in states.items()
    ]


def announce(peer: PathInTraining) -> None:
    """Tell the swarm about our modules and our progress."""
    peer.swarm.announce(
        [
            *holdings(peer.swarm.peer, peer.stage, peer.left_behind),
            *(
                Announcement(
                    peer=peer.swarm.peer,
                    stage=peer.stage,
                    module=module,
                    path=peer.path,
                    version=peer.base[module].version,
                    digest=peer.base[module].digest,
                    work=peer.base[module].work,
                    tokens=peer.tokens[module],
                    tokens_per_second=peer.tokens_per_second,
                    loss=peer.loss,
                    moves=peer.moves,
                    catching_up=module in peer.catching_up,
                )
                for module in peer.modules
            ),
        ],
        [peer.groups[module] for module in peer.modules],
    )


# ------------------------------------------------------------------------------------------------------------- pacing


@dataclass(frozen=True)
class Trained:
    steps: int
    tokens: int
    loss: float


def _train_until_due(peer: PathInTraining, stop: Callable[[], bool], on_step: Callable[[StepReport], None]) -> Trained:
    """Inner steps until a round is due: exactly `inner_steps` of them, or as many as fit until the group is there."""
    synchronous = peer.rules.rounds.pacing == "synchronous"
    announced = peer.swarm.clock.monotonic()
    # a path's steps are its rounds', however many peers share the work of a round
    rounds = min(state.version for state in peer.base.values())
    peer.trainer.skip_to(peer.rules.first_step + rounds * peer.rules.rounds.inner_steps)

    def observe(report: StepReport) -> None:
        nonlocal announced
        peer.batches_consumed += 1
        peer.loss = report.loss
        speed = report.tokens / report.seconds
        peer.tokens_per_second = speed if not peer.tokens_per_second else 0.9 * peer.tokens_per_second + 0.1 * speed
        for module in peer.modules:
            peer.tokens[module] += report.tokens
        if peer.swarm.clock.monotonic() - announced > ANNOUNCE_SECONDS:
            announced = peer.swarm.clock.monotonic()
            announce(peer)
        on_step(report)

    def is_time() -> bool:
        return stop() or (not synchronous and bool(modules_due(peer)))

    # a paced round ends by the group's tokens; the bound only returns control now and then
    steps = peer.rules.rounds.inner_steps
    trained = peer.trainer.train(peer.batches, steps, stop=is_time, on_step=observe)
    return Trained(trained.steps, trained.tokens, trained.loss)


def modules_due(peer: PathInTraining) -> list[ModuleId]:
    """The modules whose round is due now, in level order."""
    open_modules = [module for module in peer.modules if not peer.is_done(module)]
    if peer.rules.rounds.pacing == "synchronous":
        return open_modules
    return [module for module in open_modules if _is_ready(peer, module) and _group_has_enough(peer, module)]


def _is_ready(peer: PathInTraining, module: ModuleId) -> bool:
    """Whether we have something new to contribute; who was not let in would otherwise knock without a pause."""
    if module not in peer.failed_at:
        return peer.tokens[module] > 0
    if peer.swarm.is_gathering(peer.stage, module, peer.base[module].version):
        return peer.tokens[module] > peer.failed_at[module]
    return peer.tokens[module] >= peer.failed_at[module] + RETRY_SHARE * peer.rules.round_tokens


def _group_has_enough(peer: PathInTraining, module: ModuleId) -> bool:
    """Whether the group's tokens reach the target: inner_steps x tokens of a step x staffed paths (DeDLOC)."""
    version = peer.base[module].version
    if peer.swarm.is_gathering(peer.stage, module, version):
        return True
    others = [m for m in peer.swarm.members(peer.stage, module) if m.path is not None and m.peer != peer.swarm.peer]
    staffed = {peer.path, *(m.path for m in others)}
    tokens = peer.tokens[module] + sum(m.tokens for m in others if m.version == version)
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


def _patience(peer: PathInTraining, seconds: float) -> float:
    """How long to wait for members who are alive but not there yet, from how long our own training took."""
    if peer.rules.rounds.pacing == "synchronous":
        return max(SYNCHRONOUS_PATIENCE_FLOOR_SECONDS, SYNCHRONOUS_PATIENCE * seconds)
    return max(PACED_PATIENCE_FLOOR_SECONDS, seconds)
