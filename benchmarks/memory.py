"""What a training peer holds in memory, a parameter of its path, and for how long its rounds and saves stop training.

    python -m benchmarks.memory [--parameters 10 60] [--rounds 9] [--modes overlapped] [--alone]

Real programs over loopback: a bootstrap node, the peer that is measured, and one partner on the same path (`--alone`:
none). The model has so many million parameters; sequences are short, so that activations are little. "Own" memory is
what the system cannot take back; "all" has with it what is in memory of mapped files, which it can. All numbers are
above those of a peer with a path of 100,000 parameters, so above what the imports take. A peak is the largest
of samples every 5 ms. A save is made every fifteen seconds, far more often than a real peer makes it, so that there are
some.
"""

import argparse
import json
import re
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from torch import Tensor

from benchmarks.chaos.story import toml_of
from dipaco_swarm.demo.processes import Troupe
from dipaco_swarm.run.config import RunConfig

MEGA = 1_000_000
TINY = 0.1
WIDTHS = {TINY: 32, 10: 320, 30: 512, 60: 768, 100: 1024}
"""Millions of parameters, about -> hidden size of eight blocks."""
BLOCKS = 8
STEPS = {TINY: 60, 10: 120, 30: 40, 60: 20, 100: 12}
"""Of a round, of some twenty seconds: what averages were made from is kept for so long, of several rounds if they are
shorter."""
WARM_UP = 2
"""Rounds that do not count: memory of the beginning is still about."""
SAMPLE_SECONDS = 0.005
SAVE_SECONDS = 15.0
LIMIT_SECONDS = 900.0
MEASURED = ("own", "own, peak", "all", "all, peak")
TRAINING, BESIDE, ROUND, SAVE = "training", "training beside a round", "round", "save"


# ------------------------------------------------------------------------------------------ the peer that is measured


@dataclass
class Watch:
    """What this process has in memory, by what its program does."""

    doing: str = ""
    own: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    all: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    stopped: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    kinds: dict[str, Mapping[str, int]] = field(default_factory=dict)
    rounds: int = 0

    def sample(self) -> None:
        while True:
            text = Path("/proc/self/status").read_text()
            if self.doing and self.rounds > WARM_UP:
                own, mapped = (int(re.search(rf"{name}:\s+(\d+)", text)[1]) for name in ("RssAnon", "RssFile"))  # type: ignore[index]
                self.own[self.doing].append(own << 10)
                self.all[self.doing].append(own + mapped << 10)
            time.sleep(SAMPLE_SECONDS)

    @contextmanager
    def while_doing(self, what: str) -> Iterator[None]:
        before, self.doing = self.doing, what
        try:
            yield
        finally:
            self.doing = before

    def report(self) -> dict[str, Any]:
        return {
            "own": {what: median(samples) for what, samples in self.own.items()},
            "own, peak": {what: max(samples) for what, samples in self.own.items()},
            "all": {what: median(samples) for what, samples in self.all.items()},
            "all, peak": {what: max(samples) for what, samples in self.all.items()},
            "stopped": self.stopped,
            "kinds": self.kinds,
        }


def in_files() -> Callable[[Tensor], bool]:
    """Whether a tensor's numbers are in a mapped file."""
    places = []
    for line in Path("/proc/self/maps").read_text().splitlines():
        place, _, _, _, inode, *_ = line.split()
        if int(inode):
            start, stop = place.split("-")
            places.append((int(start, 16), int(stop, 16)))
    return lambda tensor: any(start <= tensor.data_ptr() < stop for start, stop in places)


def kinds_of(peer: Any, trainer: Any) -> dict[str, int]:
    """Bytes in memory of what a peer holds, by kind; what is in files counts nothing."""
    mapped, store = in_files(), peer.swarm._store
    seen: set[int] = set()

    def size(*tensors: Tensor) -> int:
        new = {t.data_ptr(): t.nbytes for t in tensors if t.data_ptr() not in seen and not mapped(t)}
        seen.update(new)
        return sum(new.values())

    network, optimizer = trainer.model.network, trainer._optimizer
    moments = [value for state in optimizer.state.values() for value in state.values() if isinstance(value, Tensor)]
    states = [state for held in store._states.values() for state in held]
    residuals = peer.swarm.residuals(peer.stage, peer.path)
    parts = [flight.part.params for flight in peer.in_flight.values()]
    given = [progress.part.params for progress in peer.progress.values() if progress.part is not None]
    averages = [blob.data for held in store._averages._blobs.values() for blob in held]
    return {
        "parameters": size(*network.parameters()),
        "moments of the inner optimizer": size(*moments),
        "agreed state and its momentum": size(*(t for s in peer.base.values() for t in (s.params, s.momentum))),
        "the version before": size(*(t for s in states for t in (s.params, s.momentum))),
        "error feedback": size(*(left.vector for left in residuals.values())),
        "what a round under way was given": size(*parts, *given),
        "averages of the last rounds": sum(len(data) for data in averages if isinstance(data, bytes)),
    }


