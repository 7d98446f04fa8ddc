"""What share of the time a peer trains over a home line: real peers in network namespaces, computing done by sleeping.

    python -m benchmarks.utilisation [--groups two grid] [--minutes 1 5] [--rounds 6] [--blocking]

A path of 15 million parameters that trains for T / 10 minutes between two rounds stands for one of 150 million and T
minutes, on the same line. Needs root, iproute2 and iptables. Exit code 1 when a peer trains less than 95 % of the time,
or less than 90 % where T is below five minutes. `benchmarks.simulated_utilisation` plays more rows, in virtual time.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.chaos import crew as crews
from benchmarks.chaos.lab import Lab, Link
from benchmarks.chaos.story import Story, Verdict, run_file
from dipaco_swarm.algorithm.paths import PathIndex
from dipaco_swarm.training.checkpoint import file_of, trained
from dipaco_swarm.training.inner import InnerTrainer, StepReport

SCALE = 10
INNER_STEPS = 30
HOME = Link(up_mbit=20, down_mbit=100, round_trip_ms=50)
RENTED = Link(up_mbit=1000, down_mbit=1000, round_trip_ms=10)
"""Where a bootstrap node is."""
GRID = ((0, 0), (0, 1), (1, 0), (1, 1))
MODEL = {"hidden_size": 768, "intermediate_size": 2048, "num_attention_heads": 4}
"""Two levels of 7.9 million parameters."""
BATCH_TOKENS = 4 * 128
BEGIN_SECONDS = 600.0


def compute_by_sleeping(step_seconds: float) -> None:
    """An inner step of this process moves a few parameters, and takes so long."""

    def step(
        trainer: InnerTrainer, optimizer: torch.optim.Optimizer, batch: Tensor, stop: Callable[[], bool]
    ) -> StepReport:
        time.sleep(step_seconds)
        with torch.no_grad():
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    row = parameter.view(-1)[:1024]
                    row.add_(torch.randn(len(row)), alpha=1e-3)
        trainer._steps_done += 1
        return StepReport(trainer._steps_done, 5.0, 1e-3, batch.numel(), step_seconds)

    setattr(InnerTrainer, "_step", step)  # noqa: B010  # in a process of its own


@dataclass(frozen=True)
class Row:
    """What came of one run."""

    group: str
    minutes: float
    overlap: bool
    shares: Sequence[float]
    seconds_a_version: float
    """At true scale."""
    bytes_up: float
    """A parameter and version, of a peer on average, for all purposes, with the headers of the packets."""

    @property
    def is_fine(self) -> bool:
        return min(self.shares) >= (0.95 if self.minutes >= 5 else 0.9)

    def __str__(self) -> str:
        cells: Sequence[Any] = (
            self.group,
            f"{self.minutes:g}",
            "overlapped" if self.overlap else "blocking",
            f"{100 * min(self.shares):.0f} %",
            f"{100 * sum(self.shares) / len(self.shares):.0f} %",
            f"{self.seconds_a_version:.0f}",
            f"{self.bytes_up:.1f}",
        )
        return f"| {' | '.join(map(str, cells))} |"


def play(group: str, minutes: float, rounds: int, *, overlap: bool) -> Row:
    stage = {"router": "k-means", "paths": GRID} if group == "grid" else None
    changes = {
        "model": MODEL,
        "data": {"max_documents": 200},
        "rounds": {"inner_steps": INNER_STEPS, "overlap": overlap},
    }
    config = run_file("utilisation", stage, {}, changes)
    paths = len(GRID) if stage else 2
    step = 60 * minutes / SCALE / INNER_STEPS
    with tempfile.TemporaryDirectory(prefix="dipaco-utilisation-") as name, Lab() as lab:
        folder = Path(name)
        with crews.Crew(folder) as crew:
            story = Story(lab, crew, config, 0, folder / "cache", Verdict(), print)
            story.prelude = partial(compute_by_sleeping, step)
            story.bootstrap(RENTED, until_finished=False)
            peers = [story.peer(f"peer-{number}", number if stage else 0, HOME) for number in range(paths)]
            story.until(lambda: story.version() >= 1, "every module has its first version", BEGIN_SECONDS)
            last = len(config.stages) - 1
            files = {
                peer.name: file_of(peer.home, last, PathIndex(number if stage else 0))
                for number, peer in enumerate(peers)
            }
            before = {peer: trained(file) for peer, file in files.items()}
            sent = {peer.name: peer.line.counters().bytes_out for peer in peers}
            versions, began = story.version(), time.monotonic()
            story.pause(rounds * 60 * minutes / SCALE)
            passed = time.monotonic() - began
            shares = [(trained(file) - before[peer]) / BATCH_TOKENS * step / passed for peer, file in files.items()]
            made = max(1, story.version() - versions)
            up = sum(peer.line.counters().bytes_out - sent[peer.name] for peer in peers) / len(peers)
    return Row(group, minutes, overlap, shares, SCALE * passed / made, up / made / 15.8e6)


def rows(options: argparse.Namespace) -> Iterator[Row]:
    for group, minutes in product(options.groups, options.minutes):
        yield play(group, minutes, options.rounds, overlap=not options.blocking)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--groups", nargs="+", choices=["two", "grid"], default=["two", "grid"])
    parser.add_argument("--minutes", nargs="+", type=float, default=[1, 5])
    parser.add_argument("--rounds", type=int, default=6, help="so many times the training of a round is played")
    parser.add_argument("--blocking", action="store_true", help="training waits for rounds")
    options = parser.parse_args()
    if missing := Lab.missing():
        print(missing, file=sys.stderr)
        return 2
    crews.prepare()
    print("| group | T, minutes | rounds | trained, least | mean | s a version | B up |\n|---|---|---|---|---|---|---|")
    fine = True
    for row in rows(options):
        print(row, flush=True)
        fine = fine and row.is_fine
    return 0 if fine or options.blocking else 1


if __name__ == "__main__":
    sys.exit(main())
