"""The router: which path a document takes, from the mean hidden state of its first tokens (paper section 2.4).

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
from typing import Literal

import numpy as np
import safetensors.numpy
from numpy.typing import NDArray
from safetensors import SafetensorError

from dipaco_swarm.algorithm.paths import PathTable
from dipaco_swarm.errors import DataError, ManifestError
from dipaco_swarm.manifest import RouterConfig

Floats = NDArray[np.float32]
Indices = NDArray[np.int64]
Clustering = Literal["k-means", "product-k-means"]

K_MEANS_RESTARTS = 8  # the seed of one clustering moved perplexity by 3 at 2x2 (docs/paper.md#clustering)
DOCUMENTS_AT_ONCE = 8192  # bounds the memory of distances: 8192 x 256 paths in float64 are 16 MiB
BALANCING_MARGIN = 1.1  # a path below the minimum gets 10 % more than it, else its neighbours take turns at the edge
REGRESSION_STRENGTH = 0.1  # sklearn's C: with some tens of labels a path, a firm prior keeps the borders smooth
MATCHING_ROUNDS = 300
BALANCING_ROUNDS = 500  # per path; some tens were enough wherever it was tried, the rest is for hopeless samples


@dataclass(frozen=True, eq=False)
class Factor:
    """Some of the components of z, and the centroids that live in them."""

    components: Indices
    """Which components of z, int64, shape (c,)."""
    centroids: Floats
    """fp32, shape (k, c)."""


@dataclass(frozen=True, eq=False)
class Router:
    """Document feature -> path: hard and deterministic (paper section 2.4). Treat the arrays as immutable.

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
        if features.ndim != 2 or features.shape[1] != len(self.mean):
            raise ManifestError(
                f"the router reads features of {len(self.mean)} numbers but was given an array of shape "
                f"{features.shape}; router and feature model come from different runs or stages"
            )
        z = (features.astype(np.float64) - self.mean) @ self.components.astype(np.float64).T * self.scale
        distance = np.tile(self.bias.astype(np.float64), (len(z), 1))
        for factor, centroid_of_path in zip(self.factors, self.lookup.T, strict=True):
            to_centroids = _squared_distances(z[:, factor.components], factor.centroids.astype(np.float64))
            distance += to_centroids[:, centroid_of_path]
        return distance

    def route(self, features: Floats) -> Indices:
        """The path of each document: fp32 (docs, D) -> int64 (docs,). A tie goes to the lowest path.

        Computed in float64, so what is left of disagreement between two peers is that of their features: fp32 sums
        in another order, about 1e-6 of their size. A document that lies that near to a border may be routed
        differently by another kind of machine; it is then trained on by two paths or by none, which harms nobody.
        """
        return self.route_top(features, 1)[:, 0]

    def route_top(self, features: Floats, n: int) -> Indices:
        """The n nearest paths of each document, nearest first: fp32 (docs, D) -> int64 (docs, n).

        For overlapping shards (paper section 2.4.3: the top two at training time, never in evaluation). Raises
        ManifestError when there are fewer than n paths.
        """
        if not 1 <= n <= self.num_paths:
            raise ManifestError(f"a document cannot go to {n} of {self.num_paths} paths; choose 1 to {self.num_paths}")
        chunks = [features[i : i + DOCUMENTS_AT_ONCE] for i in range(0, len(features), DOCUMENTS_AT_ONCE)] or [features]
        # a stable sort, so that of equal distances the lowest path comes first
        order = [np.argsort(self.distances(chunk), axis=1, kind="stable")[:, :n] for chunk in chunks]
        return np.concatenate(order).astype(np.int64)


def path_shares(router: Router, features: Floats, overlap: int = 1) -> tuple[float, ...]:
    """The share of the documents that each path gets, for use as path weights: positive, sum one, length paths.

    `features`: fp32, shape (docs, D). `overlap`: paths that a document goes to, and counts for. A path without
    a document counts as half a document, so that no weight is zero.
    """
    counts = np.bincount(router.route_top(features, overlap).ravel(), minlength=router.num_paths)
    floored = np.maximum(counts.astype(np.float64), 0.5)
    return tuple(float(share) for share in floored / floored.sum())


# -------------------------------------------------------------------------------------------------------------- fitting


