"""Training that takes virtual time: a model of some numbers a level, and steps that move them and sleep."""

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from random import Random

import numpy as np
import torch
from torch import Tensor

from dipaco_swarm.algorithm.doubts import Place, Trial
from dipaco_swarm.algorithm.eager import Way
from dipaco_swarm.algorithm.paths import ModuleId, PathIndex
from dipaco_swarm.algorithm.state import ModuleState
from dipaco_swarm.peer.snapshots import LossOf
from dipaco_swarm.peer.workbench import Bench, Fetch, Preparation
from dipaco_swarm.run.manifest import Manifest
from dipaco_swarm.training.inner import Batches, InnerState, StepReport, TrainReport
from dipaco_swarm.training.scoring import Scores

Sleep = Callable[[float], None]
PIECES = 6
"""Of the routing sample."""
SCORING_SECONDS = 2.0
DECAY_OF_STEP = 1e-4
"""What weight decay takes in a step."""


def loss_of(params: Mapping[ModuleId, Tensor]) -> float:
    """What a path scores on the slice of its shard. `params`: of its modules, fp32 (parameters,)."""
    return 1.0 + sum(float(params[module].square().mean()) for module in sorted(params))


def scores_of(params: Mapping[ModuleId, Tensor]) -> Scores:
    """What a path makes of the routing sample, in nats: float64 (PIECES,)."""
    return -loss_of(params) * np.arange(1, PIECES + 1, dtype=np.float64)


@cache
def _noise(count: int) -> Tensor:
    return torch.randn(count, generator=torch.Generator().manual_seed(0))


class SimulatedModel:
    """One short vector a level, fp32 (parameters,)."""

    def __init__(self, levels: int, parameters: int) -> None:
        self._vectors = [torch.zeros(parameters) for _ in range(levels)]

    def vector(self, level: int) -> Tensor:
        return self._vectors[level].clone()

    @property
    def num_levels(self) -> int:
        return len(self._vectors)

    def load(self, level: int, vector: Tensor) -> None:
        self._vectors[level] = vector.clone()

    def add(self, level: int, way: Way) -> None:
        vector = self._vectors[level]
        vector.add_(way(slice(0, len(vector))))

    def move(self, random: Random) -> None:
        """What a step does: every peer moves its own way, so that states differ by who is in them.

        All numbers move, so that an outer gradient is as many bytes as a real one.
        """
        for vector in self._vectors:
            start = random.randrange(len(vector))
            vector.add_(_noise(2 * len(vector))[start : start + len(vector)], alpha=random.uniform(-1e-2, 1e-2))


class SimulatedTrainer:
    """`Trainer` whose steps sleep. `trained` is told the tokens of every step that counts."""

    def __init__(
        self,
        model: SimulatedModel,
        *,
        tokens: int,
        seconds: Callable[[], float],
        sleep: Sleep,
        now: Callable[[], float],
        random: Random,
        trained: Callable[[int], None],
    ) -> None:
        self._model = model
        self._tokens = tokens
        self._seconds = seconds
        self._sleep = sleep
        self._now = now
        self._random = random
        self._trained = trained
        self._steps_done = 0

    @property
    def steps_done(self) -> int:
        return self._steps_done

    @property
    def decay_of_step(self) -> float:
        return DECAY_OF_STEP

    def skip_to(self, steps: int) -> None:
        self._steps_done = max(self._steps_done, steps)

    def bends(self, level: int, ways: Sequence[Iterable[Place]], stop: Callable[[], bool]) -> list[Trial]:
        """Its losses say nothing."""
        return []

    def state(self, *, copy: bool = True) -> InnerState:
        return InnerState(self._steps_done, {})

    def load_state(self, state: InnerState) -> None:
        self._steps_done = state.steps_done

    def train(
        self,
        batches: Batches,
        steps: int,
        *,
        stop: Callable[[], bool] = lambda: False,
        on_step: Callable[[StepReport], None] | None = None,
    ) -> TrainReport:
        started, taken = self._now(), 0
        while taken < steps and not stop():
            next(batches)
            began = self._now()
            self._sleep(self._seconds())
            self._model.move(self._random)
            self._steps_done += 1
            taken += 1
            self._trained(self._tokens)
            loss = 2.0 + 5.0 / (1 + self._steps_done)
            if on_step is not None:
                on_step(StepReport(self._steps_done, loss, 1e-3, self._tokens, self._now() - began))
        return TrainReport(taken, taken * self._tokens, 2.0, self._now() - started)


class SimulatedBench:
    """One path, ready to be trained in virtual time."""

    def __init__(self, model: SimulatedModel, trainer: SimulatedTrainer, sleep: Sleep) -> None:
        self.model = model
        self.trainer = trainer
        self._sleep = sleep

    def batches(self, seed: int, consumed: int) -> Batches:
        return itertools.repeat(torch.zeros(1, 1, dtype=torch.int64))

    def scorer(self, sample: bytes, params: Sequence[Tensor]) -> "SimulatedScorer":
        return SimulatedScorer({ModuleId(level, 0): vector for level, vector in enumerate(params)}, self._sleep)

    def close(self) -> None:
        """Nothing reads beside training."""

    def loss_on_slice(self, max_sequences: int) -> LossOf:
        def loss(base: Mapping[ModuleId, ModuleState]) -> float:
            return loss_of({module: state.params for module, state in base.items()})

        return loss


class SimulatedScorer:
    """`Scorer` of a routing sample."""

    def __init__(self, params: Mapping[ModuleId, Tensor], sleep: Sleep) -> None:
        self._params = params
        self._sleep = sleep

    @property
    def pieces(self) -> int:
        return PIECES

    def score(self, pieces: range) -> Scores:
        self._sleep(SCORING_SECONDS * len(pieces) / PIECES)
        return scores_of(self._params)[pieces.start : pieces.stop]


class SimulatedWorkbench:
    """The training of a simulated machine."""

    def __init__(
        self,
        *,
        parameters: int,
        seconds: Callable[[], float],
        preparing: float,
        sleep: Sleep,
        now: Callable[[], float],
        random: Random,
        trained: Callable[[PathIndex, int], None],
    ) -> None:
        """`seconds`: of one inner step. `preparing`: of reading a shard. `trained`: is told path and tokens."""
        self._parameters = parameters
        self._seconds = seconds
        self._preparing = preparing
        self._sleep = sleep
        self._now = now
        self._random = random
        self._trained = trained

    def sizes(self, manifest: Manifest, fetch: Fetch) -> Sequence[int]:
        return [self._parameters] * len(manifest.rules.levels)

    def prepare(self, wanted: Preparation) -> SimulatedBench:
        manifest = wanted.manifest
        router = manifest.stage.router
        for digest in (manifest.tokenizer, *(() if router is None else (router, *manifest.feature_seeds))):
            wanted.fetch(digest)
        self._sleep(self._preparing)
        model = SimulatedModel(len(manifest.rules.levels), self._parameters)
        trainer = SimulatedTrainer(
            model,
            tokens=manifest.rules.tokens_per_step,
            seconds=self._seconds,
            sleep=self._sleep,
            now=self._now,
            random=self._random,
            trained=lambda tokens: self._trained(wanted.path, tokens),
        )
        return SimulatedBench(model, trainer, self._sleep)

    prepare_next = prepare

    def begin(self, bench: Bench) -> None:
        """Nothing of the one before works on."""

    def rest(self, *, resting: bool) -> None:
        """Nothing works beside training."""

    def close(self) -> None:
        """Nothing works beside training."""
