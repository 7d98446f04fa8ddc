"""Paths that are added: documents of before go where they went, new ones to the new paths."""

import numpy as np
import pytest

from dipaco_swarm.algorithm.paths import PathTable, grid
from dipaco_swarm.algorithm.routers.added import ADDED, add_paths
from dipaco_swarm.algorithm.routers.k_means import K_MEANS
from dipaco_swarm.algorithm.routers.nearest import NearestRouter
from dipaco_swarm.algorithm.routers.product_k_means import PRODUCT_K_MEANS
from dipaco_swarm.algorithm.routers.router import Floats, RouterKind, Sample, router_from_bytes, router_to_bytes
from dipaco_swarm.errors import DataError, ManifestError
from dipaco_swarm.run.config import RouterConfig

WIDTH = 12


def documents(count: int, seed: int, *, away: float = 0.0) -> Floats:
    """Features of two sorts of documents; `away`: in a direction that is none of theirs."""
    chance = np.random.default_rng(seed)
    features = chance.normal(size=(count, WIDTH))
    features[: count // 2, 0] += 6
    features[:, 1] += chance.choice([-3, 3], size=count)
    features[:, 5] += away
    return features.astype(np.float32)


def before(kind: RouterKind) -> NearestRouter:
    router = kind.fit(Sample(documents(400, 1)), grid([2, 2]), RouterConfig(components=8), 0)
    assert isinstance(router, NearestRouter)
    return router


@pytest.mark.parametrize("kind", [K_MEANS, PRODUCT_K_MEANS])
def test_old_documents_go_where_they_went_and_new_ones_to_the_new_paths(kind: RouterKind) -> None:
    old = before(kind)
    router = add_paths(old, documents(400, 1), documents(200, 2, away=15), 2, 0)
    assert router.num_paths == 6
    unseen = documents(2000, 3)
    assert (router.route(unseen) == old.route(unseen)).all()
    new = router.route(documents(500, 4, away=15))
    assert np.isin(new, (4, 5)).mean() > 0.95
    assert set(new.tolist()) >= {4, 5}


def test_it_is_published_like_any_other() -> None:
    old = before(K_MEANS)
    table = PathTable(((0, 0), (0, 1), (1, 0), (1, 1), (2, 2)))
    sample = Sample(documents(100, 2, away=15), before=old, known=documents(400, 1))
    router = ADDED.fit(sample, table, RouterConfig(), 0)
    again = router_from_bytes(router_to_bytes(ADDED, router), 5)
    some = documents(50, 5)
    assert (again.route(some) == router.route(some)).all()


def test_documents_like_the_old_ones_are_no_reason_for_paths() -> None:
    with pytest.raises(DataError, match="can be told from the old ones"):
        add_paths(before(K_MEANS), documents(400, 1), documents(200, 2), 2, 0)


def test_too_few_documents_are_said_to_be() -> None:
    with pytest.raises(DataError, match="has 1 documents for 2 paths"):
        add_paths(before(K_MEANS), documents(400, 1), documents(1, 2, away=15), 2, 0)


def test_without_a_router_of_before_there_is_nothing_to_add_to() -> None:
    with pytest.raises(ManifestError, match="looks for the nearest path"):
        ADDED.fit(Sample(documents(10, 1)), grid([2, 2]), RouterConfig(), 0)
