"""k-means: a centroid per path."""

from dipaco_swarm.algorithm.paths import PathTable
from dipaco_swarm.algorithm.routers.fitting import fit_clusters
from dipaco_swarm.algorithm.routers.nearest import NearestRouter
from dipaco_swarm.algorithm.routers.router import Arrays, RouterKind, Sample
from dipaco_swarm.run.config import RouterConfig


class KMeans(RouterKind):
    name = "k-means"

    def fit(self, sample: Sample, table: PathTable, config: RouterConfig, seed: int) -> NearestRouter:
        return fit_clusters(sample.features, [range(table.num_paths)], config, seed)

    def load(self, arrays: Arrays) -> NearestRouter:
        return NearestRouter.from_arrays(arrays)


K_MEANS = KMeans()
