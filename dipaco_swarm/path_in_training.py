"""A path on this machine during one stage: what an outer round works on, and all that it changes."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from torch import Tensor

from dipaco_swarm.algorithm.doubts import Doubts, Place, Trial
from dipaco_swarm.algorithm.eager import Way, come_back, way_ahead
from dipaco_swarm.algorithm.generations import taken_back
from dipaco_swarm.algorithm.paths import ModuleId, PathIndex, PathTable
from dipaco_swarm.algorithm.plan import Claim
from dipaco_swarm.algorithm.progress import ModuleProgress, Part
from dipaco_swarm.algorithm.state import ModuleState
from dipaco_swarm.algorithm.weight_decay import NOTHING, Places, WeightDecay
from dipaco_swarm.outer_step import follow_of, step_at
from dipaco_swarm.run.config import OuterConfig, RoundsConfig
from dipaco_swarm.run.lengths import RoundLengths
from dipaco_swarm.swarm.cards import NO_CARD, Card
from dipaco_swarm.swarm.fetching import FetchUnderWay, Follow
from dipaco_swarm.swarm.interface import ModuleGroup, RoundUnderWay, Swarm
from dipaco_swarm.swarm.newest import NewestStates
from dipaco_swarm.training.inner import Batches, InnerState, StepReport, TrainReport


@dataclass(frozen=True)
class RoundRules:
    """The parts of the manifest that a round needs."""

    outer: OuterConfig
    rounds: RoundsConfig
    tokens_per_step: int
    """Tokens in the batch of one inner step."""
    last_versions: Mapping[ModuleId, int]
    """A module is done at this version; without those that go on until the operator says more."""
    first_step: int = 0
    """Inner steps of a path before this stage."""
    lengths: RoundLengths | None = None
    """Of its rounds, where the operator has changed them; None: all are as `rounds` has it."""
    decays: Sequence[Places] = ()
    """Where weights decay, level by level; none: weight decay is in outer gradients like the rest."""

    def follow(self, module: ModuleId) -> Follow:
        """The outer steps of a module."""
        return follow_of(self.outer, self.decays, module)

    def decay_of(self, module: ModuleId, tokens: int, of_step: float) -> WeightDecay:
        """What weight decay takes of a module in the steps of so many tokens. `of_step`: `Trainer.decay_of_step`."""
        if not self.decays:
            return NOTHING
        return WeightDecay(min(1.0, of_step * tokens / self.tokens_per_step), self.decays[module.level])

    def inner_steps(self, version: int) -> int:
        """Of the round that makes `version + 1` of a module."""
        return self.rounds.inner_steps if self.lengths is None else self.lengths.at(version)

    def round_tokens(self, version: int) -> int:
        """Tokens that a path trains on in that round, if it is full."""
        return self.inner_steps(version) * self.tokens_per_step

    def step_at(self, version: int) -> int:
        """Inner steps of a path, from the run's beginning to this version of its modules."""
        before = version * self.rounds.inner_steps if self.lengths is None else self.lengths.before(version)
        return self.first_step + before


@dataclass(frozen=True)
class Pace:
    """How fast versions of a module come."""

    since: float
    """When ours came, by the monotonic clock."""
    interval: float = 0.0
    """Seconds from one version to the next, when several peers last made one; 0: they have not."""
    put_off: float = -math.inf
    """The last version whose round was put off for somebody who was behind."""
    carried: int = 0
    """Tokens that a round was to have, and left out: the next one has them, and is due no sooner for it."""
    too_late: int = 0
    """Tokens that were trained on an older version, and came too late for its round."""


@dataclass(frozen=True, eq=False)
class InFlight:
    """A round of a module that others make with us while we train on."""

    round: RoundUnderWay
    part: Part
    before: ModuleProgress
    """Where the module was when the round began, before anything of it was given."""


@dataclass(frozen=True, eq=False)
class Fetching:
    """A newer state of a module that is on its way to us."""

    claim: Claim
    fetch: FetchUnderWay


class Trainable(Protocol):
    """The parameters of a path, level by level."""

    def vector(self, level: int) -> Tensor:
        """A copy of the level's parameters: fp32 on the CPU, shape (parameters,)."""
        ...

    def load(self, level: int, vector: Tensor) -> None:
        """Replace the level's parameters by such a vector."""
        ...

    def add(self, level: int, way: Way) -> None:
        """Add to the level's parameters, in place."""
        ...


class Trainer(Protocol):
    """The inner optimizer of a path, as `training.inner.InnerTrainer` has it."""

    @property
    def steps_done(self) -> int:
        """Inner steps of the path so far: the clock of the learning rate."""
        ...

    @property
    def decay_of_step(self) -> float:
        """The amount of weight decay in an inner step now, at the base learning rate."""
        ...

    def skip_to(self, steps: int) -> None:
        """Advance the schedule to `steps`, never back: other peers trained this path meanwhile."""
        ...

    def train(
        self,
        batches: Batches,
        steps: int,
        *,
        stop: Callable[[], bool],
        on_step: Callable[[StepReport], None],
    ) -> TrainReport:
        """Take up to `steps` inner steps, one batch each, or fewer once `stop` says so."""
        ...

    def bends(self, level: int, ways: Sequence[Iterable[Place]], stop: Callable[[], bool]) -> list[Trial]:
        """How much each of these ways of a level's parameters bends the loss, on what was trained on last.

        A way: places of the level's vector, and how far these go, fp32. None where nothing can be tried, or once
        `stop` says so.
        """
        ...

    def state(self, *, copy: bool = True) -> InnerState:
        """What the optimizer carries on; without a copy, the next step may change it."""
        ...

    def load_state(self, state: InnerState) -> None: ...


