"""Real processes: the commands on 127.0.0.1, each ended by its own handle."""

import contextlib
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
import torch

from benchmarks.chaos.lab import NAMESPACES, Host
from dipaco_swarm.algorithm.paths import PathIndex
from dipaco_swarm.cli.words import EXIT_NOT_WHOLE
from dipaco_swarm.dashboard.metrics import Following, metrics_file
from dipaco_swarm.events.event import Event
from dipaco_swarm.events.training import Round
from dipaco_swarm.machine import beside
from dipaco_swarm.operator import operator
from dipaco_swarm.peer import manifest_watch, volunteer
from dipaco_swarm.run.address import RunAddress
from dipaco_swarm.run.file import parse_run_file
from dipaco_swarm.training import checkpoint
from dipaco_swarm.training.checkpoint import Checkpoint
from tests.patience import PATIENCE
from tests.programs import Program, start

from .world import E, MakeWorld, World, is_like

RUN_FILE = """\
name = "small"
min_peers = {min_peers}

[model]
hidden_size = 32
intermediate_size = 64
num_hidden_layers = 2
num_attention_heads = 2
max_position_embeddings = 64

[[levels]]
blocks = [0]
embedding = true

[[levels]]
blocks = [1]
head = true

[tokenizer]
vocab_size = 512

[data]
source = "python"
max_documents = {documents}
sequence_length = 64
routing_sample = 0.2

[inner]
learning_rate = 3e-3
warmup_steps = 5
schedule_steps = 40
batch_sequences = 4

[outer]
momentum = 0.6
ramp_rounds = 2

[rounds]
pacing = "{pacing}"
inner_steps = {inner_steps}{overlap}

[wire]
codec = "{codec}"

[[stages]]
router = "single"
rounds = {warmup}

[[stages]]
router = "product-k-means"
modules = [2, 2]
rounds = {rounds}
"""

LOOPBACK = "/ip4/127.0.0.1/tcp/0"


def write_run_file(
    path: Path,
    *,
    min_peers: int = 4,
    pacing: str = "synchronous",
    overlap: bool | None = None,
    inner_steps: int = 5,
    codec: str = "fp32",
    warmup: int = 2,
    rounds: int = 3,
    documents: int = 300,
) -> Path:
    """`warmup`, `rounds`: outer rounds of the two stages."""
    text = RUN_FILE.format(
        min_peers=min_peers,
        pacing=pacing,
        inner_steps=inner_steps,
        overlap="" if overlap is None else f"\noverlap = {str(overlap).lower()}",
        codec=codec,
        warmup=warmup,
        rounds=rounds,
        documents=documents,
    )
    path.write_text(text)
    return path


def made_with(others: int, *modules: str) -> Callable[[Round], bool]:
    """Whether a round has made versions of these modules, each with so many other peers."""
    return lambda over: all(module in over.modules and over.modules[module].peers == others + 1 for module in modules)


