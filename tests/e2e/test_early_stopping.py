"""Early stopping among peers of one process: who keeps what, who believes whom, and what `--best` serves."""

import logging
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Generic, TypeVar

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from dipaco_swarm.algorithm.paths import ModuleId, PathIndex, PathTable, grid
from dipaco_swarm.algorithm.state import ModuleState
from dipaco_swarm.cli import swarm as cli
from dipaco_swarm.client import sources
from dipaco_swarm.client import visits as use
from dipaco_swarm.client.exporting import Wanted, export
from dipaco_swarm.client.sources import open_run
from dipaco_swarm.errors import UnreachableError
from dipaco_swarm.machine.beside import Beside
from dipaco_swarm.operator.snapshots import LAST_BLOB_SECONDS, SnapshotKeeper
from dipaco_swarm.operator.training_workshop import CLAIM_MARGIN, SnapshotAudit
from dipaco_swarm.outer_round import adopt
from dipaco_swarm.path_in_training import PathInTraining
from dipaco_swarm.peer.snapshots import LossOf, OwnSnapshots
from dipaco_swarm.run.address import RunAddress
from dipaco_swarm.run.config import OuterConfig
from dipaco_swarm.run.file import parse_run_file
from dipaco_swarm.run.manifest import Manifest
from dipaco_swarm.run.signature import open_manifest, signer_of
from dipaco_swarm.simulate import simulate
from dipaco_swarm.snapshots import Offers
from dipaco_swarm.swarm.interface import Announcement, PeerName, Role
from dipaco_swarm.swarm.networked import NetworkedSwarm
from dipaco_swarm.swarm.statements import LINES_A_MINUTE
from dipaco_swarm.swarm.states.blobs import BlobStore, MemoryBlobs
from dipaco_swarm.training.early import (
    Snapshot,
    SnapshotStatement,
    load_snapshot,
    loss_on,
    run_of,
    score_agreed,
    snapshot_file,
    snapshot_to_bytes,
    topic_of,
)
from dipaco_swarm.training.modules import PathModel
from dipaco_swarm.training.packing import ShardProgress
from dipaco_swarm.training.pieces import EvaluationSet
from dipaco_swarm.training.shards import Shard
from tests.doors.test_manifest import manifest as small_manifest
from tests.e2e.conftest import write_run_file
from tests.e2e.test_reference import LENGTH, TWO_LEVELS, VOCABULARY, MakeHub, make_peers, new_model, run_rounds
from tests.hub import BOOTSTRAP, Hub, hear, until

RUN = "small:fingerprint"
T = TypeVar("T")
P0, P1 = PathIndex(0), PathIndex(1)
TABLE = grid([2, 1])


# ----------------------------------------------------------------------------------------------------------- one peer


def a_peer(hub: Hub) -> PathInTraining:
    return make_peers(hub, grid([1, 1]), [0], TWO_LEVELS, OuterConfig(), inner_steps=2)[0]


def a_shard(pieces: int) -> Shard:
    """Some sequences, and a slice of so many pieces."""
    tokens = np.random.default_rng(1).integers(0, VOCABULARY, (pieces, 1 + LENGTH)).astype(np.int32)
    tokens[:, 0] = LENGTH
    return Shard(np.zeros((4, LENGTH), dtype=np.uint16), ShardProgress(), tokens if pieces else None)


def own(
    peer: PathInTraining, home: Path, *, pieces: int = 3, every: int = 1, loss_of: LossOf | None = None
) -> OwnSnapshots:
    """With a slice of so many pieces, or with these losses."""
    held_out, model = a_shard(pieces).slice(64), peer.model
    if held_out is not None and loss_of is None:
        assert isinstance(model, PathModel)
        loss_of = partial(score_agreed, model, pieces=held_out, prefix_tokens=4)
    snapshots = OwnSnapshots(peer, every, loss_of, home, RUN)
    snapshots.offer_kept()
    return snapshots


