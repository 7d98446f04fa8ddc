"""Stages, driven live: how they end, who comes back late, and what scores the operator believes. In memory."""

import logging
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch

from dipaco_swarm import choosing
from dipaco_swarm.algorithm.paths import ModuleId, PathIndex, PathTable, grid
from dipaco_swarm.algorithm.stages import state_at_start
from dipaco_swarm.bootstrap import Kept, Operator, load_operator_key
from dipaco_swarm.dashboard.metrics import read_metrics
from dipaco_swarm.dashboard.screens import Screen
from dipaco_swarm.manifest import Manifest, RunAddress, RunConfig, fingerprint_of, parse_run_file
from dipaco_swarm.peer import Volunteer
from dipaco_swarm.rerouting import ScoreCollection
from dipaco_swarm.settings import PeerSettings
from dipaco_swarm.stopping import Stopping
from dipaco_swarm.swarm.interface import Announcement
from dipaco_swarm.swarm.memory import MemoryHub, MemorySwarm
from dipaco_swarm.training.bank import load_path
from dipaco_swarm.training.documents import read_documents
from dipaco_swarm.training.modules import PathModel, build_network
from dipaco_swarm.training.scoring import ScoreStatement, sample_to_bytes, score_sample, scores_to_bytes, topic_of
from dipaco_swarm.training.shards import routing_pieces
from dipaco_swarm.training.tokenizer import load_tokenizer, vocabulary_size

from .conftest import write_run_file

SINGLE = '[[stages]]\nrouter = "single"\n'
FOUR_PATHS = '[[stages]]\nrouter = "product-k-means"\nmodules = [2, 2]\n'
DISCRIMINATIVE = '[[stages]]\nrouter = "discriminative"\n'


class Events(Screen):
    """A screen that remembers what it was told, and lets a test wait for words."""

    def __init__(self) -> None:
        self._said: list[str] = []
        self._new = threading.Condition()

    def show(self, view: object) -> None:
        """Nobody looks."""

    def event(self, text: str) -> None:
        with self._new:
            self._said.append(text)
            self._new.notify_all()

    def until(self, words: str, times: int = 1, seconds: float = 60) -> None:
        with self._new:
            came = self._new.wait_for(lambda: sum(words in said for said in self._said) >= times, seconds)
        assert came, f"nobody said {words!r}: " + "\n".join(self._said)

    def said(self, words: str) -> bool:
        return any(words in said for said in self._said)


class World:
    """An operator's node and peers as threads, each with a stop of its own."""

    def __init__(self, folder: Path, config: RunConfig, pool: ThreadPoolExecutor) -> None:
        self.folder, self.config = folder, config
        self.hub = MemoryHub()
        self.kept = Kept(folder / "bootstrap")
        self._key = load_operator_key(folder / "bootstrap")
        self.address = RunAddress(config.name, fingerprint_of(self._key.public_key()), ())
        self._pool = pool
        self._stops: list[Stopping] = []
        self._work: list[Future[None]] = []

    def operator(self) -> Events:
        screen, stop = Events(), self._stop()
        swarm = self._swarm("bootstrap", stop)
        operator = Operator(self.config, self._key, swarm, self.kept, screen, stop, str(self.address))
        self._start(lambda: operator.run(until_finished=True))
        return screen

    def _start(self, life: Callable[[], None]) -> Future[None]:
        """In a thread; one that fails ends all."""
        work = self._pool.submit(life)
        work.add_done_callback(lambda done: self.break_off() if done.exception() else None)
        self._work.append(work)
        return work

    def peer(self, name: str, path: int | None) -> tuple[Events, Callable[[], None]]:
        """Starts a peer; returns its screen, and what stops it and waits for its end."""
        screen, stop = Events(), self._stop()
        settings = PeerSettings(
            address=self.address,
            path=path,
            home=self.folder / name,
            cache=self.folder / "cache",
            listen=None,
            device="cpu",
            micro_batch=None,
            threads=1,
            until_finished=True,
            rounds=None,
            screen="none",
        )
        life = self._start(Volunteer(settings, self._swarm(name, stop), screen, stop).live)

        def leave() -> None:
            stop.request()
            life.result(30)

        return screen, leave

    def manifest(self) -> Manifest:
        manifest = self.kept.manifest(self.address.fingerprint)
        assert manifest is not None
        return manifest

    def end(self) -> None:
        """Let the run come to its own end; whatever failed in a thread is raised here."""
        for work in self._work:
            work.result(60)

    def break_off(self) -> None:
        for stop in self._stops:
            stop.request()

    def _stop(self) -> Stopping:
        self._stops.append(Stopping())
        return self._stops[-1]

    def _swarm(self, name: str, stop: Stopping) -> MemorySwarm:
        swarm = MemorySwarm(self.hub, name)
        stop.tell(swarm.interrupt)
        return swarm


