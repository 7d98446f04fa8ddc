"""Paths that are added to others: documents of a new kind go to them, and those of before where they went before.

The router of before is kept to the bit, and gets a centroid more in each factor for each path that is added. A new
path's bias is such that no document of the old routing sample prefers it, with a margin where the two kinds leave one.
"""

import numpy as np
from numpy.typing import NDArray

from dipaco_swarm.algorithm.paths import PathTable
from dipaco_swarm.algorithm.routers.fitting import cluster
from dipaco_swarm.algorithm.routers.nearest import Factor, NearestRouter
from dipaco_swarm.algorithm.routers.router import Arrays, Floats, RouterKind, Sample
from dipaco_swarm.errors import DataError, ManifestError
from dipaco_swarm.run.config import RouterConfig

REACHES = (1.0, 1.5, 2.0, 3.0, 5.0, 8.0)
"""How far out the new centroids are tried, as multiples of their distance from the middle of the old documents: farther
out, the border between old and new turns towards a plane."""
FEW = 0.1
"""The border lies in the middle between the last old document and this share of the new ones."""
MOST_LEFT = 0.5
"""Where more of the new documents than this would go to old paths, the two kinds cannot be told apart."""


class Added(RouterKind):
    name = "added"

    def fit(self, sample: Sample, table: PathTable, config: RouterConfig, seed: int) -> NearestRouter:
        if not isinstance(sample.before, NearestRouter) or sample.known is None:
            raise ManifestError(
                "paths can be added to a stage whose router looks for the nearest path; this one does not"
            )
        return add_paths(sample.before, sample.known, sample.features, table.num_paths - sample.before.num_paths, seed)

    def load(self, arrays: Arrays) -> NearestRouter:
        return NearestRouter.from_arrays(arrays)


def add_paths(before: NearestRouter, known: Floats, new: Floats, paths: int, seed: int) -> NearestRouter:
    """The router with so many paths more. `known`, `new`: features of old and new documents, fp32, shape (docs, D).

    Raises DataError when there are too few new documents, or most of them look like old ones.
    """
    if len(new) < max(paths, 2):
        raise DataError(
            f"the routing sample has {len(new)} documents for {paths} paths that are added; give the stage more "
            "documents of its own, in [stages.from_here.data]"
        )
    z_new, z_known = before.coordinates(new), before.coordinates(known)
    middle = z_known.mean(axis=0)
    centroids = cluster(z_new, paths, seed)
    best: tuple[float, float, NDArray[np.float64]] | None = None
    for reach in REACHES:
        tried = (middle + reach * (centroids - middle)).astype(np.float32).astype(np.float64)
        bias, share = _border(_gain(before, known, z_known, tried), _gain(before, new, z_new, tried))
        if best is None or share > best[0]:
            best = share, bias, tried
    assert best is not None, "there is at least one reach"
    share, bias, centroids = best
    if share < 1 - MOST_LEFT:
        raise DataError(
            f"only {100 * share:.0f} % of the new documents can be told from the old ones by their first tokens; paths "
            "for documents like the old ones are added by a stage with modules, and a router of its own"
        )
    return _with(before, centroids, bias)


def _gain(
    before: NearestRouter, features: Floats, z: NDArray[np.float64], centroids: NDArray[np.float64]
) -> NDArray[np.float64]:
    """By how much the nearest new centroid is nearer than the nearest old path, float64 (docs,)."""
    to_new = ((z[:, None, :] - centroids[None, :, :]) ** 2).sum(axis=2).min(axis=1)
    gain: NDArray[np.float64] = before.distances(features).min(axis=1) - to_new
    return gain


def _border(known: NDArray[np.float64], new: NDArray[np.float64]) -> tuple[float, float]:
    """The gain from which on a document is new, and the share of the new ones that have it."""
    last, first = float(known.max()), float(np.quantile(new, FEW))
    border = (last + first) / 2 if first > last else last
    return border, float((new > border).mean())


def _with(before: NearestRouter, centroids: NDArray[np.float64], bias: float) -> NearestRouter:
    """With a path more for each of these centroids."""
    factors, lookup = [], []
    for factor in before.factors:
        lookup.append(len(factor.centroids) + np.arange(len(centroids), dtype=np.int64))
        added = centroids[:, factor.components].astype(np.float32)
        factors.append(Factor(factor.components, np.concatenate([factor.centroids, added])))
    biases = np.nextafter(np.full(len(centroids), bias, dtype=np.float32), np.float32(np.inf))
    return NearestRouter(
        before.mean,
        before.components,
        before.scale,
        tuple(factors),
        np.concatenate([before.lookup, np.stack(lookup, axis=1)]),
        np.concatenate([before.bias, biases]),
    )


ADDED = Added()
