"""The nearest path takes the document: the router of k-means, product k-means and linear classifiers alike.

    g   a document's feature, (D,)                      z   its C scaled principal components
    c   a centroid                                      b   a path's bias

A path's distance from a document is the sum, over the factors of the router, of ||z_f - c_f||^2, plus the path's bias;
the nearest path takes the document. Plain k-means is one factor with a centroid per path. Product k-means is two
factors, each with the centroids of one branching level, over interleaved halves of z; with zero bias the nearest pair
is the pair of nearest centroids. The bias is what keeps shards from running empty (the paper calibrates the bias of
its discriminative router for the same reason). A linear router argmax_p (W z + a)_p is one factor too: centroids
W / 2 and bias -a - ||W / 2||^2.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dipaco_swarm.algorithm.routers.router import Arrays, Floats, Indices, Router
from dipaco_swarm.errors import ManifestError

DOCUMENTS_AT_ONCE = 8192  # bounds the memory of distances: 8192 x 256 paths in float64 are 16 MiB


@dataclass(frozen=True, eq=False)
class Factor:
    """Some of the components of z, and the centroids that live in them."""

    components: Indices
    """Which components of z, int64, shape (c,)."""
    centroids: Floats
    """fp32, shape (k, c)."""


@dataclass(frozen=True, eq=False)
class NearestRouter(Router):
    """Treat the arrays as immutable.

    Raises ManifestError when shapes do not fit, a value is not finite, or an index is out of range.
    """

    mean: Floats
    """Subtracted from a feature first, shape (D,)."""
    components: Floats
    """Principal directions, shape (C, D)."""
    scale: Floats
    """Multiplies the C components, shape (C,)."""
    factors: tuple[Factor, ...]
    lookup: Indices
    """The centroid that each path takes of each factor, int64, shape (paths, factors)."""
    bias: Floats
    """Added to a path's distance, shape (paths,); negative attracts documents."""

    def __post_init__(self) -> None:
        _check(self)

    @property
    def num_paths(self) -> int:
        return len(self.bias)

    def distances(self, features: Floats) -> NDArray[np.float64]:
        """Distance of every document from every path, bias included, float64, shape (docs, paths).

        `features`: fp32, shape (docs, D). Raises ManifestError when D is not the router's.
        """
        z = self.coordinates(features)
        distance = np.tile(self.bias.astype(np.float64), (len(z), 1))
        for factor, centroid_of_path in zip(self.factors, self.lookup.T, strict=True):
            to_centroids = _squared_distances(z[:, factor.components], factor.centroids.astype(np.float64))
            distance += to_centroids[:, centroid_of_path]
        return distance

    def coordinates(self, features: Floats) -> NDArray[np.float64]:
        """z of every document, float64, shape (docs, C). Raises ManifestError when D is not the router's."""
        if features.ndim != 2 or features.shape[1] != len(self.mean):
            raise ManifestError(
                f"the router reads features of {len(self.mean)} numbers but was given an array of shape "
                f"{features.shape}; router and feature model come from different runs or stages"
            )
        z: NDArray[np.float64] = (features.astype(np.float64) - self.mean) @ self.components.astype(np.float64).T
        return z * self.scale

    def route_top(self, features: Floats, n: int) -> Indices:
        """The n nearest paths of each document; a tie goes to the lowest path.

        Computed in float64, so what is left of disagreement between two peers is that of their features: fp32 sums
        in another order, about 1e-6 of their size. A document that lies that near to a border may be routed
        differently by another kind of machine; it is then trained on by two paths or by none, which harms nobody.
        """
        if not 1 <= n <= self.num_paths:
            raise ManifestError(f"a document cannot go to {n} of {self.num_paths} paths; choose 1 to {self.num_paths}")
        chunks = [features[i : i + DOCUMENTS_AT_ONCE] for i in range(0, len(features), DOCUMENTS_AT_ONCE)] or [features]
        # a stable sort, so that of equal distances the lowest path comes first
        order = [np.argsort(self.distances(chunk), axis=1, kind="stable")[:, :n] for chunk in chunks]
        return np.concatenate(order).astype(np.int64)

    def arrays(self) -> Arrays:
        named: dict[str, NDArray[Any]] = {
            "mean": self.mean,
            "components": self.components,
            "scale": self.scale,
            "lookup": self.lookup,
            "bias": self.bias,
        }
        for i, factor in enumerate(self.factors):
            named[f"factor{i}.components"] = factor.components
            named[f"factor{i}.centroids"] = factor.centroids
        return named

    @classmethod
    def from_arrays(cls, arrays: Arrays) -> "NearestRouter":
        """What `arrays` gave. Raises ManifestError when one is missing, unknown, or does not fit."""
        left = dict(arrays)
        factors = sum(name.endswith(".centroids") for name in left)
        try:
            router = cls(
                mean=left.pop("mean"),
                components=left.pop("components"),
                scale=left.pop("scale"),
                factors=tuple(
                    Factor(left.pop(f"factor{i}.components"), left.pop(f"factor{i}.centroids")) for i in range(factors)
                ),
                lookup=left.pop("lookup"),
                bias=left.pop("bias"),
            )
        except KeyError as error:
            raise ManifestError(f"the published router has no array {error}; it was made by another program") from None
        if left:
            raise ManifestError(f"the published router has unknown arrays {sorted(left)}; update dipaco-swarm")
        return router


