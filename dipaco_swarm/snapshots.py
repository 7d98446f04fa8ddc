"""Snapshots for serving, among peers: offered by who trains a path, kept by the bootstrap node, used by guests.

    peer: new best -> blob, statement {path, loss, blob}      bootstrap node, guests: statements -> blob -> checks

What is checked, and by whom. Everybody refuses statements and blobs that are malformed, of another run, stage or path,
of the wrong shape, or not finite, and statements of peers that do not train the path. The bootstrap node also scores
the snapshot on some documents of its routing sample that the router sends to the path: it must be about as good there
as the path's agreed modules are, and the announced loss must not be much lower than the loss found.

What remains. The slice is on the announcing peer's machine, so the announced loss itself is its word: a peer that takes
part in training the path (or says so: anybody may) can claim up to `CLAIM_MARGIN` nats too little, and its snapshot,
which is about as good as the agreed modules or it would have been refused, then stays until an honest loss is lower.
It can make the node fetch and store a blob as large as a path for each statement. A path of which the routing sample
has no document is not audited. A guest (`--run --best`) has no sample and takes the announcer's word after the first
group of checks; whoever wants more uses the bootstrap node's home.
"""

import logging
import math
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path

import numpy as np
from pydantic import ValidationError

from dipaco_swarm.algorithm.paths import ModuleId, PathIndex, PathTable
from dipaco_swarm.algorithm.state import ModuleState
from dipaco_swarm.errors import CheckpointError, UnreachableError
from dipaco_swarm.files import write_whole
from dipaco_swarm.manifest import Manifest
from dipaco_swarm.outer_round import PathInTraining
from dipaco_swarm.swarm.interface import PeerName, Swarm
from dipaco_swarm.training.bank import load_path
from dipaco_swarm.training.documents import read_documents
from dipaco_swarm.training.early import (
    BestSoFar,
    Snapshot,
    SnapshotStatement,
    load_into,
    load_snapshot,
    loss_on,
    misfit,
    snapshot_file,
    snapshot_from_bytes,
    snapshot_to_bytes,
    topic_of,
)
from dipaco_swarm.training.modules import PathModel, build_network
from dipaco_swarm.training.routed import Fetch, load_routing
from dipaco_swarm.training.shards import EvaluationSet, Indices, routing_pieces
from dipaco_swarm.training.tokenizer import load_tokenizer, vocabulary_size

log = logging.getLogger(__name__)

LossOf = Callable[[Mapping[ModuleId, ModuleState]], float]
"""The mean loss of these agreed modules of a path on a slice of its shard, in nats per token."""

HEAR_SECONDS = 20.0
SNAPSHOT_HEADER_BYTES = 1 << 20
BLOB_SECONDS = 600.0
LAST_BLOB_SECONDS = 30.0
"""When a stage is over, whoever has a snapshot may have left."""
COLLECT_SECONDS = 5.0
"""How often the bootstrap node looks for better snapshots."""
LAST_LOOKS_SECONDS = 60.0
AUDITED_PIECES = 16
PIECES_SEARCHED = 64
"""Per path: the router's features of the whole sample would take as long as fitting the router did."""
QUALITY_MARGIN = 0.25
"""Nats by which a snapshot may be worse than the agreed modules on the node's documents: what 16 of them leave open."""
CLAIM_MARGIN = 1.0
"""Nats by which a slice may be easier than the node's documents."""


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
        self._best = _kept(self._file, run)
        self._so_far = BestSoFar(every, self._version, math.inf if self._best is None else self._best.loss)

    def offer_kept(self) -> None:
        """Offer the snapshot that the last time left at home, if there is one."""
        if self._best is not None:
            self._offer(self._best)
        self._best = None  # it is large

    @property
    def _version(self) -> int:
        return min(state.version for state in self._peer.base.values())

    @property
    def too_small(self) -> str | None:
        """What to tell a person whose shard has nothing to score."""
        if self._loss_of is not None:
            return None
        return f"the shard of path {self._peer.path} is too small to hold any of it out: no early stopping for it"

    def look(self) -> str | None:
        """Score the path if that is due, and keep and offer it if it is the best; what to tell a person then.

        Raises HomeError when it cannot be kept; a later call tries again.
        """
        if self._unsaved is not None:
            return self._keep(self._unsaved)
        peer, version = self._peer, self._version
        done = all(peer.is_done(module) for module in peer.modules)
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

    def _keep(self, best: Snapshot) -> str:
        self._unsaved = best
        write_whole(self._file, snapshot_to_bytes(best), durable=True)
        self._offer(best)
        self._unsaved = None
        return str(best)

    def _offer(self, snapshot: Snapshot) -> None:
        digest = self._peer.swarm.put_blob(snapshot_to_bytes(snapshot))
        statement = SnapshotStatement(path=snapshot.path, loss=snapshot.loss, snapshot=digest)
        self._peer.swarm.publish(topic_of(snapshot.stage), statement.to_bytes())
        if self._offered is not None and self._offered != digest:
            self._peer.swarm.drop_blob(self._offered)
        self._offered = digest


