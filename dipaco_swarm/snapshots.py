"""Snapshots for serving, among peers: offered by who trains a path, kept by the bootstrap node, used by guests.

    peer: new best -> blob, statement {path, loss, blob}      bootstrap node, guests: statements -> blob -> checks

What is checked, and by whom. Everybody refuses statements and blobs that are malformed, of another run, stage or path,
of the wrong shape, or not finite, and statements of peers that do not train the path. As a stage may end by these
losses, the bootstrap node takes none meanwhile of who has contributed to nothing, once it knows any that have. It also
scores the snapshot on some documents of its routing sample that the router sends to the path: it must be about as good
there as the path's agreed modules are, and the announced loss must not be much lower than the loss found.

What remains. The slice is on the announcing peer's machine, so the announced loss itself is its word: a peer that takes
part in training the path can claim up to `CLAIM_MARGIN` nats too little, and its snapshot,
which is about as good as the agreed modules or it would have been refused, then stays until an honest loss is lower.
It can make the node fetch a blob as large as a path now and then, beside its other work; what is refused is not
stored. A path of which the routing sample
has no document is not audited. A guest (`--run --best`) has no sample and takes the announcer's word after the first
group of checks; whoever wants more uses the bootstrap node's home.
"""

import logging
from collections.abc import Iterator
from pathlib import Path

from dipaco_swarm.algorithm.paths import PathIndex, PathTable
from dipaco_swarm.errors import CheckpointError
from dipaco_swarm.run.manifest import Manifest
from dipaco_swarm.swarm.interface import PeerName, Swarm
from dipaco_swarm.swarm.statements import StatementCollector
from dipaco_swarm.training.early import (
    PathShape,
    Snapshot,
    SnapshotStatement,
    load_snapshot,
    misfit,
    snapshot_from_bytes,
    topic_of,
)

log = logging.getLogger(__name__)

SNAPSHOT_HEADER_BYTES = 1 << 20
BLOB_SECONDS = 600.0


class Offers:
    """The statements about one stage's snapshots, checked as far as that goes without documents to score."""

    def __init__(self, swarm: Swarm, manifest: Manifest, run: str, shape: PathShape) -> None:
        self.swarm = swarm
        self.stage = manifest.stage.index
        self._table = PathTable(manifest.stage.table)
        self._shape = shape
        self._run = run
        self._statements = StatementCollector(
            swarm, self.stage, self._table, topic_of(self.stage), SnapshotStatement.model_validate_json, "a snapshot"
        )

    def heard(self) -> Iterator[tuple[PeerName, SnapshotStatement]]:
        """Statements of peers that train the path, or have been seen to; the lowest loss first, strangers' last: else
        whoever claims the lowest one would be asked before all others, with every name that it makes up."""
        strange = self.is_strange
        yield from sorted(self._statements.heard(), key=lambda entry: (strange(entry[0]), entry[1].loss, entry[0]))

    def is_strange(self, peer: PeerName) -> bool:
        """Whether a peer has contributed to nothing that we know of, while others have."""
        return self._statements.is_strange(peer)

    def fetch(
        self, peer: PeerName, said: SnapshotStatement, timeout: float = BLOB_SECONDS
    ) -> tuple[Snapshot, bytes] | None:
        """The snapshot of a statement, if it comes and is what the statement says."""

        def read(data: bytes) -> Snapshot:
            snapshot = snapshot_from_bytes(data, self._run)
            if (snapshot.stage, snapshot.path, snapshot.loss) != (self.stage, said.path, said.loss):
                raise ValueError("it is not what the statement says")
            if problem := misfit(snapshot, self._shape, self._table):
                raise ValueError(problem)
            return snapshot

        parameters = sum(self._shape.size(level) for level in range(self._shape.num_levels))
        limit = 4 * parameters + SNAPSHOT_HEADER_BYTES
        return self._statements.fetch(peer, said, read, timeout=timeout, limit=limit)

    def accept(self, peer: PeerName) -> None:
        """This peer's snapshot is of use."""
        self._statements.accept(peer)

    def refuse(self, peer: PeerName, said: SnapshotStatement, why: str) -> None:
        """Look at this snapshot no more."""
        self._statements.refuse(peer, said, why)

    def best(self, path: PathIndex) -> Snapshot | None:
        """The snapshot of a path with the lowest announced loss among those that arrive and fit; None without any."""
        self.swarm.look_up(self.stage, self._table.modules_of(path), timeout=self.swarm.timing.look_up)
        for peer, said in self.heard():
            if said.path == path and (fetched := self.fetch(peer, said)) is not None:
                return fetched[0]
        return None


def snapshot_at_home(file: Path, run: str) -> Snapshot | None:
    """The snapshot in our home; a damaged one is said and counts as none, as training goes on without it."""
    try:
        return load_snapshot(file, run)
    except CheckpointError as error:
        log.warning("%s", error)
        return None
