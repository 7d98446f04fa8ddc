"""A run of paths of 157 million parameters, by real programs on one GPU: is it busy, and does everybody agree?

    python -m benchmarks.gpu [--peers 2] [--minutes 3] [--inner-steps 150] [--device cuda] [--small] [--hostile flip ..]

A bootstrap node and peers as processes on this machine, over loopback, with what a volunteer gets who says nothing but
`--device cuda`: bf16 activations, 8-bit moments, rounds beside training. A dense stage of two rounds, then one in which
each peer has a path of its own and all share the first module; the last minutes are looked at, in windows. Then the
model writes something. Speed is of tokens trained in a window; beside it what `InnerTrainer` alone reaches in the same
process setting is the table of `benchmarks.inner --device cuda`. With `--hostile` one after the other joins the last
stage who plays a role of `benchmarks.hostile`, until most peers leave it out of their rounds. `--small` is a path of
the demo's size, to try the benchmark on a CPU. Prints a table, and with `--out` writes it, and the end of each
program's log.
"""

import argparse
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil
import torch

from benchmarks.chaos.facts import banned_by
from benchmarks.chaos.story import toml_of
from benchmarks.inner import RUNS, hardware
from dipaco_swarm.dashboard.metrics import Following, metrics_file
from dipaco_swarm.demo.processes import Process, Troupe, tail
from dipaco_swarm.events.event import Event
from dipaco_swarm.events.operator import Serving
from dipaco_swarm.events.training import Committed, Doubted, Round, RoundFailed, Steps
from dipaco_swarm.events.usage import Usage
from dipaco_swarm.run.address import RunAddress
from dipaco_swarm.run.config import RunConfig
from dipaco_swarm.run.file import read_run_file
from dipaco_swarm.swarm.libp2p.identity import load_identity
from dipaco_swarm.training.modules import build_network

FOUND_SECONDS = 150.0
"""In which who plays a role is to be found, once it trains."""
START_SECONDS = 240.0
LOOK_SECONDS = 0.5
LAST_LINES = 25
LEAVE_SECONDS = 60.0
WINDOWS = 3
THREADS = 4
"""Of arithmetic on the CPU, for each peer: outer gradients and averages."""
SHARED = "L0M0"
LARGE = {
    "hidden_size": 1024,
    "intermediate_size": 2432,
    "num_hidden_layers": 12,
    "num_attention_heads": 16,
    "max_position_embeddings": 1024,
}
"""Nearly as table 4 of the paper has it, with a vocabulary of 8,192."""
SMALL = read_run_file(RUNS / "demo-2x2.toml").model.model_dump(exclude_unset=True)


def run_of(peers: int, inner_steps: int, *, small: bool) -> RunConfig:
    """Two levels; after a dense stage of two rounds each peer has a module of the second one for itself."""
    model = SMALL if small else LARGE
    half = int(str(model["num_hidden_layers"])) // 2
    return RunConfig.model_validate(
        {
            "name": "gpu",
            "min_peers": peers,
            "model": model,
            "tokenizer": {"vocab_size": 1024 if small else 8192},
            "levels": [
                {"embedding": True, "blocks": list(range(half))},
                {"blocks": list(range(half, 2 * half)), "head": True},
            ],
            "data": {
                "source": "python",
                "max_documents": 1500 if small else 6000,
                "sequence_length": 256 if small else 1024,
                "routing_sample": 0.2,
            },
            "inner": {
                "learning_rate": 4e-4,
                "warmup_steps": 50,
                "schedule_steps": 5000,
                "batch_sequences": 4 if small else 16,
            },
            "rounds": {"pacing": "paced", "inner_steps": inner_steps},
            "wire": {"codec": "int8"},
            "stages": [
                {"router": "single", "rounds": 2},
                {"router": "k-means", "modules": [1, peers]},
            ],
        },
        strict=False,
    )


