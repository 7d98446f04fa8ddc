"""A stage that ends when it gets no better: by the best loss of each path on documents held out of its shard."""

from collections.abc import Collection, Mapping

from dipaco_swarm.algorithm.paths import PathIndex
from dipaco_swarm.operator.snapshots import SnapshotKeeper
from dipaco_swarm.run.manifest import Manifest, Stage
from dipaco_swarm.run.stage import PlateauConfig


class Plateau:
    """The held-out losses of a stage so far, by version. A restart of the node begins them anew."""

    def __init__(self) -> None:
        self._stage = -1
        self._history: list[tuple[int, dict[PathIndex, float]]] = []
        self._is_over = False

    def is_reached(self, manifest: Manifest, versions: Collection[int], snapshots: SnapshotKeeper | None) -> bool:
        """Whether the manifest's stage should end now; said once. `versions`: of the modules that train in it."""
        plateau = manifest.config.stages[manifest.stage.index].plateau
        if plateau is None or snapshots is None:
            return False
        return self.ends(manifest.stage, plateau, min(versions), snapshots.losses)

    def ends(self, stage: Stage, plateau: PlateauConfig, version: int, losses: Mapping[PathIndex, float]) -> bool:
        """The same for the stage's own rule. `version`: of its least advanced module. `losses`: the best so far of each
        path, in nats; without paths that have none."""
        if stage.index != self._stage:
            self._stage, self._history, self._is_over = stage.index, [], False
        if self._is_over or not losses:
            return False
        if not self._history or version > self._history[-1][0]:
            self._history.append((version, dict(losses)))
        earlier = [old for at, old in self._history if at <= version - plateau.rounds]
        if not earlier or earlier[-1].keys() != losses.keys():
            return False  # a path that had none may have got much better
        weights = {path: stage.path_weights[path] for path in losses}
        gained = sum(weights[path] * (earlier[-1][path] - losses[path]) for path in losses) / sum(weights.values())
        self._is_over = gained < plateau.gain
        return self._is_over
