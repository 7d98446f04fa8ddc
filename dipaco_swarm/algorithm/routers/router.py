"""What a router is, what a kind of router is, and how routers travel.

kind --fit(sample)--> router --router_to_bytes--> blob --router_from_bytes--> router --route(features)--> paths
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import safetensors.numpy
from numpy.typing import NDArray
from safetensors import SafetensorError

from dipaco_swarm.algorithm.paths import PathTable
from dipaco_swarm.errors import ManifestError
from dipaco_swarm.run.config import RouterConfig
from dipaco_swarm.strategies import ROUTERS

Floats = NDArray[np.float32]
Indices = NDArray[np.int64]
Scores = NDArray[np.float64]
Arrays = Mapping[str, NDArray[Any]]
"""A router by the names of its arrays."""

KIND = "kind"  # the array that says who can read the others


class Router(ABC):
    """Document feature -> path: hard and deterministic (paper section 2.4)."""

    @property
    @abstractmethod
    def num_paths(self) -> int: ...

    @abstractmethod
    def route_top(self, features: Floats, n: int) -> Indices:
        """The n best paths of each document, best first: fp32 (docs, D) -> int64 (docs, n).

        For overlapping shards (paper section 2.4.3: the top two at training time, never in evaluation). Raises
        ManifestError when there are fewer than n paths, or D is not the router's.
        """

    @abstractmethod
    def arrays(self) -> Arrays:
        """All that the router is. The same router has the same arrays."""

    def route(self, features: Floats) -> Indices:
        """The path of each document: fp32 (docs, D) -> int64 (docs,)."""
        return self.route_top(features, 1)[:, 0]


@dataclass(frozen=True, eq=False)
class Sample:
    """What a router is fitted on."""

    features: Floats
    """Of the documents of the routing sample, fp32, shape (docs, D)."""
    scores: Scores | None = None
    """Log-likelihood of each document under each path of the stage before, float64, shape (docs, paths). Not finite
    where there is none. None for kinds that need no scores."""
    before: Router | None = None
    """Of the stage before, for kinds that add paths to it..."""
    known: Floats | None = None
    """... and the features of that stage's documents."""


class RouterKind(ABC):
    """A way to make routers."""

    name: str
    """As the run file names it."""

    @abstractmethod
    def fit(self, sample: Sample, table: PathTable, config: RouterConfig, seed: int) -> Router:
        """A router for the paths of the table. The same arguments give the same router on the same machine; the run
        publishes the arrays, not the recipe.

        Raises DataError when the sample is too small or too uniform, ManifestError when the table does not suit.
        """

    @abstractmethod
    def load(self, arrays: Arrays) -> Router:
        """The router that these arrays, which anybody may have made, are. Raises ManifestError when they are none."""


def kind_of(name: str) -> RouterKind:
    """The kind of router that the run file calls so. Raises ValueError when there is none."""
    kind = ROUTERS.load(name)
    if not isinstance(kind, RouterKind):
        raise TypeError(f"the router {name!r} is a {type(kind).__name__}, which is not a RouterKind")
    return kind


def path_shares(router: Router, features: Floats, overlap: int = 1) -> tuple[float, ...]:
    """The share of the documents that each path gets, for use as path weights: positive, sum one, length paths.

    `features`: fp32, shape (docs, D). `overlap`: paths that a document goes to, and counts for. A path without
    a document counts as half a document, so that no weight is zero.
    """
    counts = np.bincount(router.route_top(features, overlap).ravel(), minlength=router.num_paths)
    floored = np.maximum(counts.astype(np.float64), 0.5)
    return tuple(float(share) for share in floored / floored.sum())


def router_to_bytes(kind: RouterKind, router: Router) -> bytes:
    """The router as safetensors: what the run publishes. The same router gives the same bytes."""
    name = np.frombuffer(kind.name.encode(), dtype=np.uint8)
    return safetensors.numpy.save(
        {KIND: name} | {name: np.ascontiguousarray(array) for name, array in router.arrays().items()}
    )


def router_from_bytes(data: bytes, num_paths: int | None = None) -> Router:
    """Read and check what `router_to_bytes` wrote.

    Raises ManifestError when it is not a router, does not fit itself, or is not for `num_paths` paths.
    """
    try:
        arrays = safetensors.numpy.load(data)
    except SafetensorError as error:
        raise ManifestError(f"the published router is not a safetensors file ({error}); fetch it again") from None
    name = arrays.pop(KIND, np.zeros(0)).tobytes().decode("ascii", "replace")
    if name not in ROUTERS or ROUTERS[name].code is None:
        raise ManifestError(f"the published router is of the unknown kind {name[:40]!r}; update dipaco-swarm")
    router = kind_of(name).load(arrays)
    if num_paths is not None and router.num_paths != num_paths:
        raise ManifestError(
            f"the published router knows {router.num_paths} paths but the path table has {num_paths}; they belong to "
            "different stages"
        )
    return router