@dataclass(frozen=True)
class Window:
    """A part of the last stage."""

    seconds: float
    speed: float
    """Tokens a second that all peers trained on, together."""
    trained: float
    """Share of the time, mean of the peers."""
    versions: int
    """Of the shared module."""

    @property
    def row(self) -> str:
        return f"| {self.seconds:.0f} | {self.speed:,.0f} | {100 * self.trained:.1f} % | {self.versions} |"


class Watched:
    """A program that was started, and what it reports."""

    def __init__(self, process: Process, home: Path) -> None:
        self.process = process
        self.home = home
        self._told = Following(metrics_file(home))

    def events(self) -> Sequence[Event]:
        return self._told.events()

    def made(self) -> Sequence[tuple[float, Committed]]:
        """Versions of the shared module in the last stage that it knows of, and when it did (Unix time)."""
        return [
            (entry.time, entry.event)
            for entry in self._told.entries()
            if isinstance(entry.event, Committed) and (entry.event.stage, entry.event.module) == (1, SHARED)
        ]

    @property
    def has_used_time(self) -> bool:
        return any(isinstance(event, Usage) for event in self.events())

    def usage(self) -> Usage:
        """What it has said last of its time."""
        return next(event for event in reversed(self.events()) if isinstance(event, Usage))

    def memory(self) -> float:
        """Resident bytes of the program alone."""
        return float(psutil.Process(self.process.handle.pid).memory_info().rss)


class Scene:
    """The programs of the benchmark, from the first to the last."""

    def __init__(self, troupe: Troupe, folder: Path, device: str) -> None:
        self._troupe, self._folder, self._device = troupe, folder, device
        self.began = time.monotonic()

    def tell(self, line: str) -> None:
        print(f"{time.monotonic() - self.began:6.1f} s  {line}", flush=True)

    def until(self, condition: Callable[[], bool], what: str, seconds: float = START_SECONDS) -> None:
        """Wait. Raises TimeoutError, and ProcessFailedError when a program has ended badly meanwhile."""
        deadline = time.monotonic() + seconds
        while not condition():
            self._troupe.check()
            if time.monotonic() > deadline:
                raise TimeoutError(f"waited {seconds:.0f} s for {what}")
            time.sleep(LOOK_SECONDS)
        self.tell(what)

    def bootstrap(self, config: RunConfig) -> tuple[Watched, str]:
        """The node, and the run address."""
        file, home = self._folder / "RUN.toml", self._folder / "bootstrap"
        file.write_text(toml_of(config))
        arguments = ["serve", str(file), "--home", str(home), "--screen", "plain", "--listen", "/ip4/127.0.0.1/tcp/0"]
        node = Watched(self._troupe.start("bootstrap", "dipaco_swarm.cli.bootstrap", arguments), home)
        self.until(lambda: any(isinstance(event, Serving) for event in node.events()), "the run can be joined")
        return node, next(event.address for event in node.events() if isinstance(event, Serving))

    def peer(self, name: str, address: str, role: str | None = None) -> Watched:
        """`role`: what it plays; None: a volunteer."""
        home, cache = self._folder / name, self._folder / "cache"
        arguments = ["--run", address, "--home", str(home), "--cache", str(cache), "--screen", "plain"]
        arguments += ["--device", self._device, "--threads", str(THREADS), "--yes", "--normal-priority"]
        if role is not None:
            return Watched(self._troupe.start(name, "benchmarks.hostile.acting", [role, *arguments]), home)
        return Watched(self._troupe.start(name, "dipaco_swarm.cli.peer", arguments), home)

    def window(self, peers: Sequence[Watched], seconds: float) -> Window:
        """Watch the peers for so long, to ten seconds: so often they say what they used their time for."""
        before, made = [peer.usage() for peer in peers], versions(peers)
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            self._troupe.check()
            time.sleep(LOOK_SECONDS)
        spans = list(zip(before, [peer.usage() for peer in peers], strict=True))
        passed = [now.seconds - then.seconds for then, now in spans]
        window = Window(
            seconds=seconds,
            speed=sum((now.tokens - then.tokens) / each for (then, now), each in zip(spans, passed, strict=True)),
            trained=statistics.fmean(
                (now.trained_seconds - then.trained_seconds) / each
                for (then, now), each in zip(spans, passed, strict=True)
            ),
            versions=versions(peers) - made,
        )
        self.tell(window.row)
        return window


