"""The bootstrap node's part of early stopping: the best snapshot of each path of a stage, as files in its home."""

import math
from pathlib import Path

from dipaco_swarm.algorithm.paths import PathIndex
from dipaco_swarm.events.volunteer import BestSnapshot
from dipaco_swarm.files import write_whole
from dipaco_swarm.operator.workshop import SnapshotJudge, States
from dipaco_swarm.run.manifest import Manifest
from dipaco_swarm.snapshots import BLOB_SECONDS, Offers, snapshot_at_home
from dipaco_swarm.swarm.interface import PeerName, Swarm
from dipaco_swarm.training.early import SnapshotStatement, snapshot_file

LAST_BLOB_SECONDS = 30.0
"""When a stage is over, whoever has a snapshot may have left."""
COLLECT_SECONDS = 5.0
"""How often the bootstrap node looks for better snapshots."""
LAST_LOOKS_SECONDS = 60.0


def keeper_of(manifest: Manifest, swarm: Swarm, home: Path, run: str, judge: SnapshotJudge) -> "SnapshotKeeper":
    """A keeper for the manifest's stage."""
    return SnapshotKeeper(Offers(swarm, manifest, run, judge.shape), home, run, judge)


class SnapshotKeeper:
    """Looks for better snapshots than those in the node's home."""

    def __init__(self, offers: Offers, home: Path, run: str, judge: SnapshotJudge) -> None:
        self._offers = offers
        self._clock = offers.swarm.clock
        self._home = home
        self._run = run
        self._judge = judge
        self._kept: dict[PathIndex, float] = {}
        self._blobs: dict[PathIndex, str] = {}
        self._looked = -math.inf
        self._over_since = math.inf

    def collect(self, states: States, stage_done: bool) -> list[BestSnapshot]:
        """Take better snapshots than those we have, if it is time to look; what to report.

        `states`: the agreed modules. When the stage is done peers are about to leave: for a minute every call looks,
        and takes what there is. Otherwise calls do so now and then, and for one path, as it may be a large download.
        """
        if stage_done:
            self._over_since = min(self._over_since, self._clock.monotonic())
        now = 0 <= self._clock.monotonic() - self._over_since < LAST_LOOKS_SECONDS
        if not now and self._clock.monotonic() - self._looked < COLLECT_SECONDS:
            return []
        self._looked = self._clock.monotonic()
        taken = []
        for peer, said in self._offers.heard():
            if said.loss < self._loss_of(PathIndex(said.path)) and (best := self._take(peer, said, states, now)):
                taken.append(best)
                if not now:
                    break
        return taken

    @property
    def losses(self) -> dict[PathIndex, float]:
        """Of the best snapshot of each path that has one, in nats."""
        return {path: loss for path, loss in self._kept.items() if math.isfinite(loss)}

    def _take(self, peer: PeerName, said: SnapshotStatement, states: States, now: bool) -> BestSnapshot | None:
        fetched = self._offers.fetch(peer, said, LAST_BLOB_SECONDS if now else BLOB_SECONDS)
        if fetched is None:
            return None
        snapshot, data = fetched
        if doubt := self._judge.doubt(snapshot, states):
            self._offers.refuse(peer, said, f"it is not believed: {doubt}")
            self._offers.swarm.drop_blob(said.snapshot)
            return None
        write_whole(self._file(snapshot.path), data, durable=True)
        replaced = self._blobs.get(snapshot.path)
        if replaced is not None and replaced != said.snapshot:
            self._offers.swarm.drop_blob(replaced)
        self._blobs[snapshot.path] = said.snapshot
        self._kept[snapshot.path] = snapshot.loss
        return BestSnapshot(snapshot.path, snapshot.loss, snapshot.named_versions, kept=True)

    def _loss_of(self, path: PathIndex) -> float:
        """The loss of what we keep; infinite when that is nothing."""
        if path not in self._kept:
            kept = snapshot_at_home(self._file(path), self._run)
            self._kept[path] = math.inf if kept is None else kept.loss
        return self._kept[path]

    def _file(self, path: PathIndex) -> Path:
        return snapshot_file(self._home, self._offers.stage, path)