def watch_volunteer(watch: Watch) -> None:
    """Have the program of this process say what it does."""
    from dipaco_swarm import outer_round
    from dipaco_swarm.peer import keeping, volunteer
    from dipaco_swarm.peer.resting import RestingTrainer
    from dipaco_swarm.training.inner import InnerTrainer

    setattr(keeping, "CHECKPOINT_BYTES_PER_SECOND", 1e12)  # noqa: B010
    setattr(keeping, "CHECKPOINT_SECONDS", SAVE_SECONDS)  # noqa: B010
    setattr(keeping, "SAVING_SHARE", 1.0)  # noqa: B010
    save, run_round, train, step = (
        keeping.Keeping.between_steps,
        outer_round.run_outer_round,
        RestingTrainer.train,
        InnerTrainer._step,
    )
    at: dict[str, Any] = {}

    def saving(self: Any, *args: Any, **options: Any) -> Any:
        before, began = self._saved_at, time.perf_counter()
        with watch.while_doing(SAVE):
            save(self, *args, **options)
        if watch.rounds > WARM_UP and self._saved_at != before:
            watch.stopped[SAVE].append(time.perf_counter() - began)

    def a_round(peer: Any, **options: Any) -> Any:
        at["peer"], at["trained"] = peer, 0.0
        began = time.perf_counter()
        with watch.while_doing(ROUND):
            report = run_round(peer, **options)
        if watch.rounds > WARM_UP and report.outcomes:
            watch.stopped["round"].append(time.perf_counter() - began - at["trained"])
        watch.rounds = peer.version
        return report

    def training(self: Any, *args: Any, **options: Any) -> Any:
        began = time.perf_counter()
        with watch.while_doing(BESIDE if at["peer"].in_flight else TRAINING):
            report = train(self, *args, **options)
        at["trained"] += time.perf_counter() - began
        return report

    def a_step(self: Any, *args: Any) -> Any:
        report = step(self, *args)
        if watch.rounds > WARM_UP:
            watch.kinds[watch.doing] = kinds_of(at["peer"], self)
        return report

    setattr(keeping.Keeping, "between_steps", saving)  # noqa: B010
    setattr(volunteer, "run_outer_round", a_round)  # noqa: B010
    setattr(RestingTrainer, "train", training)  # noqa: B010
    setattr(InnerTrainer, "_step", a_step)  # noqa: B010


def peer_main(address: str, home: Path, rounds: int) -> None:
    from dipaco_swarm.peer.program import run_peer
    from dipaco_swarm.run.address import RunAddress
    from dipaco_swarm.settings import PeerSettings

    watch = Watch()
    watch_volunteer(watch)
    threading.Thread(target=watch.sample, daemon=True).start()
    run_peer(
        PeerSettings(
            address=RunAddress.parse(address),
            path=0,
            home=home,
            cache=home.parent / "cache",
            listen="/ip4/127.0.0.1/tcp/0",
            device="cpu",
            micro_batch=None,
            threads=1,
            until_finished=False,
            rounds=rounds,
            screen="plain",
        )
    )
    (home / "memory.json").write_text(json.dumps(watch.report()))


# ------------------------------------------------------------------------------------------------------- a run, a table


def config_of(millions: float, *, overlap: bool, peers: int) -> RunConfig:
    half, width = BLOCKS // 2, WIDTHS[millions]
    return RunConfig.model_validate(
        {
            "name": "memory",
            "min_peers": peers,
            "model": {
                "hidden_size": width,
                "intermediate_size": 8 * width // 3 // 8 * 8,
                "num_hidden_layers": BLOCKS,
                "num_attention_heads": 4,
                "max_position_embeddings": 64,
            },
            "levels": [
                {"embedding": True, "blocks": list(range(half))},
                {"blocks": list(range(half, BLOCKS)), "head": True},
            ],
            "tokenizer": {"vocab_size": 512},
            "data": {"source": "python", "max_documents": 300, "sequence_length": 64},
            "inner": {"batch_sequences": 1, "learning_rate": 1e-4},
            "rounds": {"inner_steps": STEPS[millions], "overlap": overlap},
            "wire": {"codec": "int8"},
            "stages": [{"router": "single"}],
        },
        strict=False,
    )


