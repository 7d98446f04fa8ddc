"""Real processes: the installed commands on 127.0.0.1, each ended by its own handle."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

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
max_documents = 300
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
inner_steps = {inner_steps}

[wire]
codec = "{codec}"

[[stages]]
router = "single"
rounds = 2

[[stages]]
router = "product-k-means"
modules = [2, 2]
rounds = {rounds}
"""

Command = Callable[..., subprocess.Popen[str]]

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
LOOPBACK = "/ip4/127.0.0.1/tcp/0"


def write_run_file(
    path: Path,
    *,
    min_peers: int = 4,
    pacing: str = "synchronous",
    inner_steps: int = 5,
    codec: str = "fp32",
    rounds: int = 3,
) -> Path:
    path.write_text(
        RUN_FILE.format(min_peers=min_peers, pacing=pacing, inner_steps=inner_steps, codec=codec, rounds=rounds)
    )
    return path


class Commands:
    """Starts the project's commands and keeps their handles and logs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.running: dict[str, subprocess.Popen[str]] = {}

    def start(self, label: str, program: str, *arguments: str | Path) -> subprocess.Popen[str]:
        """`program` is peer, bootstrap or swarm; output goes to LABEL.log."""
        code = f"from dipaco_swarm.cli.{program} import main; main()"
        with (self.folder / f"{label}.log").open("w") as log:
            process = subprocess.Popen(
                [sys.executable, "-c", code, *map(str, arguments)],
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env=ENVIRONMENT,
                text=True,
            )
        self.running[label] = process
        return process

    def run(self, program: str, *arguments: str | Path, timeout: float = 60) -> subprocess.CompletedProcess[str]:
        code = f"from dipaco_swarm.cli.{program} import main; main()"
        return subprocess.run(
            [sys.executable, "-c", code, *map(str, arguments)],
            capture_output=True,
            text=True,
            env=ENVIRONMENT,
            timeout=timeout,
            check=False,
        )

    def log(self, label: str) -> str:
        return (self.folder / f"{label}.log").read_text()

    def until_logged(self, label: str, text: str, seconds: float = 90) -> None:
        self.until(lambda: text in self.log(label), f"{label} never said {text!r}", seconds, label)

    def until(self, condition: Callable[[], bool], otherwise: str, seconds: float, label: str) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            ended = self.running[label].poll() is not None
            assert not (ended and not condition()), f"{label} ended: {otherwise}\n{self.log(label)[-2000:]}"
            assert time.monotonic() < deadline, f"{otherwise}\n{self.log(label)[-2000:]}"
            time.sleep(0.1)

    def bootstrap(self, run_file: Path, *more: str | Path) -> str:
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
        )
        self.until(address.exists, "no run address", 90, "bootstrap")
        return address.read_text().strip()

    def peer(self, label: str, address: str, path: int | str, *more: str | Path) -> subprocess.Popen[str]:
        return self.start(
            label, "peer", "--run", address, "--path", str(path), "--home", self.folder / label, "--threads", "1",
            "--cache", self.folder / "cache", "--listen", LOOPBACK, "--screen", "plain", *more,
        )  # fmt: skip

    def end(self) -> None:
        for process in self.running.values():
            process.terminate()
        for process in self.running.values():
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@pytest.fixture
def commands(tmp_path: Path) -> Iterator[Commands]:
    running = Commands(tmp_path)
    try:
        yield running
    finally:
        running.end()