@dataclass
class PathInTraining:
    """A path and this peer's part in it. Only `outer_round.py` and `pacing.py` change what is in it."""

    swarm: Swarm
    stage: int
    table: PathTable
    path: PathIndex
    groups: Mapping[ModuleId, ModuleGroup]
    rules: RoundRules
    model: Trainable
    trainer: Trainer
    batches: Batches
    newest: NewestStates
    """Where newer states of our modules come from."""
    progress: dict[ModuleId, ModuleProgress]
    """How far we have come with each module of the path."""
    aside: Callable[[Tensor], Tensor] = lambda vector: vector
    """Puts what a round is given where it takes no memory from training: a copy, on the disk."""
    in_flight: dict[ModuleId, InFlight] = field(default_factory=dict)
    """Rounds that are under way."""
    fetching: dict[ModuleId, Fetching] = field(default_factory=dict)
    """Newer states that are under way."""
    paces: dict[ModuleId, Pace] = field(default_factory=dict)
    """Of the modules that have come to a new version here."""
    tokens_per_second: float = 0.0
    loss: float | None = None
    doubts: Doubts = field(default_factory=Doubts)
    """Whose contributions have done harm here."""
    batches_consumed: int = 0
    trained: int = 0
    """Tokens that this peer has trained on the path, in all its lives."""
    card: Card = NO_CARD
    """What others are told of us for people."""
    moves: bool = False
    """Whether this peer goes to other paths when it is needed there."""
    left_behind: Mapping[ModuleId, ModuleState] = field(default_factory=dict)
    """Modules of the path that it was on before, held until others have them."""
    generations: Mapping[ModuleId, int] = field(default_factory=dict)
    """How often the operator has gone back with modules of the stage, as far as we know."""

    @property
    def modules(self) -> tuple[ModuleId, ...]:
        return self.table.modules_of(self.path)

    def card_with(self, module: ModuleId) -> Card:
        """What is said of us in the announcement of a module: with one of them, so that it is said once."""
        return self.card if module == self.modules[0] else NO_CARD

    @property
    def base(self) -> dict[ModuleId, ModuleState]:
        """The last agreed state of each module."""
        return {module: progress.base for module, progress in self.progress.items()}

    @property
    def trained_states(self) -> dict[ModuleId, ModuleState]:
        """Those of them that somebody has trained; what a stage begins with everybody has."""
        return {module: state for module, state in self.base.items() if state.version}

    @property
    def taken_back(self) -> frozenset[ModuleId]:
        """Modules whose states here the operator has taken back; those that count since are not here yet."""
        return taken_back(self.base, self.generations)

    def carried(self, module: ModuleId) -> int:
        """Tokens of our progress with a module that a round was to have, and left out."""
        pace = self.paces.get(module)
        return 0 if pace is None else pace.carried

    def fresh(self, module: ModuleId) -> int:
        """The others."""
        return self.progress[module].tokens - self.carried(module)

    def local(self, module: ModuleId) -> Tensor:
        """A copy of the module's last agreed state with all on top that was trained since: fp32 (parameters,).

        The model itself has gone ahead, where a round of the module is under way (`algorithm/eager.py`).
        """
        local, flight = self.model.vector(module.level), self.in_flight.get(module)
        if flight is None or not self.rules.rounds.overlaps:
            return local
        return come_back(local, self.way_ahead(module))

    def way_ahead(self, module: ModuleId) -> Way:
        """How far the model goes ahead of what the module's round has been given."""
        flight = self.in_flight[module]
        base = flight.before.base
        return way_ahead(base, flight.part.params, step_at(self.rules.outer, base.version))

    @property
    def version(self) -> int:
        """Of the module that has come least far: so many rounds of this stage the path has done."""
        return min(progress.version for progress in self.progress.values())

    @property
    def is_done(self) -> bool:
        """Whether all modules have come to the stage's end."""
        return all(self.module_is_done(module) for module in self.modules)

    def module_is_done(self, module: ModuleId) -> bool:
        last = self.rules.last_versions.get(module)
        return last is not None and self.progress[module].version >= last

    @property
    def waits_for_rounds(self) -> bool:
        """Whether all training that still counts is in rounds under way: more of it would be in none."""
        last = self.rules.last_versions
        return bool(self.in_flight) and all(
            self.module_is_done(module)
            or (module in self.in_flight and self.progress[module].version + 1 == last.get(module))
            for module in self.modules
        )

    def group_now(self, module: ModuleId) -> ModuleGroup:
        """The module's group in the round that is next."""
        return replace(self.groups[module], round_tokens=self.rules.round_tokens(self.progress[module].version))

    def ends_at(self, last_versions: Mapping[ModuleId, int], lengths: RoundLengths | None = None) -> None:
        """The operator has said when the modules are done; a round that would come after a last one is left.

        `lengths`: of the rounds; None: as they were.
        """
        self.rules = replace(self.rules, last_versions=last_versions, lengths=lengths or self.rules.lengths)
        for module, flight in self.in_flight.items():
            if self.module_is_done(module):
                flight.round.cancel()

    def leave_rounds(self) -> None:
        """The stage is over: nobody else makes them any more."""
        for flight in self.in_flight.values():
            flight.round.cancel()

    def goes_back(self, generations: Mapping[ModuleId, int]) -> None:
        """The operator has gone back with these modules so often; rounds of what was taken back are left."""
        self.generations = generations
        for module in self.taken_back & self.in_flight.keys():
            self.in_flight[module].round.cancel()
