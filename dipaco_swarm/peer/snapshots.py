"""A peer's part of early stopping: score the path now and then, keep the best version of it, and offer that."""

import math
from collections.abc import Callable, Mapping
from pathlib import Path

from dipaco_swarm.algorithm.paths import ModuleId
from dipaco_swarm.algorithm.state import ModuleState
from dipaco_swarm.events.volunteer import BestSnapshot
from dipaco_swarm.files import write_whole
from dipaco_swarm.path_in_training import PathInTraining
from dipaco_swarm.snapshots import snapshot_at_home
from dipaco_swarm.training.early import (
    BestSoFar,
    Snapshot,
    SnapshotStatement,
    snapshot_file,
    snapshot_to_bytes,
    topic_of,
)

LossOf = Callable[[Mapping[ModuleId, ModuleState]], float]
"""The mean loss of these agreed modules of a path on a slice of its shard, in nats per token."""


class OwnSnapshots:
    """What a peer does about the path that it trains: score, keep, offer."""

    def __init__(self, peer: PathInTraining, every: int, loss_of: LossOf | None, home: Path, run: str) -> None:
        """`every`: versions from one scoring to the next. `loss_of`: scores the path; None: nothing can be scored."""
        self._peer = peer
        self._loss_of = loss_of
        self._run = run
        self._file = snapshot_file(home, peer.stage, peer.path)
        self._offered: str | None = None
        self._unsaved: Snapshot | None = None
        """The best one, while the disk is full."""
        self._best = snapshot_at_home(self._file, run)
        self._so_far = BestSoFar(every, peer.version, math.inf if self._best is None else self._best.loss)

    def offer_kept(self) -> None:
        """Offer the snapshot that the last time left at home, if there is one."""
        if self._best is not None:
            self._offer(self._best)
        self._best = None  # it is large

    def look(self) -> BestSnapshot | None:
        """Score the path if that is due, and keep and offer it if it is the best; what to report then.

        Raises HomeError when it cannot be kept; a later call tries again.
        """
        if self._unsaved is not None:
            return self._keep(self._unsaved)
        peer, version, done = self._peer, self._peer.version, self._peer.is_done
        if self._loss_of is None or not self._so_far.is_due(version, done):
            return None
        loss = self._loss_of(peer.base)
        if not self._so_far.note(version, done, loss):
            return None
        best = Snapshot(
            run=self._run,
            stage=peer.stage,
            path=peer.path,
            loss=loss,
            versions={module: state.version for module, state in peer.base.items()},
            params={module: state.params for module, state in peer.base.items()},
        )
        return self._keep(best)

    def _keep(self, best: Snapshot) -> BestSnapshot:
        self._unsaved = best
        write_whole(self._file, snapshot_to_bytes(best), durable=True)
        self._offer(best)
        self._unsaved = None
        return BestSnapshot(best.path, best.loss, best.named_versions)

    def _offer(self, snapshot: Snapshot) -> None:
        digest = self._peer.swarm.put_blob(snapshot_to_bytes(snapshot))
        statement = SnapshotStatement(path=snapshot.path, loss=snapshot.loss, snapshot=digest)
        self._peer.swarm.publish(topic_of(snapshot.stage), statement.to_bytes())
        if self._offered is not None and self._offered != digest:
            self._peer.swarm.drop_blob(self._offered)
        self._offered = digest
