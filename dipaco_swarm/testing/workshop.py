"""What a simulated operator computes: routers that are names, scores of short vectors, in virtual time."""

from collections.abc import Callable, Mapping, Sequence
from random import Random

import numpy as np
import torch
from torch import Tensor

from dipaco_swarm.algorithm.paths import ModuleId, PathIndex, PathTable
from dipaco_swarm.algorithm.stages import table_of
from dipaco_swarm.algorithm.weight_decay import Places
from dipaco_swarm.machine.stopping import Stopped
from dipaco_swarm.operator.workshop import (
    Fetch,
    FittedRouter,
    PathScorer,
    RoutingSample,
    SnapshotJudge,
    States,
    TrainedWindowRouter,
)
from dipaco_swarm.run.config import RunConfig
from dipaco_swarm.run.manifest import Manifest
from dipaco_swarm.testing.training import PIECES, Sleep, loss_of, scores_of
from dipaco_swarm.training.early import PathShape, Snapshot
from dipaco_swarm.training.scoring import Rows, Scores

TOKENIZER_SECONDS = 2.0
ROUTER_SECONDS = 5.0
"""Long enough for a node to be killed in the middle of it."""
SCORING_SECONDS = 1.0
JUDGING_SECONDS = 0.5
WINDOW_ROUTER_SECONDS = 20.0
PARTS = 10
"""Of the window router's training."""


class SimulatedWorkshop:
    """`Workshop` without documents."""

    def __init__(self, config: RunConfig, parameters: int, sleep: Sleep) -> None:
        """`parameters`: of each module."""
        self._config = config
        self._parameters = parameters
        self._sleep = sleep

    def tokenizer(self) -> bytes:
        self._sleep(TOKENIZER_SECONDS)
        return b"tokenizer"

    def first_seeds(self, tokenizer: bytes) -> Sequence[Tensor]:
        generator = torch.Generator().manual_seed(self._config.seed)
        return [torch.randn(self._parameters, generator=generator) for _ in self._config.levels]

    def decays(self, tokenizer: bytes) -> Sequence[Places]:
        return [((self._parameters // 3, 0.0), (self._parameters // 2, 2.0)) for _ in self._config.levels]

    def follow(self, config: RunConfig) -> None:
        self._config = config

    def routing_sample(self, index: int, tokenizer: bytes, most: Callable[[float], int]) -> RoutingSample:
        self._sleep(SCORING_SECONDS)
        assert most(1.0) > 0
        return RoutingSample(b"sample", PIECES)

    def fit_router(self, manifest: Manifest, index: int, scores: Scores | None, fetch: Fetch) -> FittedRouter:
        for digest in (manifest.tokenizer, *manifest.feature_seeds):
            fetch(digest)
        self._sleep(ROUTER_SECONDS)
        chance = Random(f"{self._config.seed}/router/{index}")
        documents = [chance.randint(1, 4) for _ in range(table_of(self._config, index).num_paths)]
        shares = tuple(count / sum(documents) for count in documents)
        return FittedRouter(f"router of stage {index}".encode(), shares, sum(documents))

    def scorer(self, manifest: Manifest, fetch: Fetch) -> PathScorer:
        assert manifest.scoring is not None, "nobody was asked to score"
        fetch(manifest.scoring)
        return SimulatedScorer(PathTable(manifest.stage.table), self._sleep)

    def judge(self, manifest: Manifest, fetch: Fetch) -> SnapshotJudge:
        fetch(manifest.tokenizer)
        return SimulatedJudge(SimulatedShape(len(self._config.levels), self._parameters), self._sleep)

    def window_router(
        self,
        manifest: Manifest,
        states: States,
        fetch: Fetch,
        on_progress: Callable[[float], None],
        stop: Callable[[], bool],
    ) -> TrainedWindowRouter:
        fetch(manifest.tokenizer)
        for part in range(PARTS):
            if stop():
                raise Stopped
            self._sleep(WINDOW_ROUTER_SECONDS / PARTS)
            on_progress((part + 1) / PARTS)
        return TrainedWindowRouter(b"window router", 0.5)


class SimulatedScorer:
    """`PathScorer` of vectors."""

    def __init__(self, table: PathTable, sleep: Sleep) -> None:
        self._table = table
        self._sleep = sleep

    @property
    def pieces(self) -> int:
        return PIECES

    @property
    def tokens(self) -> int:
        return PIECES

    def score(self, path: PathIndex, states: States, pieces: range) -> Scores:
        self._sleep(SCORING_SECONDS * len(pieces) / PIECES)
        scores = scores_of({module: states[module].params for module in self._table.modules_of(path)})
        return scores[pieces.start : pieces.stop]

    def believes(self, path: PathIndex, states: States, scores: Scores, rows: Rows) -> bool:
        """Unlike a real one it compares all of them, and to the bit."""
        return bool(np.array_equal(scores, self.score(path, states, range(PIECES))[rows]))


class SimulatedShape:
    """`PathShape`: all modules are alike."""

    def __init__(self, levels: int, parameters: int) -> None:
        self._levels = levels
        self._parameters = parameters

    @property
    def num_levels(self) -> int:
        return self._levels

    def size(self, level: int) -> int:
        return self._parameters


class SimulatedJudge:
    """`SnapshotJudge` that has every path's slice."""

    def __init__(self, shape: PathShape, sleep: Sleep) -> None:
        self._shape = shape
        self._sleep = sleep

    @property
    def shape(self) -> PathShape:
        return self._shape

    def doubt(self, snapshot: Snapshot, states: States) -> str | None:
        self._sleep(JUDGING_SECONDS)
        params: Mapping[ModuleId, Tensor] = snapshot.params
        found = loss_of(params)
        return None if found == snapshot.loss else f"it claims a loss of {snapshot.loss} where it has {found}"