class Offers:
    """The statements about one stage's snapshots, checked as far as that goes without fetching anything."""

    def __init__(self, swarm: Swarm, manifest: Manifest, run: str, model: PathModel) -> None:
        self.swarm = swarm
        self.stage = manifest.stage.index
        self.table = PathTable(manifest.stage.table)
        self.model = model
        self._run = run
        self._trainers: set[tuple[PeerName, PathIndex]] = set()
        self._refused: set[tuple[PeerName, str]] = set()

    def heard(self) -> Iterator[tuple[PeerName, SnapshotStatement]]:
        """Statements of peers that train the path, or have been seen to; the lowest loss first."""
        for module in self.table.modules:
            said = self.swarm.members(self.stage, module)
            self._trainers |= {(s.peer, s.path) for s in said if s.path is not None}
        found = []
        for peer, statement in self.swarm.statements(topic_of(self.stage), timeout=HEAR_SECONDS).items():
            try:
                said_best = SnapshotStatement.model_validate_json(statement)
            except ValidationError:
                self.refuse(peer, "", "a statement about a snapshot that is not one")
                continue
            if (peer, said_best.snapshot) in self._refused:
                continue
            if (peer, PathIndex(said_best.path)) in self._trainers:
                found.append((said_best.loss, peer, said_best))
            else:
                # not for good: its announcement may be on its way
                log.info(
                    "passed over peer %s: a snapshot of path %d, which it does not train", peer[-8:], said_best.path
                )
        yield from ((peer, said_best) for _, peer, said_best in sorted(found, key=lambda entry: entry[:2]))

    def fetch(
        self, peer: PeerName, said: SnapshotStatement, timeout: float = BLOB_SECONDS
    ) -> tuple[Snapshot, bytes] | None:
        """The snapshot of a statement, if it comes and is what the statement says."""
        parameters = sum(len(self.model.vector(level)) for level in range(self.model.num_levels))
        try:
            data = self.swarm.fetch_blob(said.snapshot, timeout=timeout, limit=4 * parameters + SNAPSHOT_HEADER_BYTES)
        except UnreachableError:
            return None  # it may be on its way, or a better one has replaced it
        try:
            snapshot = snapshot_from_bytes(data, self._run)
            if (snapshot.stage, snapshot.path, snapshot.loss) != (self.stage, said.path, said.loss):
                raise ValueError("it is not what the statement says")
            if problem := misfit(snapshot, self.model, self.table):
                raise ValueError(problem)
        except ValueError as error:
            self.refuse(peer, said.snapshot, f"a snapshot of path {said.path} that cannot be used: {error}")
            return None
        return snapshot, data

    def refuse(self, peer: PeerName, snapshot: str, what: str) -> None:
        if (peer, snapshot) not in self._refused:
            self._refused.add((peer, snapshot))
            log.warning("ignored peer %s: it sent %s", peer[-8:], what)

    def best(self, path: PathIndex) -> Snapshot | None:
        """The snapshot of a path with the lowest announced loss among those that arrive and fit; None without any."""
        self.swarm.look_up(self.stage, self.table.modules_of(path), timeout=HEAR_SECONDS)
        for peer, said in self.heard():
            if said.path == path and (fetched := self.fetch(peer, said)) is not None:
                return fetched[0]
        return None


def keeper_of(manifest: Manifest, swarm: Swarm, home: Path, run: str, fetch: Fetch) -> "SnapshotKeeper":
    """A bootstrap node's keeper for the manifest's stage."""
    config = manifest.config
    vocabulary = vocabulary_size(load_tokenizer(fetch(manifest.tokenizer)))
    model = PathModel(build_network(config.model, vocabulary, config.seed), config.levels)
    offers = Offers(swarm, manifest, run, model)
    return SnapshotKeeper(offers, home, run, config.router.prefix_tokens, sample_by_path(manifest, fetch))


def sample_by_path(manifest: Manifest, fetch: Fetch) -> Callable[[PathIndex], EvaluationSet]:
    """A few pieces of the routing sample for each path, those that the stage's router sends to it; made when asked."""
    config, stage = manifest.config, manifest.stage

    @cache
    def routed() -> tuple[EvaluationSet, Indices]:
        routing = load_routing(manifest, stage, fetch)
        found = routing_pieces(read_documents(config.data), routing.tokenizer, config.data, config.router)
        found = _rows(found, np.arange(min(len(found.lengths), PIECES_SEARCHED * len(stage.table))))
        return found, routing.paths(found.tokens[:, : config.router.prefix_tokens])

    def of_path(path: PathIndex) -> EvaluationSet:
        pieces, paths = routed()
        return _rows(pieces, np.flatnonzero(paths == path)[:AUDITED_PIECES])

    return of_path


