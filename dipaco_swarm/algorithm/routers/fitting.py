"""What the kinds of nearest router share when they are fitted: components, clusters, and shards that are not empty."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from dipaco_swarm.algorithm.routers.nearest import Factor, NearestRouter
from dipaco_swarm.algorithm.routers.router import Floats
from dipaco_swarm.errors import DataError, ManifestError
from dipaco_swarm.run.config import RouterConfig

K_MEANS_RESTARTS = 8  # the seed of one clustering moved perplexity by 3 at 2x2 (docs/paper.md#clustering)
BALANCING_MARGIN = 1.1  # a path below the minimum gets 10 % more than it, else its neighbours take turns at the edge
BALANCING_ROUNDS = 500  # per path; some tens were enough wherever it was tried, the rest is for hopeless samples


def fit_clusters(features: Floats, columns: Sequence[Sequence[int]], config: RouterConfig, seed: int) -> NearestRouter:
    """Cluster a sample of document features, once for each of the columns (paper section 2.4.1, 7.2).

    `features`: fp32, shape (docs, D). `columns`: for each factor of the router, the centroid that each path takes.
    Components are kept with the *square root* of their variance: raw variances let one or two components decide,
    whitening lets noise decide. Factors interleave the components, as otherwise the last one holds nothing
    (docs/paper.md#clustering). Then biases are lowered until every path has at least `min_share` of an equal split of
    the sample. Raises DataError when the sample is too small or too uniform, ManifestError when there are fewer
    components than factors.
    """
    documents, paths = len(features), len(columns[0])
    if documents < max(paths, 2):
        raise DataError(
            f"the routing sample has {documents} documents for {paths} paths and needs at least one for each; "
            "raise data.routing_sample or data.max_documents, or train fewer paths"
        )
    if not np.isfinite(features).all():
        raise DataError(
            "a feature of the routing sample is not finite; the feature model has diverged: lower its rates"
        )
    mean, components, scale = principal_components(features, config.components)
    z = (features.astype(np.float64) - mean) @ components.astype(np.float64).T * scale
    if len(columns) > len(scale):
        raise ManifestError(
            f"a router of {len(columns)} factors needs {len(columns)} components or more but there is {len(scale)}; "
            "see router.components"
        )
    factors = tuple(_fit_factor(z, i, len(columns), max(column) + 1, seed) for i, column in enumerate(columns))
    lookup = np.array(columns, dtype=np.int64).T.copy()
    unbalanced = NearestRouter(mean, components, scale, factors, lookup, np.zeros(paths, dtype=np.float32))
    minimum = int(np.ceil(config.min_share * documents / paths))
    bias = balancing_bias(unbalanced.distances(features), minimum)
    return NearestRouter(mean, components, scale, factors, lookup, bias)


def principal_components(features: Floats, most: int) -> tuple[Floats, Floats, Floats]:
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
    nearest, best = of_path.argmin(axis=0), of_path.min(axis=0)  # (docs,): the current path and its biased distance
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


def cluster(z: NDArray[np.float64], centroids: int, seed: int) -> NDArray[np.float64]:
    """So many centroids of z, shape (docs, C): float64 (centroids, C). Raises DataError when z is too uniform."""
    return _fit_factor(z, 0, 1, centroids, seed).centroids.astype(np.float64)


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