def play(millions: float, rounds: int, *, overlap: bool, partner: bool) -> dict[str, Any]:
    """What the peer found; and what the bootstrap node has in memory in the end."""
    config = config_of(millions, overlap=overlap, peers=1 + partner)
    with tempfile.TemporaryDirectory(prefix="dipaco-memory-") as name, Troupe(Path(name) / "logs") as troupe:
        folder = Path(name)
        (folder / "run.toml").write_text(toml_of(config))
        serve = [
            "serve",
            str(folder / "run.toml"),
            "--home",
            str(folder / "bootstrap"),
            "--listen",
            "/ip4/127.0.0.1/tcp/0",
        ]
        node = troupe.start("bootstrap", "dipaco_swarm.cli.bootstrap", [*serve, "--screen", "plain"])
        until(troupe, (folder / "bootstrap" / "address.txt").exists)
        address = (folder / "bootstrap" / "address.txt").read_text().strip()
        for peer in ("partner", "measured") if partner else ("measured",):
            told = ["--peer", str(folder / peer), "--run", address, "--rounds", str(rounds)]
            troupe.start(peer, "benchmarks.memory", told)
        until(troupe, (folder / "measured" / "memory.json").exists)
        found: dict[str, Any] = json.loads((folder / "measured" / "memory.json").read_text())
        found["bootstrap"] = rss_anon(node.handle.pid)
    return found


def until(troupe: Troupe, condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT_SECONDS
    while not condition():
        troupe.check()
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {LIMIT_SECONDS:.0f} s")
        time.sleep(0.2)


def rss_anon(process: int) -> int:
    text = Path(f"/proc/{process}/status").read_text()
    found = re.search(r"RssAnon:\s+(\d+)", text)
    return int(found[1]) << 10 if found else 0


def parameters_of(found: Mapping[str, Any]) -> int:
    return int(found["kinds"][TRAINING]["parameters"]) // 4


def table(millions: Sequence[int], rounds: int, modes: Sequence[str], *, partner: bool) -> Iterator[str]:
    for overlap in (mode == "overlapped" for mode in modes):
        zero = play(TINY, rounds, overlap=overlap, partner=partner)
        for size in millions:
            found = play(size, rounds, overlap=overlap, partner=partner)
            count = parameters_of(found)
            yield f"\n{count / MEGA:.1f} million parameters, {'overlapped' if overlap else 'blocking'} rounds\n"
            yield "| while | own, B a parameter | peak | all, B a parameter | peak | training waits, s |"
            yield "|---|---|---|---|---|---|"
            for what in found["own"]:
                cells = [(found[kind][what] - zero["own"][TRAINING]) / count for kind in MEASURED[:2]]
                cells += [(found[kind][what] - zero["all"][TRAINING]) / count for kind in MEASURED[2:]]
                stops = found["stopped"].get(what, []) if what in (SAVE, ROUND) else []
                seconds = f"{median(stops):.3f}, {max(stops):.3f}, {len(stops)}" if stops else ""
                yield f"| {what} | {' | '.join(f'{cell:.1f}' for cell in cells)} | {seconds} |"
            yield f"| bootstrap node | {(found['bootstrap'] - zero['bootstrap']) / count:.1f} | | | | |"
            yield ""
            for what, kinds in found["kinds"].items():
                listed = ", ".join(f"{kind} {size / count:.1f}" for kind, size in kinds.items() if size)
                yield f"- {what}: {listed}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parameters", nargs="+", type=int, default=[10, 60], choices=[10, 30, 60, 100])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--modes", nargs="+", default=["blocking", "overlapped"], choices=["blocking", "overlapped"])
    parser.add_argument("--alone", action="store_true", help="without a partner")
    parser.add_argument("--peer", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--run", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.peer is not None:
        peer_main(options.run, options.peer, options.rounds)
        return 0
    for line in table(options.parameters, options.rounds, options.modes, partner=not options.alone):
        print(line, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