class Commands:
    """Starts the project's commands and keeps their handles and logs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.running: dict[str, Program] = {}
        self._told: dict[str, Following] = {}
        """Label -> what all its lives have reported."""
        self._earlier: dict[str, int] = {}
        """Label -> events of the lives before this one."""
        self.prelude = ""
        """Python that programs run first, to shorten what takes minutes."""

    def start(
        self,
        label: str,
        program: str,
        *arguments: str | Path,
        cwd: Path | None = None,
        on: Host | None = None,
    ) -> Program:
        """`program` is peer, bootstrap or swarm; output goes to LABEL.log. `cwd`: where relative paths start.

        `on`: the host of a laboratory to run on.
        """
        self._earlier[label] = len(self._events_of_all_lives(label))
        namespace = None if on is None else NAMESPACES / on.namespace
        log = self.folder / f"{label}.log"
        started = start(program, arguments, log, cwd=cwd, prelude=self.prelude, namespace=namespace)
        self.running[label] = started
        return started

    def events(self, label: str) -> list[Event]:
        """All that a program with this label has reported in this life."""
        return self._events_of_all_lives(label)[self._earlier.get(label, 0) :]

    def _events_of_all_lives(self, label: str) -> list[Event]:
        return self._told.setdefault(label, Following(metrics_file(self.folder / label))).events()

    def reported(self, label: str, kind: type[E], *, after: int = 0, **fields: object) -> list[E]:
        """Its events of this kind and with these values, without the first `after` of all its events."""
        return [event for event in self.events(label)[after:] if isinstance(event, kind) and is_like(event, fields)]

    def until_reported(
        self,
        label: str,
        kind: type[E],
        *,
        where: Callable[[E], bool] = lambda event: True,
        after: int = 0,
        seconds: float = 150,
        **fields: object,
    ) -> E:
        """Wait for such an event, for which also `where` holds; the first of them."""

        def found() -> list[E]:
            return [event for event in self.reported(label, kind, after=after, **fields) if where(event)]

        self.until(lambda: bool(found()), f"{label} never reported {kind.kind} {fields or ''}", seconds, label)
        return found()[0]

    def log(self, label: str) -> str:
        return (self.folder / f"{label}.log").read_text()

    def until_logged(self, label: str, text: str, seconds: float = 90) -> None:
        self.until(lambda: text in self.log(label), f"{label} never said {text!r}", seconds, label)

    def until(self, condition: Callable[[], bool], otherwise: str, seconds: float, label: str) -> None:
        deadline = time.monotonic() + seconds * PATIENCE
        while not condition():
            ended = self.running[label].poll() is not None
            assert not (ended and not condition()), f"{label} ended: {otherwise}\n{self.log(label)[-2000:]}"
            assert time.monotonic() < deadline, f"{otherwise}\n{self.log(label)[-2000:]}"
            time.sleep(0.1)

    def bootstrap(self, run_file: Path, *more: str | Path, cwd: Path | None = None) -> str:
        """Start the bootstrap node; returns the run address."""
        home = self.folder / "bootstrap"
        address = home / "address.txt"
        address.unlink(missing_ok=True)
        self.start(
            "bootstrap",
            "bootstrap",
            "serve",
            run_file,
            "--home",
            home,
            "--listen",
            LOOPBACK,
            "--screen",
            "plain",
            *more,
            cwd=cwd,
        )
        self.until(address.exists, "no run address", 90, "bootstrap")
        return address.read_text().strip()

    def peer(self, label: str, address: str, path: int | str, *more: str | Path) -> Program:
        return self.start(
            label, "peer", "--run", address, "--path", str(path), "--home", self.folder / label, "--threads", "1",
            "--cache", self.folder / "cache", "--listen", LOOPBACK, "--screen", "plain",
            "--data-root", self.folder, *more,
        )  # fmt: skip

    def stops_on_ctrl_c(self, *labels: str) -> None:
        """Press Ctrl+C in all of them at once: each saves and ends well within five seconds, its daemon too."""
        daemons = {label: psutil.Process(self.running[label].pid).children(recursive=True) for label in labels}
        names = [daemon.name() for label in labels for daemon in daemons[label]]
        assert names == ["p2pd"] * len(labels)  # there is something that could be left behind
        started = time.monotonic()
        for label in labels:
            self.running[label].send_signal(signal.SIGINT)
        for label in labels:
            seconds = 5 * len(labels) * max(1.0, os.getloadavg()[0])  # a crowded machine is given its time
            # who leaves a synchronous stage before its end says so
            ended = self.running[label].wait(seconds)
            assert ended == (EXIT_NOT_WHOLE if "error: not whole" in self.log(label) else 0), self.log(label)[-2000:]
            assert "Traceback" not in self.log(label), self.log(label)
            assert not psutil.wait_procs(daemons[label], timeout=1)[1]
        print(f"{', '.join(labels)} stopped in {time.monotonic() - started:.1f} s")  # noqa: T201

    def end(self) -> None:
        for process in self.running.values():
            process.terminate()
        for process in self.running.values():
            try:
                process.wait(10)
            except TimeoutError:
                process.kill()
                process.wait()


def checkpoint_file(commands: Commands, label: str) -> Path:
    """Of the only path of the warm-up."""
    return checkpoint.file_of(commands.folder / label, 0, PathIndex(0))


def saved(commands: Commands, label: str, address: str) -> Checkpoint:
    """What a peer has in that file."""
    run = RunAddress.parse(address)
    found = checkpoint.load(checkpoint_file(commands, label), f"{run.name}:{run.fingerprint}")
    assert found is not None
    return found


@pytest.fixture
def commands(tmp_path: Path) -> Iterator[Commands]:
    running = Commands(tmp_path)
    try:
        yield running
    finally:
        running.end()


@pytest.fixture
def make_world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MakeWorld]:
    """Worlds over some invented texts in two alphabets: `make(stages, documents=200, min_peers=1)`."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(operator, "TICK_SECONDS", 0.2)  # a whole run takes seconds here
    monkeypatch.setattr(volunteer, "WAIT_SECONDS", 0.1)
    monkeypatch.setattr(beside, "NICE", 0)  # a router is not to wait for what other tests and peers of this process do
    monkeypatch.setattr(manifest_watch, "MANIFEST_PAUSES", (0.2, *manifest_watch.MANIFEST_PAUSES))
    worlds: list[World] = []
    with contextlib.ExitStack() as hubs, ThreadPoolExecutor(8) as pool:

        def make(
            stages: str,
            *,
            documents: int = 200,
            min_peers: int = 1,
            more: str = "",
            pacing: str = "synchronous",
            inner_steps: int = 5,
            reading: str = "auto",
        ) -> World:
            (tmp_path / "texts").mkdir()
            words = random.Random(0)
            for i in range(documents):
                letters = "aeioulmn" if i % 2 else "xyzkqwrt"
                text = " ".join("".join(words.choices(letters, k=4)) for _ in range(60))
                (tmp_path / "texts" / f"{i}.txt").write_text(text)
            file = tmp_path / "RUN.toml"
            text = write_run_file(file, min_peers=min_peers, pacing=pacing, inner_steps=inner_steps).read_text()
            data = f'source = "text"\npath = "texts/*.txt"\nreading = "{reading}"'
            text = text.replace('source = "python"\nmax_documents = 300', data)
            config = parse_run_file(text[: text.index("[[stages]]")] + more + stages)
            worlds.append(World(tmp_path, config, pool))
            hubs.enter_context(worlds[-1].hub)
            return worlds[-1]

        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        yield make
        for world in worlds:
            world.break_off()
        torch.set_num_threads(threads)
