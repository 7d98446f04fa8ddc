import numpy as np
import pytest
import safetensors.numpy

from dipaco_swarm.algorithm.paths import PathTable, grid
from dipaco_swarm.algorithm.routers.discriminative import DISCRIMINATIVE, best_paths
from dipaco_swarm.algorithm.routers.fitting import balancing_bias
from dipaco_swarm.algorithm.routers.k_means import K_MEANS
from dipaco_swarm.algorithm.routers.nearest import Factor, NearestRouter
from dipaco_swarm.algorithm.routers.product_k_means import PRODUCT_K_MEANS
from dipaco_swarm.algorithm.routers.router import (
    Floats,
    Indices,
    Sample,
    kind_of,
    path_shares,
    router_from_bytes,
    router_to_bytes,
)
from dipaco_swarm.errors import DataError, ManifestError
from dipaco_swarm.run.config import RouterConfig

CONFIG = RouterConfig(components=8, min_share=0.25)


def floats(*values: float) -> Floats:
    return np.array(values, dtype=np.float32)


def indices(*values: int) -> Indices:
    return np.array(values, dtype=np.int64)


def line_router(*centroids: float, bias: Floats | None = None) -> NearestRouter:
    """Features of one number, a centroid per path."""
    n = len(centroids)
    factor = Factor(indices(0), floats(*centroids)[:, None])
    offsets = np.zeros(n, dtype=np.float32) if bias is None else bias
    return NearestRouter(floats(0), floats(1)[:, None], floats(1), (factor,), np.arange(n)[:, None], offsets)


def clouds(centres: int, each: int, size: int = 16, seed: int = 0) -> tuple[Floats, Indices]:
    """Gaussian clouds around random centres: features and the cloud of each."""
    rng = np.random.default_rng(seed)
    middle = rng.normal(size=(centres, size)) * 5
    label = np.repeat(np.arange(centres), each)
    return (middle[label] + rng.normal(size=(len(label), size))).astype(np.float32), label


def test_a_document_goes_to_the_nearest_centroid() -> None:
    assert line_router(0.0, 10.0, 4.0).route(floats(1, 9, 5, 6.9)[:, None]).tolist() == [0, 1, 2, 2]


def test_a_tie_goes_to_the_lowest_path() -> None:
    router = line_router(2.0, 0.0, 2.0)
    assert router.route(floats(1, 2)[:, None]).tolist() == [0, 0]
    assert router.route_top(floats(1)[:, None], 3).tolist() == [[0, 1, 2]]


def test_overlapping_shards_take_the_nearest_paths_in_order() -> None:
    router = line_router(0.0, 10.0, 4.0)
    assert router.route_top(floats(1, 8)[:, None], 2).tolist() == [[0, 2], [1, 2]]
    with pytest.raises(ManifestError, match="4 of 3 paths"):
        router.route_top(floats(1)[:, None], 4)


def test_a_bias_moves_the_border() -> None:
    assert line_router(0.0, 2.0, bias=floats(0, -4)).route(floats(-0.1, 0.1)[:, None]).tolist() == [0, 1]


def test_no_documents_go_nowhere() -> None:
    assert line_router(0.0, 1.0).route(np.zeros((0, 1), dtype=np.float32)).shape == (0,)


def test_features_of_another_model_are_refused() -> None:
    with pytest.raises(ManifestError, match=r"features of 1 numbers .* \(3, 2\)"):
        line_router(0.0).route(np.zeros((3, 2), dtype=np.float32))


def test_a_linear_router_is_a_router_too() -> None:
    rng = np.random.default_rng(0)
    weights, offsets = rng.normal(size=(5, 3)), rng.normal(size=5)
    features = rng.normal(size=(200, 3)).astype(np.float32)
    centroids = (weights / 2).astype(np.float32)
    bias = (-offsets - (centroids.astype(np.float64) ** 2).sum(1)).astype(np.float32)
    eye, ones = np.eye(3, dtype=np.float32), np.ones(3, dtype=np.float32)
    router = NearestRouter(floats(0, 0, 0), eye, ones, (Factor(np.arange(3), centroids),), np.arange(5)[:, None], bias)
    assert (router.route(features) == (features @ weights.T + offsets).argmax(1)).all()


def test_k_means_finds_the_clouds() -> None:
    features, label = clouds(4, 50)
    routed = K_MEANS.fit(Sample(features), grid((2, 2)), CONFIG, seed=0).route(features)
    assert len({(a, b) for a, b in zip(label.tolist(), routed.tolist(), strict=True)}) == 4