def to_version(peer: PathInTraining, version: int) -> None:
    """As if so many rounds had been made; each version has parameters of its own."""
    for module, state in peer.base.items():
        params = torch.full_like(state.params, float(version))
        adopt(peer, module, ModuleState(version, params, state.momentum))


def said(peer: PathInTraining) -> SnapshotStatement | None:
    statement = peer.swarm.statements(topic_of(0), timeout=1).get(peer.swarm.peer)
    return None if statement is None else SnapshotStatement.model_validate_json(statement)


def offers(peer: PathInTraining, loss: float) -> SnapshotStatement:
    """Waits until the peer says that it has a snapshot of this loss; what it says."""
    until(lambda: (now := said(peer)) is not None and now.loss == loss)
    statement = said(peer)
    assert statement is not None
    return statement


def test_a_peer_keeps_and_offers_the_version_with_the_lowest_loss(make_hub: MakeHub, tmp_path: Path) -> None:
    losses = dict(enumerate([4.0, 3.5, 3.7, 3.2, 3.4, 3.3], 1))
    peer = a_peer(make_hub())

    def loss_of(base: Mapping[ModuleId, ModuleState]) -> float:
        return losses[base[ModuleId(0, 0)].version]

    snapshots = own(peer, tmp_path, loss_of=loss_of)
    told = []
    for version in losses:
        to_version(peer, version)
        told.append(snapshots.look() is not None)
        assert snapshots.look() is None  # not twice
    assert told == [True, True, False, True, False, False]
    kept = load_snapshot(snapshot_file(tmp_path, 0, P0), RUN)
    assert kept is not None
    assert (kept.loss, set(kept.versions.values())) == (3.2, {4})
    assert all((params == 4.0).all() for params in kept.params.values())
    assert peer.swarm.fetch_blob(offers(peer, 3.2).snapshot, timeout=1) == snapshot_to_bytes(kept)

    # the peer starts again: it offers what it has, and only a lower loss replaces it
    peer = a_peer(make_hub())
    to_version(peer, 6)
    snapshots = own(peer, tmp_path, loss_of=loss_of)
    offers(peer, 3.2)
    for version, loss in ((7, 3.3), (8, 3.1)):
        losses[version] = loss
        to_version(peer, version)
        assert (snapshots.look() is not None) == (loss == 3.1)
    again = load_snapshot(snapshot_file(tmp_path, 0, P0), RUN)
    assert again is not None
    assert again.loss == offers(peer, 3.1).loss == 3.1


def test_the_agreed_modules_are_kept_and_local_progress_is_neither_kept_nor_lost(
    make_hub: MakeHub, tmp_path: Path
) -> None:
    peer = a_peer(make_hub())
    run_rounds([peer], 2)
    progress = [peer.model.vector(level) * 1.5 for level in range(2)]
    for level, vector in enumerate(progress):
        peer.model.load(level, vector)
    assert own(peer, tmp_path / "late").look() is None  # nothing has happened since it began
    early = a_peer(make_hub())
    snapshots = own(early, tmp_path)
    early.progress = peer.progress
    for level, vector in enumerate(progress):
        early.model.load(level, vector)
    assert snapshots.look() is not None
    kept = load_snapshot(snapshot_file(tmp_path, 0, P0), RUN)
    assert kept is not None
    for level, vector in enumerate(progress):
        assert torch.equal(early.model.vector(level), vector)
        assert torch.equal(kept.params[ModuleId(level, 0)], peer.base[ModuleId(level, 0)].params)