def fit_router(features: Floats, table: PathTable, config: RouterConfig, kind: Clustering, seed: int) -> Router:
    """Fit k-means or product k-means to a sample of document features (paper section 2.4.1, 7.2).

    `features`: fp32, shape (docs, D). Components are kept with the *square root* of their variance: raw variances let
    one or two components decide, whitening lets noise decide. Halves of product k-means interleave the components, as
    otherwise the second half holds nothing (docs/paper.md#clustering). Then biases are lowered until every path has at
    least `min_share` of an equal split of the sample.

    The same sample and seed give the same router on the same machine; the run publishes the arrays, not the recipe.
    Raises DataError when the sample is too small or too uniform, ManifestError when the path table does not suit
    `kind`.
    """
    documents, paths = len(features), table.num_paths
    if documents < max(paths, 2):
        raise DataError(
            f"the routing sample has {documents} documents for {paths} paths and needs at least one for each; "
            "raise data.routing_sample or data.max_documents, or train fewer paths"
        )
    if not np.isfinite(features).all():
        raise DataError(
            "a feature of the routing sample is not finite; the feature model has diverged: lower its rates"
        )
    mean, components, scale = _principal_components(features, config.components)
    z = (features.astype(np.float64) - mean) @ components.astype(np.float64).T * scale
    columns = [list(range(paths))] if kind == "k-means" else _branching_columns(table)
    if len(columns) > len(scale):
        raise ManifestError(
            f"product k-means needs 2 components or more but there is {len(scale)}; see router.components"
        )
    factors = tuple(_fit_factor(z, i, len(columns), max(column) + 1, seed) for i, column in enumerate(columns))
    lookup = np.array(columns, dtype=np.int64).T.copy()
    unbalanced = Router(mean, components, scale, factors, lookup, np.zeros(paths, dtype=np.float32))
    minimum = int(np.ceil(config.min_share * documents / paths))
    bias = balancing_bias(unbalanced.distances(features), minimum)
    return Router(mean, components, scale, factors, lookup, bias)


def best_paths(scores: NDArray[np.float64]) -> Indices:
    """The path that likes each document best, int64 (docs,); -1 where no path has a usable score.

    The labels of docs/paper.md#discriminative-router.

    `scores`: log-likelihood of each document under each path, float64, shape (docs, paths). A score that is not finite
    counts as none. Ties go to the lowest path.
    """
    usable = np.where(np.isfinite(scores), scores, -np.inf)
    labels: Indices = usable.argmax(axis=1).astype(np.int64)
    labels[np.isneginf(usable).all(axis=1)] = -1
    return labels


def fit_discriminative_router(features: Floats, scores: NDArray[np.float64], config: RouterConfig) -> Router:
    """Learn to predict from the prefix which path will like a document best (paper section 2.4.2).

    `features`: fp32, shape (docs, D), of the same frozen model as ever; `scores`: see `best_paths`. Linear logistic
    regression on the scaled principal components, then the biases are re-fitted so that the predicted shares are those
    of the labels (the regression under-predicts rare paths, the paper found, until they are empty), and then lowered
    until every path has at least `min_share` of an equal split. Needs some 80 documents a path to beat k-means
    (docs/paper.md#discriminative-router). Raises DataError when too few documents have a score, or all like the same
    path best.
    """
    labels = best_paths(scores)
    known = labels >= 0
    documents, paths = int(known.sum()), scores.shape[1]
    if documents < max(paths, 2):
        raise DataError(
            f"only {documents} documents of the routing sample have a usable score for {paths} paths; raise "
            "data.routing_sample, or wait until more paths are served"
        )
    if len(set(labels[known].tolist())) == 1 and paths > 1:
        raise DataError(
            f"path {labels[known][0]} likes every document best; the others have been trained too little to compare"
        )
    features, labels = features[known], labels[known]
    mean, components, scale = _principal_components(features, config.components)
    z = (features.astype(np.float64) - mean) @ components.astype(np.float64).T * scale
    weights, offsets = _logistic_regression(z, labels, paths)
    minimum = int(np.ceil(config.min_share * documents / paths))
    wanted = np.maximum(np.bincount(labels, minlength=paths), int(np.ceil(BALANCING_MARGIN * minimum)))
    offsets = _matched_offsets(z @ weights.T + offsets, wanted, offsets)
    centroids = (weights / 2).astype(np.float32)
    bias = (-offsets - (centroids.astype(np.float64) ** 2).sum(1)).astype(np.float32)
    factors = (Factor(np.arange(len(scale), dtype=np.int64), centroids),)
    lookup = np.arange(paths, dtype=np.int64)[:, None]
    unbalanced = Router(mean, components, scale, factors, lookup, bias)
    bias = bias + balancing_bias(unbalanced.distances(features), minimum)
    return Router(mean, components, scale, factors, lookup, bias)