def test_product_k_means_takes_the_nearest_centroid_of_each_half() -> None:
    features, _ = clouds(9, 40)
    table = grid((3, 1, 3, 5), path_specific_levels=frozenset({3}))
    router = PRODUCT_K_MEANS.fit(Sample(features), table, RouterConfig(components=8, min_share=0.0), seed=0)
    assert [factor.components.tolist() for factor in router.factors] == [[0, 2, 4, 6], [1, 3, 5, 7]]
    assert not router.bias.any()
    z = (features.astype(np.float64) - router.mean) @ router.components.T.astype(np.float64) * router.scale
    pair = [((z[:, factor.components][:, None] - factor.centroids) ** 2).sum(2).argmin(1) for factor in router.factors]
    modules = [(table.rows[path][0], table.rows[path][2]) for path in router.route(features)]
    assert modules == list(zip(*(p.tolist() for p in pair), strict=True))


def test_components_keep_the_square_root_of_their_variance() -> None:
    rng = np.random.default_rng(0)
    features = (rng.normal(size=(4000, 3)) * [16.0, 4.0, 1.0]).astype(np.float32)  # variances 256, 16, 1
    router = K_MEANS.fit(Sample(features), grid((2,)), CONFIG, seed=0)
    z = (features - router.mean) @ router.components.T * router.scale
    assert z.var(axis=0) == pytest.approx([16.0, 4.0, 1.0], rel=0.1)


@pytest.mark.parametrize("kind", ["k-means", "product-k-means"])
def test_no_shard_is_smaller_than_its_minimum(kind: str) -> None:
    big, _ = clouds(1, 900)
    small, _ = clouds(6, 8, seed=1)
    features = np.concatenate([big, small])
    table = grid((4, 4))
    config = RouterConfig(components=8, min_share=0.5)
    router = kind_of(kind).fit(Sample(features), table, config, seed=0)
    counts = np.bincount(router.route(features), minlength=16)
    loose = kind_of(kind).fit(Sample(features), table, RouterConfig(components=8, min_share=0.0), seed=0)
    needed = 0.5 * len(features) / 16
    assert np.bincount(loose.route(features), minlength=16).min() < needed  # or there was nothing to balance
    assert counts.min() >= needed


def test_a_path_that_has_enough_is_not_touched_by_balancing() -> None:
    distances = np.array([[0.0, 5.0], [0.0, 3.0], [0.0, 9.0], [0.0, 4.0]])
    bias = balancing_bias(distances, 1)
    assert bias[0] == 0
    assert np.bincount((distances + bias).argmin(1), minlength=2).tolist() == [2, 2]  # 10 % more than one is two
    assert not balancing_bias(distances, 0).any()


def test_the_same_sample_and_seed_give_the_same_bytes() -> None:
    features, _ = clouds(4, 30)
    first, second = (PRODUCT_K_MEANS.fit(Sample(features), grid((2, 2)), CONFIG, seed=3) for _ in range(2))
    assert router_to_bytes(K_MEANS, first) == router_to_bytes(K_MEANS, second)


def test_shares_are_positive_and_sum_to_one() -> None:
    router = line_router(0.0, 10.0, 1000.0)
    shares = path_shares(router, floats(1, 2, 9)[:, None])
    assert shares == pytest.approx((2 / 3.5, 1 / 3.5, 0.5 / 3.5))
    both = path_shares(router, floats(1, 2, 9)[:, None], overlap=2)
    assert both == pytest.approx((3 / 6.5, 3 / 6.5, 0.5 / 6.5))  # everything goes to paths 0 and 1
    assert sum(path_shares(router, np.zeros((0, 1), dtype=np.float32))) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("features", "table", "kind", "complaint"),
    [
        (clouds(1, 3)[0], grid((2, 2)), "k-means", "3 documents for 4 paths"),
        (np.ones((50, 4), dtype=np.float32), grid((2,)), "k-means", "the same feature"),
        (np.repeat(np.eye(2, dtype=np.float32), 20, axis=0), grid((3,)), "k-means", "2 different prefixes for 3"),
        (np.full((50, 4), np.nan, dtype=np.float32), grid((2,)), "k-means", "not finite"),
        (np.repeat(np.eye(3, dtype=np.float32), [60, 1, 1], axis=0), grid((3,)), "k-means", "too much alike"),
    ],
)
def test_a_poor_sample_says_what_to_do(features: Floats, table: PathTable, kind: str, complaint: str) -> None:
    with pytest.raises(DataError, match=complaint):
        kind_of(kind).fit(Sample(features), table, CONFIG, seed=0)


def test_product_k_means_needs_two_levels_that_branch_and_two_components() -> None:
    features, _ = clouds(4, 30)
    with pytest.raises(ManifestError, match="two levels that branch; this one has 3"):
        PRODUCT_K_MEANS.fit(Sample(features), grid((2, 2, 2)), CONFIG, seed=0)
    with pytest.raises(ManifestError, match="2 components or more"):
        PRODUCT_K_MEANS.fit(Sample(features), grid((2, 2)), RouterConfig(components=1), seed=0)