def test_a_damaged_snapshot_at_home_does_not_keep_a_peer_from_training(
    hub: Hub, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = snapshot_file(tmp_path, 0, P0)
    file.parent.mkdir()
    file.write_bytes(b"torn")
    peer = a_peer(hub)
    snapshots = own(peer, tmp_path)
    assert "cannot be used" in caplog.text
    to_version(peer, 1)
    assert snapshots.look() is not None
    assert load_snapshot(file, RUN) is not None


def test_a_shard_without_a_slice_has_no_snapshot_and_says_so(hub: Hub, tmp_path: Path) -> None:
    peer = a_peer(hub)
    snapshots = own(peer, tmp_path, pieces=0)
    to_version(peer, 5)
    assert snapshots.look() is None
    assert not snapshot_file(tmp_path, 0, P0).exists()
    assert peer.swarm.statements(topic_of(0), timeout=1) == {}


# ----------------------------------------------------------------------------------------------- who believes whom


class Later:
    """`Beside` whose work is done when the test says so; at once, unless it is told to wait."""

    def __init__(self, *, waits: bool = False) -> None:
        self.waits = waits
        self.begun: list[Begun[Any]] = []

    def begin(self, work: Callable[[], T], name: str) -> "Begun[T]":
        self.begun.append(begun := Begun(work))
        if not self.waits:
            begun.finish()
        return begun


class Begun(Generic[T]):
    """`Work` of that."""

    def __init__(self, work: Callable[[], T]) -> None:
        self._work = work
        self._found: list[T] = []

    @property
    def is_over(self) -> bool:
        return bool(self._found)

    def finish(self) -> None:
        self._found.append(self._work())

    def result(self) -> T:
        return self._found[0]


class Node:
    """A bootstrap node that keeps snapshots of two paths which share their second module."""

    def __init__(self, home: Path, hub: Hub) -> None:
        self.hub = hub
        self.home = home
        self.swarm = hub.swarm("node")
        self.model = new_model(TWO_LEVELS)
        generator = torch.Generator().manual_seed(0)
        self.states = {
            m: ModuleState.seed(0.1 * torch.randn(self.model.size(m.level), generator=generator)) for m in TABLE.modules
        }
        tokens = np.random.default_rng(2).integers(0, VOCABULARY, (5, LENGTH))
        self.pieces = EvaluationSet(tokens, np.full(5, LENGTH), ("",) * 5)
        self.honest = self.snapshot(P0, 0.0)
        self.honest = replace(self.honest, loss=self.found(self.honest))
        self.swarm.announce(
            [
                Announcement(self.swarm.peer, 0, m, None, 0, self.states[m].digest, role=Role.KEEPS)
                for m in TABLE.modules
            ]
        )

    def found(self, snapshot: Snapshot) -> float:
        """What the node finds."""
        for module, params in snapshot.params.items():
            self.model.load(module.level, params)
        return loss_on(self.model, self.pieces, 4)

    def snapshot(self, path: PathIndex, loss: float, scale: float = 1.0) -> Snapshot:
        modules = TABLE.modules_of(path)
        params = {m: scale * self.states[m].params for m in modules}
        return Snapshot(RUN, 0, path, loss, dict.fromkeys(modules, 3), params)

    def manifest(self) -> Manifest:
        """Only its stage and the length of prefixes are looked at."""
        bare = small_manifest()
        stage = bare.stage.model_copy(update={"table": TABLE.rows})
        router = bare.config.router.model_copy(update={"prefix_tokens": 4})
        config = bare.config.model_copy(update={"router": router})
        return bare.model_copy(update={"config": config, "stages": (stage,)})

    def offers(self) -> Offers:
        return Offers(self.swarm, self.manifest(), RUN, self.model)

    def keeper(self, sample: EvaluationSet | None = None, beside: Beside | None = None) -> SnapshotKeeper:
        pieces = sample or self.pieces
        judge = SnapshotAudit(self.manifest(), self.model, lambda path: pieces)
        return SnapshotKeeper(self.offers(), self.home, RUN, judge, beside or Later())

    def peer(self, name: str, path: int | None = 0) -> NetworkedSwarm:
        """One that trains the path, and whom the node has heard."""
        swarm = self.hub.swarm(name)
        if path is not None:
            modules = TABLE.modules_of(PathIndex(path))
            swarm.announce([Announcement(swarm.peer, 0, m, PathIndex(path), 3, "d" * 64) for m in modules])
        hear([self.swarm, swarm], 0, TABLE.modules)
        return swarm

    def offer(self, swarm: NetworkedSwarm, snapshot: Snapshot, /, **lies: object) -> None:
        digest = swarm.put_blob(snapshot_to_bytes(snapshot))
        fields = {"path": snapshot.path, "loss": snapshot.loss, "snapshot": digest} | lies
        self.say(swarm, SnapshotStatement.model_validate(fields).to_bytes())

    def say(self, swarm: NetworkedSwarm, statement: bytes) -> None:
        """Returns when the node can hear it."""
        swarm.publish(topic_of(0), statement)
        until(lambda: self.swarm.statements(topic_of(0), timeout=10).get(swarm.peer) == statement)

    def blobs(self) -> list[str]:
        """What the node serves."""
        blobs = self.swarm._store.blobs
        assert isinstance(blobs, MemoryBlobs)
        return list(blobs._blobs)

    def kept(self, path: PathIndex = P0) -> Snapshot | None:
        return load_snapshot(snapshot_file(self.home, 0, path), RUN)


@pytest.fixture
def node(tmp_path: Path, hub: Hub) -> Node:
    return Node(tmp_path, hub)


def test_the_node_keeps_the_lowest_honest_loss_of_each_path(node: Node) -> None:
    keeper = node.keeper()
    ada, ben = node.peer("ada"), node.peer("ben", 1)
    node.offer(ada, node.honest)
    node.offer(ben, node.snapshot(P1, node.honest.loss + 0.1))
    assert len(keeper.collect(node.states, stage_done=True)) == 2
    assert keeper.collect(node.states, stage_done=True) == []
    better = node.snapshot(P0, node.honest.loss - 0.1, scale=0.99)
    node.offer(node.peer("cleo"), better)
    node.offer(ada, node.snapshot(P0, node.honest.loss - 0.05))
    (best,) = keeper.collect(node.states, stage_done=True)
    assert (best.path, best.loss, best.kept) == (0, better.loss, True)
    kept = node.kept()
    assert kept is not None
    assert kept.loss == better.loss

    # started again it knows what it has
    node.say(ada, b"")
    assert node.keeper().collect(node.states, stage_done=True) == []
    assert kept.loss == better.loss


def test_a_peer_that_is_about_to_leave_is_still_heard(node: Node) -> None:
    """It trains no more, and says so while it hands over what it has."""
    keeper = node.keeper()
    ada = node.peer("ada")
    assert keeper.collect(node.states, stage_done=True) == []
    node.offer(ada, node.honest)
    ada.announce([Announcement(ada.peer, 0, m, None, 3, "d" * 64, role=Role.HOLDS) for m in TABLE.modules_of(P0)])
    hear([node.swarm, ada], 0, TABLE.modules)
    assert len(keeper.collect(node.states, stage_done=True)) == 1


def test_during_a_stage_the_node_looks_now_and_then(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr(NetworkedSwarm, "clock", SimpleNamespace(monotonic=lambda: clock[0]))
    keeper = node.keeper()
    node.offer(node.peer("ada"), node.honest)
    node.offer(node.peer("ben", 1), node.snapshot(P1, node.honest.loss))
    assert len(keeper.collect(node.states, stage_done=False)) == 1  # one large download at a time
    assert keeper.collect(node.states, stage_done=False) == []
    clock[0] += 10
    assert len(keeper.collect(node.states, stage_done=False)) == 1


LIES = ("stranger", "too good", "bad parameters", "another path", "wrong loss", "torn", "short", "nan", "no blob")


@pytest.mark.parametrize("lie", LIES)
@pytest.mark.parametrize("first", [True, False])
def test_a_lie_does_not_replace_an_honest_snapshot(
    node: Node, lie: str, first: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    honest, liar, keeper = node.peer("ada"), node.peer("liar", None if lie == "stranger" else 0), node.keeper()
    good = node.honest.loss
    if not first:
        node.offer(honest, node.honest)
        keeper.collect(node.states, stage_done=True)
    match lie:
        case "stranger":
            node.offer(liar, node.snapshot(P0, good - 0.1))
        case "too good":
            node.offer(liar, node.snapshot(P0, good - CLAIM_MARGIN - 0.01))
        case "bad parameters":
            node.offer(liar, node.snapshot(P0, good - 0.1, scale=30.0))
        case "another path":
            node.offer(liar, node.snapshot(P1, good - 0.1), path=0)
        case "wrong loss":
            node.offer(liar, node.snapshot(P0, good), loss=good - 0.1)
        case "torn":
            digest = liar.put_blob(snapshot_to_bytes(node.snapshot(P0, good - 0.1))[:-5])
            node.offer(liar, node.snapshot(P0, good - 0.1), snapshot=digest)
        case "short":
            bad = node.snapshot(P0, good - 0.1)
            node.offer(liar, replace(bad, params={m: p[:-1].clone() for m, p in bad.params.items()}))
        case "nan":
            node.offer(liar, node.snapshot(P0, good - 0.1, scale=math.nan))
        case "no blob":
            node.offer(liar, node.snapshot(P0, good - 0.1), snapshot="0" * 64)
    keeper.collect(node.states, stage_done=True)
    if first:
        assert node.kept() is None
        node.offer(honest, node.honest)
        keeper.collect(node.states, stage_done=True)
    kept = node.kept()
    assert kept is not None
    assert kept.loss == good
    assert all(torch.equal(kept.params[m], node.honest.params[m]) for m in kept.params)
    if lie != "no blob":  # it may just be late
        assert "liar" in caplog.text  # never in silence


def test_what_is_not_a_statement_is_named_once(node: Node, caplog: pytest.LogCaptureFixture) -> None:
    keeper = node.keeper()
    node.say(node.peer("liar"), b'{"path": 0}')
    node.offer(node.peer("ada"), node.honest)
    for _ in range(3):
        keeper.collect(node.states, stage_done=True)
    assert caplog.text.count("ignored peer liar") == 1
    assert node.kept() is not None


def test_the_node_waits_for_no_snapshot(node: Node) -> None:
    """Whoever names one may send it as slowly as it likes: meanwhile the node does all its other work."""
    beside = Later(waits=True)
    keeper = node.keeper(beside=beside)
    node.offer(node.peer("ada"), node.honest)
    assert keeper.collect(node.states, stage_done=False) == []
    assert keeper.collect(node.states, stage_done=False) == []
    (begun,) = beside.begun
    ben = node.peer("ben", 1)
    node.offer(ben, node.snapshot(P1, node.honest.loss))
    (last,) = keeper.collect(node.states, stage_done=True)  # who is about to leave is heard meanwhile
    assert last.path == P1
    begun.finish()
    (best,) = keeper.collect(node.states, stage_done=True)
    assert best.loss == node.honest.loss


def test_at_the_end_of_a_stage_the_node_waits_not_long_however_many_names_say_something(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [100.0]
    monkeypatch.setattr(NetworkedSwarm, "clock", SimpleNamespace(monotonic=lambda: clock[0]))
    for name in ("ada", "ben", "cleo", "dora", "eve", "finn"):
        node.offer(node.peer(name), node.snapshot(P0, 0.0), snapshot="0" * 64)

    def never(swarm: NetworkedSwarm, digest: str, *, timeout: float, **_: object) -> bytes:
        clock[0] += timeout
        raise UnreachableError("nobody sends it")

    monkeypatch.setattr(NetworkedSwarm, "fetch_blob", never)
    assert node.keeper().collect(node.states, stage_done=True) == []
    assert clock[0] - 100.0 < 2 * LAST_BLOB_SECONDS


def test_whose_blob_never_comes_rests_the_longer_the_more_often_and_others_are_asked(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One free name that claims the lowest loss, with a new digest whenever it has been asked."""
    clock, asked, looks = [100.0], list[tuple[float, str | None]](), 120
    dripper = node.peer("dripper")
    node.offer(node.peer("ada"), node.honest)
    honest = node.swarm.statements(topic_of(0), timeout=10)
    monkeypatch.setattr(NetworkedSwarm, "clock", SimpleNamespace(monotonic=lambda: clock[0]))
    fetch = NetworkedSwarm.fetch_blob

    def slowly(swarm: NetworkedSwarm, digest: str, *, timeout: float, limit: int, of: str) -> bytes:
        asked.append((timeout, of))
        if of == "dripper":
            clock[0] += timeout
        return fetch(swarm, digest, timeout=timeout, limit=limit, of=of)

    monkeypatch.setattr(NetworkedSwarm, "fetch_blob", slowly)
    keeper, began, taken = node.keeper(), clock[0], []
    for look in range(looks):
        said = SnapshotStatement(path=0, loss=0.0, snapshot=f"{look // 10:064x}")
        monkeypatch.setattr(
            node.swarm, "statements", lambda *_, said=said, **__: honest | {dripper.peer: said.to_bytes()}
        )
        taken += keeper.collect(node.states, stage_done=False)
        clock[0] += 5.0
    assert [best.loss for best in taken] == [node.honest.loss]
    waited = [timeout for timeout, of in asked if of == "dripper"]
    assert sum(waited) < 0.2 * (clock[0] - began)
    assert max(waited) < 30.0  # for a small snapshot


def test_what_is_refused_is_not_kept_and_what_was_there_before_is(node: Node) -> None:
    tokenizer = node.swarm.put_blob(b"the run's tokenizer")
    keeper, liar, other = node.keeper(), node.peer("liar"), node.peer("other")
    node.offer(liar, node.snapshot(P0, node.honest.loss - 0.1, scale=30.0))
    node.offer(other, node.snapshot(P0, 0.1), snapshot=tokenizer)
    node.offer(node.peer("torn"), node.snapshot(P0, 0.1), snapshot=liar.put_blob(b"torn"))
    keeper.collect(node.states, stage_done=True)
    assert node.blobs() == [tokenizer]
    node.offer(node.peer("ada"), node.honest)
    assert len(keeper.collect(node.states, stage_done=True)) == 1
    assert len(node.blobs()) == 2


def test_what_is_remembered_and_said_of_statements_has_an_end(
    node: Node, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    offers, names = node.offers(), 40
    said = SnapshotStatement(path=0, loss=0.5, snapshot="0" * 64)

    def at(look: int) -> dict[PeerName, bytes]:
        return {PeerName(f"{look}-{name}"): said.to_bytes() if name % 2 else b"{" for name in range(names)}

    for look in range(5):
        monkeypatch.setattr(node.swarm, "statements", lambda *_, look=look, **__: at(look))
        assert list(offers.heard()) == []
    assert len([record for record in caplog.records if record.levelno == logging.WARNING]) <= LINES_A_MINUTE
    assert len(offers._statements._records) <= names


def test_a_path_that_the_sample_has_nothing_of_is_taken_on_trust(node: Node) -> None:
    nothing = EvaluationSet(node.pieces.tokens[:0], node.pieces.lengths[:0], ())
    node.offer(node.peer("ada"), node.snapshot(P0, 0.5))
    assert len(node.keeper(nothing).collect(node.states, stage_done=True)) == 1


def test_a_guest_takes_the_lowest_loss_that_arrives_and_fits(node: Node) -> None:
    assert node.offers().best(P0) is None
    for name, loss, scale in (("ada", 3.5, 1.0), ("ben", 3.1, 1.01), ("cleo", 3.3, 1.02)):
        node.offer(node.peer(name), node.snapshot(P0, loss, scale))
    node.offer(node.peer("gone"), node.snapshot(P0, 1.0), snapshot="0" * 64)
    node.offer(node.peer("broken"), node.snapshot(P0, 1.1, math.nan))
    node.offer(node.peer("stranger", None), node.snapshot(P0, 1.2))
    best = node.offers().best(P0)
    assert best is not None
    assert best.loss == 3.1
    assert node.offers().best(P1) is None


# -------------------------------------------------------------------------------------------------------- a whole run


class Simulated:
    """A run of two peers on paths 0 and 3 of 2x2, with early stopping; homes are folders."""

    def __init__(self, folder: Path, early_stopping: str) -> None:
        self.folder = folder
        folder.mkdir()
        run_file = write_run_file(folder / "RUN.toml", min_peers=2, inner_steps=3, rounds=3, warmup=1)
        text = run_file.read_text() + f"\n[early_stopping]\n{early_stopping}\n"
        self.states = simulate(parse_run_file(text), folder, {"ada": 0, "ben": 3})
        signed = (self.bootstrap / "manifest.json").read_bytes()
        self.manifest = open_manifest(signed, signer_of(signed))
        self.address = RunAddress("small", signer_of(signed), ())
        self.run = run_of("small", signer_of(signed))

    @property
    def bootstrap(self) -> Path:
        return self.folder / "bootstrap"

    def comes_back(self, hub: Hub, name: str, path: PathIndex) -> NetworkedSwarm:
        """A peer that trains its path again, and offers the snapshot that it has at home."""
        swarm, best = hub.swarm(name, BlobStore(self.folder / name / "blobs")), self.snapshot(name, path)
        assert best is not None
        statement = SnapshotStatement(path=path, loss=best.loss, snapshot=swarm.put_blob(snapshot_to_bytes(best)))
        swarm.publish(topic_of(1), statement.to_bytes())
        modules = PathTable(self.manifest.stage.table).modules_of(path)
        swarm.announce([Announcement(swarm.peer, 1, m, path, 3, self.states[m].digest) for m in modules])
        return swarm

    def snapshot(self, home: str, path: int) -> Snapshot | None:
        return load_snapshot(snapshot_file(self.folder / home, 1, PathIndex(path)), self.run)


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> Simulated:
    return Simulated(tmp_path_factory.mktemp("early") / "run", "share = 0.1\nevery = 1\nmax_sequences = 40")


@pytest.mark.timeout(200)
def test_scoring_changes_nothing_of_the_training(
    simulated: Simulated, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(OwnSnapshots, "look", lambda own: None)
        silent = Simulated(tmp_path / "run", "share = 0.1")
    assert silent.snapshot("ada", 0) is None
    assert simulated.snapshot("ada", 0) is not None
    assert {m: s.digest for m, s in silent.states.items()} == {m: s.digest for m, s in simulated.states.items()}


def test_peers_and_the_node_keep_the_same_snapshots(simulated: Simulated) -> None:
    for home, path in (("ada", 0), ("ben", 3)):
        theirs, nodes = simulated.snapshot(home, path), simulated.snapshot("bootstrap", path)
        assert theirs is not None
        assert nodes is not None
        assert snapshot_to_bytes(theirs) == snapshot_to_bytes(nodes)
        assert set(nodes.versions.values()) <= {1, 2, 3}
    assert simulated.snapshot("bootstrap", 1) is None
    # the warm-up had one path and a best version of it, too
    assert snapshot_file(simulated.folder / "ada", 0, P0).exists()


def with_other_snapshots(simulated: Simulated, scale: float) -> dict[Path, bytes]:
    """Replace the node's snapshots by other parameters, to tell them from the agreed modules."""
    before = {}
    for path in (0, 3):
        snapshot = simulated.snapshot("bootstrap", path)
        assert snapshot is not None
        file = snapshot_file(simulated.bootstrap, 1, PathIndex(path))
        before[file] = file.read_bytes()
        file.write_bytes(
            snapshot_to_bytes(replace(snapshot, params={m: scale * p for m, p in snapshot.params.items()}))
        )
    return before


def test_eval_and_export_of_the_best_from_a_home(simulated: Simulated, tmp_path: Path) -> None:
    told: list[str] = []
    agreed = {p.path: p.loss for p in use.evaluate(simulated.bootstrap, None).paths}
    assert {0, 3} < set(agreed)
    before = with_other_snapshots(simulated, 1.2)
    try:
        found = use.evaluate(simulated.bootstrap, None, best=True, tell=told.append)
        export(simulated.bootstrap, 3, tmp_path / "three", Wanted(best=True), told.append)
    finally:
        for file, data in before.items():
            file.write_bytes(data)
    assert "best snapshot of each path" in found.data
    best = {p.path: p.loss for p in found.paths}
    assert {path for path in agreed if best[path] != agreed[path]} == {0, 3}
    without = ", ".join(str(path) for path in sorted(set(agreed) - {0, 3}))
    assert told == [f"no early-stopping snapshot of path {without} can be had; using the agreed modules there"]
    assert "the best snapshot of path 3 (loss " in (tmp_path / "three" / "README.md").read_text()


def test_the_commands_say_what_falls_back_beside_the_result(simulated: Simulated) -> None:
    command = ["generate", "def read_lines(path):", "--tokens", "2", "--best", "--home"]
    written = CliRunner().invoke(cli.app, [*command, str(simulated.bootstrap)])
    assert written.exit_code == 0, written.output
    assert written.stdout.startswith("def read_lines(path):")
    with open_run(simulated.bootstrap) as run:
        routing = run.routing()
        ids = routing.tokenizer.encode("def read_lines(path):").ids
        path = int(routing.paths(torch.tensor([ids[:32]]).numpy())[0])
    assert ("no early-stopping snapshot" in written.stderr) == (path not in (0, 3))


def test_a_peers_home_serves_its_own_best(simulated: Simulated) -> None:
    own = simulated.snapshot("ada", 0)
    assert own is not None
    with open_run(simulated.folder / "ada", best=True) as run:
        model = run.model()
        run.load(model, P0)
        assert run.fallen_back() is None
        assert torch.equal(model.vector(0), own.params[ModuleId(0, 0)])


def test_guests_serve_what_peers_offer(simulated: Simulated, monkeypatch: pytest.MonkeyPatch) -> None:
    table, signer = PathTable(simulated.manifest.stage.table), simulated.address.fingerprint
    modules, told = table.modules, list[str]()
    with Hub("small", signer) as hub:
        # all have left, and come back
        keeper = hub.swarm(BOOTSTRAP, BlobStore(simulated.bootstrap / "blobs"))
        keeper.announce(
            [
                Announcement(keeper.peer, 1, m, None, state.version, state.digest, state.work, role=Role.KEEPS)
                for m, state in simulated.states.items()
            ]
        )
        for module in modules:
            keeper.hold(1, module, simulated.states[module])
        peers = [simulated.comes_back(hub, name, path) for name, path in (("ada", P0), ("ben", PathIndex(3)))]

        @contextmanager
        def visit(address: RunAddress) -> Iterator[tuple[NetworkedSwarm, Manifest]]:
            with hub.open("guest") as guest:
                hear([guest, keeper, *peers], 1, modules)
                until(lambda: len(guest.statements(topic_of(1), timeout=10)) == len(peers))
                yield guest, simulated.manifest

        monkeypatch.setattr(sources, "visit", visit)
        from_swarm = use.evaluate(simulated.address, None, best=True, tell=told.append)
    at_home = use.evaluate(simulated.bootstrap, None, best=True)
    assert from_swarm.paths == at_home.paths
    assert told[0].startswith("no early-stopping snapshot of path 1")
