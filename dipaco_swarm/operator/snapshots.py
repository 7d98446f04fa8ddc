"""The bootstrap node's part of early stopping: the best snapshot of each path of a stage, as files in its home."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from dipaco_swarm.algorithm.paths import PathIndex
from dipaco_swarm.events.volunteer import BestSnapshot
from dipaco_swarm.files import write_whole
from dipaco_swarm.machine.beside import Beside, Work
from dipaco_swarm.operator.workshop import SnapshotJudge, States
from dipaco_swarm.run.manifest import Manifest
from dipaco_swarm.snapshots import Offers, snapshot_at_home
from dipaco_swarm.swarm.interface import PeerName, Swarm
from dipaco_swarm.training.early import Snapshot, SnapshotStatement, snapshot_file

LAST_BLOB_SECONDS = 30.0
"""When a stage is over, whoever has a snapshot may have left."""
COLLECT_SECONDS = 5.0
"""How often the bootstrap node looks for better snapshots."""
LAST_LOOKS_SECONDS = 60.0


def keeper_of(
    manifest: Manifest, swarm: Swarm, home: Path, run: str, judge: SnapshotJudge, beside: Beside
) -> "SnapshotKeeper":
    """A keeper for the manifest's stage."""
    return SnapshotKeeper(Offers(swarm, manifest, run, judge.shape), home, run, judge, beside)


@dataclass(frozen=True)
class Coming:
    """A snapshot on its way, beside the node's loop: whoever names it may send it as slowly as it likes."""

    peer: PeerName
    said: SnapshotStatement
    work: Work[tuple[Snapshot, bytes] | None]


class SnapshotKeeper:
    """Looks for better snapshots than those in the node's home."""

    def __init__(self, offers: Offers, home: Path, run: str, judge: SnapshotJudge, beside: Beside) -> None:
        self._offers = offers
        self._clock = offers.swarm.clock
        self._home = home
        self._run = run
        self._judge = judge
        self._beside = beside
        self._coming: Coming | None = None
        self._kept: dict[PathIndex, float] = {}
        self._blobs: dict[PathIndex, str] = {}
        self._looked = -math.inf
        self._over_since = math.inf

    def collect(self, states: States, stage_done: bool) -> list[BestSnapshot]:
        """Take better snapshots than those we have; what to report.

        `states`: the agreed modules. During a stage one is fetched at a time, beside the node's loop, as it may be
        large. When the stage is done peers are about to leave: for a minute every call takes what there is.
        """
        if stage_done:
            self._over_since = min(self._over_since, self._clock.monotonic())
        hurried = 0 <= self._clock.monotonic() - self._over_since < LAST_LOOKS_SECONDS
        taken = self._take_last_ones(states) if hurried else []
        if not hurried and self._coming is None:
            self._begin()
        coming = self._coming
        if coming is not None and coming.work.is_over:
            self._coming = None
            taken.append(self._take(coming.peer, coming.said, coming.work.result(), states))
        return [best for best in taken if best is not None]

    def _begin(self) -> None:
        """Have a better snapshot fetched, if it is time; a stage may end by it, so none of a stranger."""
        if self._clock.monotonic() - self._looked < COLLECT_SECONDS:
            return
        self._looked = self._clock.monotonic()
        for peer, said in (entry for entry in self._better() if not self._offers.is_strange(entry[0])):
            fetch = partial(self._offers.fetch, peer, said)
            self._coming = Coming(peer, said, self._beside.begin(fetch, "snapshot"))
            return

    def _take_last_ones(self, states: States) -> list[BestSnapshot | None]:
        """Whatever comes now, for as long as one may take: who sends slowly on purpose holds up no more than that."""
        began, taken = self._clock.monotonic(), []
        under_way = None if self._coming is None else self._coming.said
        for peer, said in self._better():
            if self._clock.monotonic() - began >= LAST_BLOB_SECONDS:
                break
            if said != under_way:
                fetched = self._offers.fetch(peer, said, LAST_BLOB_SECONDS)
                taken.append(self._take(peer, said, fetched, states))
        return taken

    def _better(self) -> Iterator[tuple[PeerName, SnapshotStatement]]:
        """Statements about better snapshots than what we have by the time they are come to."""
        return (entry for entry in self._offers.heard() if entry[1].loss < self._loss_of(PathIndex(entry[1].path)))

    @property
    def losses(self) -> dict[PathIndex, float]:
        """Of the best snapshot of each path that has one, in nats."""
        return {path: loss for path, loss in self._kept.items() if math.isfinite(loss)}

    def _take(
        self, peer: PeerName, said: SnapshotStatement, fetched: tuple[Snapshot, bytes] | None, states: States
    ) -> BestSnapshot | None:
        """Keep what was fetched, if it is believed; what to report."""
        if fetched is None:
            return None
        (snapshot, data), swarm = fetched, self._offers.swarm
        if snapshot.loss >= self._loss_of(snapshot.path):
            return None  # a better one came while it was on its way
        if doubt := self._judge.doubt(snapshot, states):
            self._offers.refuse(peer, said, f"it is not believed: {doubt}")
            return None
        write_whole(self._file(snapshot.path), data, durable=True)
        swarm.put_blob(data)
        self._offers.accept(peer)
        replaced = self._blobs.get(snapshot.path)
        if replaced is not None and replaced != said.snapshot:
            swarm.drop_blob(replaced)
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