def _rows(pieces: EvaluationSet, rows: Indices) -> EvaluationSet:
    return EvaluationSet(pieces.tokens[rows], pieces.lengths[rows], ("",) * len(rows))


class SnapshotKeeper:
    """The bootstrap node's part: the best snapshot of each path of a stage, as files in its home."""

    def __init__(
        self, offers: Offers, home: Path, run: str, prefix_tokens: int, sample: Callable[[PathIndex], EvaluationSet]
    ) -> None:
        """`sample`: pieces of documents of a path that the node can score; possibly none."""
        self._offers = offers
        self._home = home
        self._run = run
        self._prefix_tokens = prefix_tokens
        self._sample = sample
        self._kept: dict[PathIndex, float] = {}
        self._blobs: dict[PathIndex, str] = {}
        self._looked = -math.inf
        self._over_since = math.inf

    def collect(self, states: Mapping[ModuleId, ModuleState], stage_done: bool) -> list[str]:
        """Take better snapshots than those we have, if it is time to look; what to tell a person.

        `states`: the agreed modules. When the stage is done peers are about to leave: for a minute every call looks,
        and takes what there is. Otherwise calls do so now and then, and for one path, as it may be a large download.
        """
        if stage_done:
            self._over_since = min(self._over_since, self._offers.swarm.clock.monotonic())
        now = 0 <= self._offers.swarm.clock.monotonic() - self._over_since < LAST_LOOKS_SECONDS
        if not now and self._offers.swarm.clock.monotonic() - self._looked < COLLECT_SECONDS:
            return []
        self._looked = self._offers.swarm.clock.monotonic()
        taken = []
        for peer, said in self._offers.heard():
            if said.loss < self._loss_of(PathIndex(said.path)) and (line := self._take(peer, said, states, now)):
                taken.append(line)
                if not now:
                    break
        return taken

    def _take(
        self, peer: PeerName, said: SnapshotStatement, states: Mapping[ModuleId, ModuleState], now: bool
    ) -> str | None:
        fetched = self._offers.fetch(peer, said, LAST_BLOB_SECONDS if now else BLOB_SECONDS)
        if fetched is None:
            return None
        snapshot, data = fetched
        if doubt := self._doubt(snapshot, states):
            self._offers.refuse(peer, said.snapshot, f"a snapshot of path {said.path} that is not believed: {doubt}")
            self._offers.swarm.drop_blob(said.snapshot)
            return None
        write_whole(self._file(snapshot.path), data, durable=True)
        replaced = self._blobs.get(snapshot.path)
        if replaced is not None and replaced != said.snapshot:
            self._offers.swarm.drop_blob(replaced)
        self._blobs[snapshot.path] = said.snapshot
        self._kept[snapshot.path] = snapshot.loss
        return f"keeping {snapshot}"

    def _doubt(self, snapshot: Snapshot, states: Mapping[ModuleId, ModuleState]) -> str | None:
        """Why the node does not believe in a snapshot; None when it does, or has no document of the path."""
        pieces, model = self._sample(snapshot.path), self._offers.model
        if not len(pieces.lengths):
            return None
        load_path(model, self._offers.table, snapshot.path, states)
        agreed = loss_on(model, pieces, self._prefix_tokens)
        load_into(model, snapshot)
        found = loss_on(model, pieces, self._prefix_tokens)
        if not found <= agreed + QUALITY_MARGIN:  # nan is not
            return f"its loss is {found:.3f} where the agreed modules have {agreed:.3f}"
        if snapshot.loss < found - CLAIM_MARGIN:
            return f"it claims a loss of {snapshot.loss:.3f} where it has {found:.3f}"
        return None

    def _loss_of(self, path: PathIndex) -> float:
        """The loss of what we keep; infinite when that is nothing."""
        if path not in self._kept:
            kept = _kept(self._file(path), self._run)
            self._kept[path] = math.inf if kept is None else kept.loss
        return self._kept[path]

    def _file(self, path: PathIndex) -> Path:
        return snapshot_file(self._home, self._offers.stage, path)


def _kept(file: Path, run: str) -> Snapshot | None:
    """The snapshot in our home; a damaged one is said and counts as none, as training goes on without it."""
    try:
        return load_snapshot(file, run)
    except CheckpointError as error:
        log.warning("%s", error)
        return None
