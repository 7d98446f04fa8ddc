"""The discriminative router: learned from which path likes which document (paper section 2.4.2)."""

import numpy as np
from numpy.typing import NDArray

from dipaco_swarm.algorithm.paths import PathTable
from dipaco_swarm.algorithm.routers.fitting import BALANCING_MARGIN, balancing_bias, principal_components
from dipaco_swarm.algorithm.routers.nearest import Factor, NearestRouter
from dipaco_swarm.algorithm.routers.router import Arrays, Floats, Indices, RouterKind, Sample, Scores
from dipaco_swarm.errors import DataError
from dipaco_swarm.run.config import RouterConfig

REGRESSION_STRENGTH = 0.1  # sklearn's C: with some tens of labels a path, a firm prior keeps the borders smooth
MATCHING_ROUNDS = 300


class Discriminative(RouterKind):
    name = "discriminative"

    def fit(self, sample: Sample, table: PathTable, config: RouterConfig, seed: int) -> NearestRouter:
        assert sample.scores is not None, "this kind needs scores"
        return fit_discriminative(sample.features, sample.scores, config)

    def load(self, arrays: Arrays) -> NearestRouter:
        return NearestRouter.from_arrays(arrays)


def best_paths(scores: Scores) -> Indices:
    """The path that likes each document best, int64 (docs,); -1 where no path has a usable score.

    The labels of docs/paper.md#discriminative-router.

    `scores`: log-likelihood of each document under each path, float64, shape (docs, paths). A score that is not finite
    counts as none. Ties go to the lowest path.
    """
    usable = np.where(np.isfinite(scores), scores, -np.inf)
    labels: Indices = usable.argmax(axis=1).astype(np.int64)
    labels[np.isneginf(usable).all(axis=1)] = -1
    return labels


def fit_discriminative(features: Floats, scores: Scores, config: RouterConfig) -> NearestRouter:
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
    mean, components, scale = principal_components(features, config.components)
    z = (features.astype(np.float64) - mean) @ components.astype(np.float64).T * scale
    weights, offsets = _logistic_regression(z, labels, paths)
    minimum = int(np.ceil(config.min_share * documents / paths))
    wanted = np.maximum(np.bincount(labels, minlength=paths), int(np.ceil(BALANCING_MARGIN * minimum)))
    offsets = _matched_offsets(z @ weights.T + offsets, wanted, offsets)
    centroids = (weights / 2).astype(np.float32)
    bias = (-offsets - (centroids.astype(np.float64) ** 2).sum(1)).astype(np.float32)
    factors = (Factor(np.arange(len(scale), dtype=np.int64), centroids),)
    lookup = np.arange(paths, dtype=np.int64)[:, None]
    unbalanced = NearestRouter(mean, components, scale, factors, lookup, bias)
    bias = bias + balancing_bias(unbalanced.distances(features), minimum)
    return NearestRouter(mean, components, scale, factors, lookup, bias)


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


DISCRIMINATIVE = Discriminative()
