"""What the operator's program has computed for it: `training_workshop.py` does so, or a simulation in no time."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from dipaco_swarm.algorithm.paths import ModuleId, PathIndex
from dipaco_swarm.algorithm.state import ModuleState
from dipaco_swarm.algorithm.weight_decay import Places
from dipaco_swarm.run.config import RunConfig
from dipaco_swarm.run.manifest import Manifest
from dipaco_swarm.training.early import PathShape, Snapshot
from dipaco_swarm.training.scoring import Rows, Scores

Fetch = Callable[[str], bytes]
"""A blob by its digest."""
States = Mapping[ModuleId, ModuleState]


@dataclass(frozen=True)
class RoutingSample:
    """Documents that every path is to score."""

    data: bytes
    """The blob of it."""
    pieces: int


@dataclass(frozen=True)
class FittedRouter:
    """What sends documents to the paths of a stage."""

    data: bytes
    """The blob of it."""
    shares: tuple[float, ...]
    """Of the sample's documents, for each path."""
    prefixes: int
    """Prefixes that it was fitted on."""
    kept_because: str | None = None
    """Why it is the router of the stage before; None: it is a new one."""
    text_characters: int | None = None
    """Of a text of about a sequence, in the sample's documents; None: nobody has measured it."""


@dataclass(frozen=True)
class TrainedWindowRouter:
    """What chooses a path anew every few tokens."""

    data: bytes
    """The blob of it."""
    right: float
    """Share of held-out windows for which it chose the best path."""


class PathScorer(Protocol):
    """Scores the published routing sample."""

    @property
    def pieces(self) -> int:
        """Documents of the sample."""
        ...

    @property
    def tokens(self) -> int:
        """Of all of them."""
        ...

    def score(self, path: PathIndex, states: States, pieces: range) -> Scores:
        """Log-likelihoods of these pieces of the sample under a path, in nats: float64 (len(pieces),)."""
        ...

    def believes(self, path: PathIndex, states: States, scores: Scores, rows: Rows) -> bool:
        """Whether these are the path's scores of the pieces in `rows`, checked on some that nobody could foresee."""
        ...


class SnapshotJudge(Protocol):
    """Knows what a good snapshot of a path of the stage looks like."""

    @property
    def shape(self) -> PathShape: ...

    def doubt(self, snapshot: Snapshot, states: States) -> str | None:
        """Why a snapshot that fits is not believed, given the agreed modules; None when it is, or cannot be checked."""
        ...


class Workshop(Protocol):
    """Everything that the operator of one run computes. Its run file is known from the start.

    All of it raises ManifestError when a file of the run cannot be used, and whatever `fetch` raises.
    """

    def tokenizer(self) -> bytes:
        """The run's tokenizer, read or trained. Raises DataError when there is too little data for it, or a router."""
        ...

    def first_seeds(self, tokenizer: bytes) -> Sequence[Tensor]:
        """The parameters that each level begins with, fp32 (parameters,): fresh ones, or a checkpoint's."""
        ...

    def decays(self, tokenizer: bytes) -> Sequence[Places]:
        """Where weights decay in a module of each level."""
        ...

    def follow(self, config: RunConfig) -> None:
        """The run file is another one from now on."""
        ...

    def routing_sample(self, index: int, tokenizer: bytes, most: Callable[[float], int]) -> RoutingSample:
        """Of the documents of stage `index`. `most`: so many pieces, given how many tokens a piece has on average."""
        ...

    def fit_router(self, manifest: Manifest, index: int, scores: Scores | None, fetch: Fetch) -> FittedRouter:
        """The router of stage `index`, the one after the manifest's or its first.

        `scores`: of the routing sample, float64 (documents, paths), for a router that is learned from them.
        """
        ...

    def scorer(self, manifest: Manifest, fetch: Fetch) -> PathScorer:
        """For the sample that the manifest asks to be scored."""
        ...

    def judge(self, manifest: Manifest, fetch: Fetch) -> SnapshotJudge:
        """For the snapshots of the manifest's stage."""
        ...

    def window_router(
        self,
        manifest: Manifest,
        states: States,
        fetch: Fetch,
        on_progress: Callable[[float], None],
        stop: Callable[[], bool],
    ) -> TrainedWindowRouter:
        """A router for the manifest's paths every few tokens; `on_progress` hears the share that is done.

        Raises Stopped when `stop` says so, TrainingError when the loss is not finite.
        """
        ...