def _logistic_regression(
    z: NDArray[np.float64], labels: Indices, paths: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Weights (paths, C) and offsets (paths,) of a linear classifier; what is nobody's best gets the lowest offset."""
    weights, offsets = np.zeros((paths, z.shape[1])), np.zeros(paths)
    present = np.unique(labels)
    from sklearn.linear_model import LogisticRegression

    fitted = LogisticRegression(C=REGRESSION_STRENGTH, max_iter=2000).fit(z, labels)
    if len(present) == 2:  # sklearn then gives one decision function, shared out here between the two
        weights[present] = np.outer((-0.5, 0.5), fitted.coef_[0])
        offsets[present] = np.array((-0.5, 0.5)) * fitted.intercept_[0]
    else:
        weights[present], offsets[present] = fitted.coef_, fitted.intercept_
    offsets[np.setdiff1d(np.arange(paths), present)] = offsets[present].min()
    return weights, offsets


def _matched_offsets(logits: NDArray[np.float64], wanted: Indices, offsets: NDArray[np.float64]) -> NDArray[np.float64]:
    """Offsets with which the most likely paths are as frequent as `wanted`, (paths,), as nearly as they can be."""
    shift = np.zeros(len(wanted))
    best, least = shift.copy(), np.inf
    spread = float((logits - logits.mean(axis=1, keepdims=True)).std(axis=0).max())
    for turn in range(MATCHING_ROUNDS):
        counts = np.bincount((logits + shift).argmax(axis=1), minlength=len(wanted))
        off = np.abs(counts - wanted).sum()
        if off < least:
            best, least = shift.copy(), off
        if off == 0:
            break
        # ever smaller steps, on the scale of the logits: larger ones would move all documents to and fro
        shift += spread / (2 + turn / 10) * np.log((wanted + 0.5) / (counts + 0.5))
    return offsets + best


def balancing_bias(distances: NDArray[np.float64], minimum: int) -> Floats:
    """Biases, fp32 (paths,), with which every path is the nearest of at least `minimum` documents.

    `distances`: float64, shape (docs, paths). The neediest path is lowered until it has a little more than the minimum,
    and again until all have it; a path that has enough is never touched, so with `minimum` = 0 all stay zero. Raises
    DataError when documents are too much alike to be told apart.
    """
    documents, paths = distances.shape
    bias = np.zeros(paths, dtype=np.float32)
    target = min(int(np.ceil(minimum * BALANCING_MARGIN)), documents)
    of_path = np.ascontiguousarray(distances.T)  # (paths, docs): a round reads one row of it, not the whole
    nearest, best = of_path.argmin(axis=0), of_path.min(axis=0)  # (docs,): the path of now and its biased distance
    for _ in range(BALANCING_ROUNDS * paths):
        counts = np.bincount(nearest, minlength=paths)
        neediest = int(counts.argmin())
        if counts[neediest] >= minimum:
            return bias
        mine = nearest == neediest
        rival = best.copy()
        rival[mine] = np.delete(distances[mine] + bias, neediest, axis=1).min(axis=1)
        gaps = of_path[neediest] - rival
        # one step of fp32 beyond the last document needed: the bias is stored rounded, and a tie may go to another
        bias[neediest] = np.nextafter(np.float32(-np.partition(gaps, target - 1)[target - 1]), np.float32(-np.inf))
        biased = of_path[neediest] + bias[neediest]
        won = biased < rival
        nearest[won], best[won] = neediest, biased[won]
    raise DataError(
        f"the {documents} documents of the routing sample cannot be split into {paths} shards of at least {minimum}: "
        "their prefixes are too much alike; lower router.min_share, train fewer paths, or bring more varied documents"
    )


def _principal_components(features: Floats, most: int) -> tuple[Floats, Floats, Floats]:
    """Mean (D,), directions (C, D) and scale (C,) that turn variance v into sqrt(v); all fp32."""
    if (features == features[0]).all():
        raise DataError(
            f"all {len(features)} documents of the routing sample have the same feature: there is nothing to route by; "
            "check that the data source is what you meant"
        )
    count = min(most, features.shape[1], len(features) - 1)
    from sklearn.decomposition import PCA  # a fifth of every peer's start, and peers fit no routers

    pca = PCA(n_components=count, svd_solver="covariance_eigh").fit(features.astype(np.float64))
    useful = pca.explained_variance_ > 1e-12 * pca.explained_variance_[0]
    scale = pca.explained_variance_[useful] ** -0.25
    return pca.mean_.astype(np.float32), pca.components_[useful].astype(np.float32), scale.astype(np.float32)


def _branching_columns(table: PathTable) -> list[list[int]]:
    """The columns of the two levels where paths choose among shared modules."""
    columns = [list(column) for column in zip(*table.rows, strict=True)]
    branching = [column for column in columns if 1 < max(column) + 1 < table.num_paths]
    if len(branching) != 2:
        raise ManifestError(
            f"product k-means needs a path table with exactly two levels that branch; this one has {len(branching)}: "
            'use router="k-means"'
        )
    return branching


def _fit_factor(z: NDArray[np.float64], first: int, stride: int, centroids: int, seed: int) -> Factor:
    """K-means over the components first, first + stride, first + 2 stride, ... of z, shape (docs, C)."""
    components = np.arange(first, z.shape[1], stride, dtype=np.int64)
    part = z[:, components]
    distinct = len(np.unique(part, axis=0))
    if distinct < centroids:
        raise DataError(
            f"the routing sample has {distinct} different prefixes for {centroids} clusters; bring more varied "
            "documents or train fewer paths"
        )
    from sklearn.cluster import KMeans

    fitted = KMeans(centroids, n_init=K_MEANS_RESTARTS, random_state=seed % 2**32).fit(part)
    return Factor(components, fitted.cluster_centers_.astype(np.float32))


def _squared_distances(points: NDArray[np.float64], centroids: NDArray[np.float64]) -> NDArray[np.float64]:
    """||x - c||^2 for x (docs, c) and centroids (k, c): float64 (docs, k)."""
    products = points @ centroids.T
    squares: NDArray[np.float64] = (points**2).sum(1)[:, None] - 2 * products + (centroids**2).sum(1)
    return squares


# --------------------------------------------------------------------------------------------------------- as a blob


def router_to_bytes(router: Router) -> bytes:
    """The router as safetensors: what the run publishes. The same router gives the same bytes."""
    arrays = {
        "mean": router.mean,
        "components": router.components,
        "scale": router.scale,
        "lookup": router.lookup,
        "bias": router.bias,
    }
    for i, factor in enumerate(router.factors):
        arrays[f"factor{i}.components"] = factor.components
        arrays[f"factor{i}.centroids"] = factor.centroids
    return safetensors.numpy.save({name: np.ascontiguousarray(array) for name, array in arrays.items()})


def router_from_bytes(data: bytes, num_paths: int | None = None) -> Router:
    """Read and check what `router_to_bytes` wrote.

    Raises ManifestError when it is not a router, does not fit itself, or is not for `num_paths` paths.
    """
    try:
        arrays = safetensors.numpy.load(data)
        factors = sum(name.endswith(".centroids") for name in arrays)
        router = Router(
            mean=arrays.pop("mean"),
            components=arrays.pop("components"),
            scale=arrays.pop("scale"),
            factors=tuple(
                Factor(arrays.pop(f"factor{i}.components"), arrays.pop(f"factor{i}.centroids")) for i in range(factors)
            ),
            lookup=arrays.pop("lookup"),
            bias=arrays.pop("bias"),
        )
    except SafetensorError as error:
        raise ManifestError(f"the published router is not a safetensors file ({error}); fetch it again") from None
    except KeyError as error:
        raise ManifestError(f"the published router has no array {error}; it was made by another program") from None
    if arrays:
        raise ManifestError(f"the published router has unknown arrays {sorted(arrays)}; update dipaco-swarm")
    if num_paths is not None and router.num_paths != num_paths:
        raise ManifestError(
            f"the published router knows {router.num_paths} paths but the path table has {num_paths}; they belong to "
            "different stages"
        )
    return router


def _check(router: Router) -> None:
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