def rounds(peers: Sequence[Watched], stage: int) -> list[Round]:
    return [event for peer in peers for event in peer.events() if isinstance(event, Round) and event.stage == stage]


def versions(peers: Sequence[Watched]) -> int:
    """Of the shared module, in the last stage."""
    made = [over.modules[SHARED].version for over in rounds(peers, 1) if SHARED in over.modules]
    return max(made, default=0)


def digests(peers: Sequence[Watched]) -> tuple[int, int]:
    """States that were made of modules, and versions that have more than one."""
    made: dict[tuple[int, str, int], set[str]] = {}
    for stage in (0, 1):
        for over in rounds(peers, stage):
            for module, commit in over.modules.items():
                made.setdefault((stage, module, commit.version), set()).add(commit.digest)
    return len(made), sum(len(each) > 1 for each in made.values())


def accused(members: Sequence[Watched], run: str) -> list[str]:
    """Whom members have banned or doubted. `run`: its fingerprint."""
    lines = list[str]()
    for member in members:
        lines += [f"{name} is banned" for name in banned_by(member.home, run)]
        lines += [event.line for event in member.events() if isinstance(event, Doubted)]
    return lines


def confronted(scene: Scene, honest: Sequence[Watched], role: str, address: str, run: str) -> str:
    """Somebody who plays this role joins; a row of what came of it. `run`: its fingerprint."""
    hostile = scene.peer(f"hostile-{role}", address, role)
    scene.until(lambda: any(isinstance(event, Steps) for event in hostile.events()), f"{role} trains")
    name, began, before = load_identity(hostile.home).peer, time.time(), [peer.usage() for peer in honest]
    try:
        scene.until(
            lambda: 2 * sum(names(peer, name, run) for peer in honest) > len(honest),
            f"most leave {role} out",
            FOUND_SECONDS,
        )
        after = f"{time.time() - began:.0f} s"
    except TimeoutError:
        after = f"not in {FOUND_SECONDS:.0f} s"
    passed = time.time() - began
    made = {event.version: event for peer in honest for at, event in peer.made() if at >= began}
    spans = [(now.tokens - then.tokens) for then, now in zip(before, [peer.usage() for peer in honest], strict=True)]
    row = (
        f"| {role} | {after} | {sum(name in event.tokens for event in made.values())} | {len(made)} | "
        f"{sum(spans) / passed:,.0f} | {'; '.join(accused(honest, run)) or 'nobody'} |"
    )
    hostile.process.handle.send_signal(signal.SIGINT)
    scene.tell(row)
    return row


def names(member: Watched, name: str, run: str) -> bool:
    """Whether it has banned or doubted this peer."""
    doubted = any(isinstance(event, Doubted) and event.peer == name for event in member.events())
    return doubted or name in banned_by(member.home, run)


def play(options: argparse.Namespace, folder: Path) -> list[str]:
    """The story; returns the lines of the report."""
    config = run_of(options.peers, options.inner_steps, small=options.small)
    with Troupe(folder / "logs") as troupe:
        scene = Scene(troupe, folder, options.device)
        try:
            return _play(scene, config, options)
        finally:
            for log in sorted((folder / "logs").iterdir()):
                print(f"\n--- the end of {log.name}", *tail(log, LAST_LINES), sep="\n", flush=True)