MakeWorld = Callable[..., World]


@pytest.fixture
def make_world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MakeWorld]:
    """Worlds over some invented texts in two alphabets: `make(stages, documents=200, min_peers=1)`."""
    monkeypatch.chdir(tmp_path)
    worlds: list[World] = []
    with ThreadPoolExecutor(8) as pool:

        def make(stages: str, *, documents: int = 200, min_peers: int = 1, more: str = "") -> World:
            (tmp_path / "texts").mkdir()
            words = random.Random(0)
            for i in range(documents):
                letters = "aeioulmn" if i % 2 else "xyzkqwrt"
                text = " ".join("".join(words.choices(letters, k=4)) for _ in range(60))
                (tmp_path / "texts" / f"{i}.txt").write_text(text)
            text = write_run_file(tmp_path / "RUN.toml", min_peers=min_peers).read_text()
            text = text.replace('source = "python"\nmax_documents = 300', 'source = "text"\npath = "texts/*.txt"')
            config = parse_run_file(text[: text.index("[[stages]]")] + more + stages)
            worlds.append(World(tmp_path, config, pool))
            return worlds[-1]

        torch.set_num_threads(1)
        yield make
        for world in worlds:
            world.break_off()


def test_the_operator_ends_a_stage_that_has_no_end_of_its_own(make_world: MakeWorld) -> None:
    world = make_world(SINGLE + FOUR_PATHS + "rounds = 1\n", min_peers=2)
    operator = world.operator()
    operator.until("run address")
    world.kept.tell_to_advance()
    operator.until("not every module of this stage has been trained yet")
    _, leave = world.peer("one", 0)
    peer, _ = world.peer("other", 3)
    peer.until("round 2")
    world.kept.tell_to_advance()
    operator.until("told to advance: stage 0 ends when every module has version")
    operator.until("stage 1 is open: 4 paths")
    world.end()
    manifest = world.manifest()
    assert manifest.finished
    ended = manifest.stages[0].rounds
    assert ended is not None
    assert manifest.stage.first_step == ended * world.config.rounds.inner_steps
    state = world.kept.state(0, ModuleId(0, 0))
    assert state is not None
    assert state.version >= ended
    leave()


def test_a_stage_ends_by_tokens(make_world: MakeWorld) -> None:
    # a round of a path is 5 steps of 4 x 64 tokens: 1281 tokens are one round and a bit
    world = make_world(SINGLE + "tokens = 1281\n")
    world.operator()
    world.peer("one", None)
    world.end()
    state = world.kept.state(0, ModuleId(1, 0))
    assert state is not None
    assert state.version == 2
    assert world.manifest().finished


def test_a_peer_that_missed_two_stages_comes_back(make_world: MakeWorld) -> None:
    world = make_world(SINGLE + "rounds = 2\n" + FOUR_PATHS + "rounds = 1\n" + DISCRIMINATIVE, min_peers=1)
    operator = world.operator()
    away, leave = world.peer("away", 0)
    away.until("round 1")
    leave()
    world.peer("there", 3)
    there, _ = world.peer("there too", 0)
    there.until("stage 2: path 0 of 4")
    there.until("round", times=2)
    away, _ = world.peer("away", 1)
    away.until("stage 2: path 1 of 4")
    away.until("round ")
    assert not away.said("stage 1")
    assert not away.said("going on from the checkpoint")  # what it had is two stages old
    world.kept.tell_to_advance()
    operator.until("the run is finished")
    world.end()