def _squared_distances(points: NDArray[np.float64], centroids: NDArray[np.float64]) -> NDArray[np.float64]:
    """||x - c||^2 for x (docs, c) and centroids (k, c): float64 (docs, k)."""
    products = points @ centroids.T
    squares: NDArray[np.float64] = (points**2).sum(1)[:, None] - 2 * products + (centroids**2).sum(1)
    return squares


def _check(router: NearestRouter) -> None:
    """Raises ManifestError at the first thing that does not fit."""
    floats = [router.mean, router.components, router.scale, router.bias] + [f.centroids for f in router.factors]
    indices = [router.lookup] + [factor.components for factor in router.factors]
    if any(array.dtype != np.float32 for array in floats) or any(array.dtype != np.int64 for array in indices):
        raise ManifestError("the router's numbers must be fp32 and its indices int64")
    if not router.factors:
        raise ManifestError("the router has no factor; it needs at least one set of centroids")
    paths = router.bias.shape[0] if router.bias.ndim == 1 else 0
    if paths == 0:
        raise ManifestError(f"the router's bias must have one number per path; its shape is {router.bias.shape}")
    size = router.mean.shape[0] if router.mean.ndim == 1 else 0
    count = router.scale.shape[0] if router.scale.ndim == 1 else 0
    _check_shape("components", router.components, (count, size))
    _check_shape("lookup", router.lookup, (paths, len(router.factors)))
    for i, factor in enumerate(router.factors):
        if factor.centroids.ndim != 2 or factor.centroids.shape[0] == 0:
            raise ManifestError(f"factor {i} of the router has centroids of shape {factor.centroids.shape}")
        _check_shape(f"factor{i}.components", factor.components, (factor.centroids.shape[1],))
        _check_range(f"factor{i}.components", factor.components, count)
        _check_range(f"lookup of factor {i}", router.lookup[:, i], len(factor.centroids))
    if not all(np.isfinite(array).all() for array in floats):
        raise ManifestError("the router has a number that is not finite; it must be fitted again")


def _check_shape(name: str, array: Floats | Indices, shape: Sequence[int]) -> None:
    if array.shape != tuple(shape) or 0 in array.shape:
        raise ManifestError(f"the router's {name} has shape {array.shape} where {tuple(shape)} was expected")


def _check_range(name: str, indices: Indices, stop: int) -> None:
    if indices.min() < 0 or indices.max() >= stop:
        raise ManifestError(f"the router's {name} points outside 0..{stop - 1}: {indices.min()}..{indices.max()}")