def _play(scene: Scene, config: RunConfig, options: argparse.Namespace) -> list[str]:
    node, address = scene.bootstrap(config)
    peers = [scene.peer(f"peer-{number}", address) for number in range(options.peers)]
    scene.until(lambda: all(any(isinstance(e, Steps) for e in peer.events()) for peer in peers), "all train")
    scene.until(lambda: len(rounds(peers, 0)) >= 2 * options.peers, "the dense stage has two versions")
    scene.until(lambda: versions(peers) >= 1, "the first version of the stage with paths")
    scene.until(lambda: all(peer.has_used_time for peer in peers), "all have said what they used their time for")
    windows = [scene.window(peers, 60 * options.minutes / WINDOWS) for _ in range(WINDOWS)]
    memory, device_memory = max(peer.memory() for peer in peers), in_use(options.device)
    failed = [event for peer in peers for event in peer.events() if isinstance(event, RoundFailed)]
    run = RunAddress.parse(address).fingerprint
    found = accused([node, *peers], run)
    roles = [confronted(scene, peers, role, address, run) for role in options.hostile]
    for peer in peers:
        peer.process.handle.send_signal(signal.SIGINT)
    scene.until(lambda: all(peer.process.code is not None for peer in peers), "all have left", LEAVE_SECONDS)
    made, parted = digests(peers)
    usage = [peer.usage() for peer in peers]
    losses = [over.loss for over in rounds(peers, 1) if over.loss is not None]
    lines = [
        f"# Paths of {parameters(config) / 1e6:.0f} million parameters on one device",
        "",
        f"{device_name(options.device)}; torch {torch.__version__}; `python -m benchmarks.gpu --peers {options.peers} "
        f"--minutes {options.minutes:g} --inner-steps {options.inner_steps}`, programs over loopback.",
        "",
        "| seconds | tokens a second, all peers | trained | versions of the shared module |",
        "|---:|---:|---:|---:|",
        *(window.row for window in windows),
        "",
        f"{made} versions were made of modules, {parted} of them with more than one state; {len(failed)} rounds failed"
        + "".join(f" ({event.module}: {event.reason})" for event in failed[:3]),
        f"Banned or doubted, of honest peers all: {'; '.join(found) or 'nobody'}.",
        f"Loss: {losses[0]:.2f} in the first round with paths, {losses[-1]:.2f} in the last." if losses else "No loss.",
        f"Memory of a peer: {memory / 1e9:.1f} GB; of the device, all together: {device_memory / 1e9:.1f} GB. A peer "
        f"sent {max(sum(each.sent.values()) for each in usage) / 1e6:,.0f} MB in "
        f"{max(each.seconds for each in usage):.0f} s.",
    ]
    if roles:
        head = "role | most left it out after | versions with it | versions | tokens a second, honest peers | said"
        lines += ["", f"| {head} |", "|---|---:|---:|---:|---:|---|", *roles]
    return lines


def parameters(config: RunConfig) -> int:
    """Of one path."""
    network = build_network(config.model, config.tokenizer.vocab_size, 0)
    return sum(parameter.numel() for parameter in network.parameters())


def in_use(device: str) -> float:
    """Bytes of the device that are taken, by whomever."""
    if not device.startswith("cuda"):
        return 0.0
    free, total = torch.cuda.mem_get_info()
    return float(total - free)


def device_name(device: str) -> str:
    return torch.cuda.get_device_name() if device.startswith("cuda") else hardware()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--peers", type=int, default=2)
    parser.add_argument("--minutes", type=float, default=3.0, help="that the last stage is watched")
    parser.add_argument("--inner-steps", type=int, default=150, help="of a round")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--small", action="store_true", help="a path of the demo's size")
    parser.add_argument("--hostile", nargs="*", default=[], help="roles, of `python -m benchmarks.hostile --list`")
    parser.add_argument("--out", type=Path, help="write the report here")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="dipaco-gpu-") as folder:
        text = "\n".join(play(options, Path(folder))) + "\n"
    print(f"\n{text}")
    if options.out is not None:
        options.out.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