def test_a_router_comes_back_from_its_bytes() -> None:
    features, _ = clouds(4, 30)
    router = PRODUCT_K_MEANS.fit(Sample(features), grid((2, 2)), CONFIG, seed=0)
    again = router_from_bytes(router_to_bytes(K_MEANS, router), num_paths=4)
    assert (again.route(features) == router.route(features)).all()
    assert router_to_bytes(K_MEANS, again) == router_to_bytes(K_MEANS, router)


def test_damaged_or_foreign_bytes_are_refused() -> None:
    good = safetensors.numpy.load(router_to_bytes(K_MEANS, line_router(0.0, 1.0, 2.0)))

    def without(name: str) -> dict[str, np.ndarray]:
        return {key: value for key, value in good.items() if key != name}

    cases: list[tuple[dict[str, np.ndarray], str]] = [
        (without("bias"), "no array 'bias'"),
        (without("kind"), "unknown kind ''"),
        ({**good, "kind": np.frombuffer(b"single", dtype=np.uint8)}, "unknown kind 'single'"),
        (without("factor0.centroids"), "no factor|unknown arrays"),
        ({**good, "extra": floats(1)}, "unknown arrays"),
        ({**good, "lookup": indices(0, 1, 3)[:, None]}, "lookup of factor 0 points outside"),
        ({**good, "lookup": indices(0, 1, -1)[:, None]}, "lookup of factor 0 points outside"),
        ({**good, "lookup": indices(0, 1)[:, None]}, "lookup has shape"),
        ({**good, "factor0.components": indices(1)}, "components points outside"),
        ({**good, "factor0.centroids": floats(0, np.inf, 1)[:, None]}, "not finite"),
        ({**good, "factor0.centroids": floats(0, 1, 2)}, "centroids of shape"),
        ({**good, "mean": floats(0, 0)}, "components has shape"),
        ({**good, "scale": np.array([1.0])}, "fp32"),
        ({**good, "bias": floats()}, "bias must have one number per path"),
    ]
    for arrays, complaint in cases:
        with pytest.raises(ManifestError, match=complaint):
            router_from_bytes(safetensors.numpy.save(arrays))
    with pytest.raises(ManifestError, match="not a safetensors file"):
        router_from_bytes(b"nonsense")
    with pytest.raises(ManifestError, match="knows 3 paths but the path table has 4"):
        router_from_bytes(router_to_bytes(K_MEANS, line_router(0.0, 1.0, 2.0)), num_paths=4)


def test_a_discriminative_router_learns_which_path_likes_a_document() -> None:
    features, cloud = clouds(4, 100)
    rng = np.random.default_rng(1)
    scores = rng.normal(size=(len(features), 4)) * 0.1
    scores[np.arange(len(features)), (cloud + 1) % 4] += 5.0  # each cloud has one path that likes it
    router = DISCRIMINATIVE.fit(Sample(features, scores), grid([scores.shape[1]]), CONFIG, seed=0)
    assert (router.route(features) == (cloud + 1) % 4).mean() > 0.97


def test_unusable_scores_are_left_out_and_ties_go_to_the_lowest_path() -> None:
    scores = np.array([[1.0, 1.0], [np.nan, 0.0], [np.nan, np.inf], [-5.0, -np.inf]])
    assert best_paths(scores).tolist() == [0, 1, -1, 0]


def test_predicted_shares_follow_the_labels_and_no_path_is_empty() -> None:
    rng = np.random.default_rng(2)
    features = rng.normal(size=(600, 8)).astype(np.float32)
    scores = rng.normal(size=(600, 3)) * 0.01
    scores[:540, 0] += 1.0  # nearly everybody's best; path 2 is hardly ever one
    scores[540:, 1] += 1.0
    config = RouterConfig(components=8, min_share=0.1)
    router = DISCRIMINATIVE.fit(Sample(features, scores), grid([3]), config, seed=0)
    counts = np.bincount(router.route(features), minlength=3)
    assert counts[2] >= 0.1 * 600 / 3
    assert counts[0] > 3 * counts[1]
    assert counts[1] >= 30  # without re-fitted biases the regression would never predict it


def test_too_few_scored_documents_are_an_error_with_the_numbers() -> None:
    features, _ = clouds(4, 10)
    scores = np.full((len(features), 4), np.nan)
    scores[:2] = 0.0
    with pytest.raises(DataError, match="only 2 documents"):
        DISCRIMINATIVE.fit(Sample(features, scores), grid([scores.shape[1]]), CONFIG, seed=0)
