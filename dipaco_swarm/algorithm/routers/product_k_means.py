"""Product k-means: a centroid per module of the two levels that branch; a path takes the pair of its modules."""

from dipaco_swarm.algorithm.paths import PathTable
from dipaco_swarm.algorithm.routers.fitting import fit_clusters
from dipaco_swarm.algorithm.routers.nearest import NearestRouter
from dipaco_swarm.algorithm.routers.router import Arrays, RouterKind, Sample
from dipaco_swarm.errors import ManifestError
from dipaco_swarm.run.config import RouterConfig


class ProductKMeans(RouterKind):
    name = "product-k-means"

    def fit(self, sample: Sample, table: PathTable, config: RouterConfig, seed: int) -> NearestRouter:
        return fit_clusters(sample.features, _branching_columns(table), config, seed)

    def load(self, arrays: Arrays) -> NearestRouter:
        return NearestRouter.from_arrays(arrays)


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


PRODUCT_K_MEANS = ProductKMeans()