def test_two_peers_train_four_paths_in_turns(make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each moves with its modules, and no path is left out; how evenly: tests/algorithm/test_assignment.py."""
    # rounds of milliseconds: moving takes longer than a few of them, and a peer would stay for most of the stage
    monkeypatch.setattr(choosing, "STAY_FACTOR", 0.0)
    world = make_world(SINGLE + "rounds = 1\n" + FOUR_PATHS + "rounds = 12\n", min_peers=2)
    world.operator()
    one, other = world.peer("one", None)[0], world.peer("other", None)[0]
    world.end()
    assert world.manifest().finished
    for module in grid([2, 2]).modules:
        state = world.kept.state(1, module)
        assert state is not None
        assert state.version >= 12
    steps: Counter[int] = Counter()
    for name in ("one", "other"):
        lines = read_metrics(world.folder / name / "metrics.jsonl")
        steps.update(line["path"] for line in lines if line["kind"] == "round" and line["stage"] == 1)
    assert set(steps) == {0, 1, 2, 3}, steps
    assert one.said("moving from path")
    assert other.said("moving from path")


def test_a_stage_whose_scores_teach_nothing_keeps_its_router(make_world: MakeWorld) -> None:
    """Two of four paths are never trained: documents like only the others. The node scores what nobody serves."""
    world = make_world(SINGLE + "rounds = 1\n" + FOUR_PATHS + "rounds = 1\n" + DISCRIMINATIVE + "rounds = 1\n")
    operator = world.operator()
    one, other = world.peer("one", 0)[0], world.peer("other", 3)[0]
    world.end()
    manifest = world.manifest()
    assert manifest.finished
    assert one.said("scored")
    assert other.said("scored")
    assert operator.said("keeping the router of stage 1") == (manifest.stages[1].router == manifest.stages[2].router)


def test_scores_that_cannot_be_are_refused_and_their_sender_named(
    make_world: MakeWorld, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    world = make_world(FOUR_PATHS)
    world.operator().until("run address")
    manifest, hub = world.manifest(), world.hub
    operator = MemorySwarm(hub, "operator")

    def fetch(digest: str) -> bytes:
        return operator.fetch_blob(digest, timeout=1)

    tokenizer = load_tokenizer(fetch(manifest.tokenizer))
    sample = routing_pieces(read_documents(world.config.data), tokenizer, world.config.data, world.config.router)
    manifest = manifest.model_copy(update={"scoring": operator.put_blob(sample_to_bytes(sample))})
    table = PathTable(manifest.stage.table)
    states = {m: state_at_start(manifest.stage, m, fetch) for m in table.modules}
    network = build_network(world.config.model, vocabulary_size(tokenizer), 0)
    model = PathModel(network, world.config.levels)
    honest_model = PathModel(build_network(world.config.model, vocabulary_size(tokenizer), 0), world.config.levels)
    load_path(honest_model, table, PathIndex(2), states)
    honest = score_sample(honest_model.network, sample, world.config.router.prefix_tokens)

    def say(name: str, scores: np.ndarray, path: int = 2, trains: int = 2) -> None:
        swarm = MemorySwarm(hub, name)
        modules = table.modules_of(PathIndex(trains))
        said = [Announcement(swarm.peer, 0, m, PathIndex(trains), 0, states[m].digest) for m in modules]
        swarm.announce(said)
        statement = ScoreStatement(path=path, scores=swarm.put_blob(scores_to_bytes(scores)))
        swarm.say(topic_of(manifest), statement.to_bytes())

    # in the order in which they are heard, all before the honest one
    say("a: not numbers", np.full(len(honest), np.nan))
    say("b: too few", honest[:-1])
    say("c: another path's peer", honest, trains=1)
    say("d: invented", honest - 100)
    say("e: no such path", honest, path=99)
    MemorySwarm(hub, "f: no statement").say(topic_of(manifest), b"{")
    collection = ScoreCollection(manifest, operator, sample, model, states)
    collection.collect({PathIndex(path) for path in range(4)})
    assert collection.missing == [0, 1, 2, 3]
    named = [
        record.getMessage().split(": it sent")[0] for record in caplog.records if record.levelno == logging.WARNING
    ]
    assert len(set(named)) == 5  # the peer of a path that does not exist has nothing that anybody would look at
    say("g: honest", honest)
    collection.collect({PathIndex(0), PathIndex(2)})  # and of 1 and 3, which nobody serves, the node scores one
    assert collection.missing == [0, 3]
    collection.collect({PathIndex(0), PathIndex(2)})
    assert collection.missing == [0]
    say("h: the last", honest, path=0, trains=0)  # all paths start alike here, so path 2's scores are path 0's
    collection.collect({PathIndex(0), PathIndex(2)})
    assert np.array_equal(collection.matrix(), np.column_stack([honest] * 4))
