"""What share of the time a peer trains over a home line: real peers in network namespaces, computing done by sleeping.

    python -m benchmarks.utilisation [--quick] [--groups two grid] [--lines home far] [--minutes 1 5 30] [--blocking]

A path of 15 million parameters that trains for T / 10 minutes between two rounds stands for one of 150 million and T
minutes, on the same line. Needs root, iproute2 and iptables. Exit code 1 when a row misses an aim (see `Row.missed`).
`--quick` is the home line, two peers and the grid, T for 1 and 5 minutes, looked at for 45 and 60 seconds: ten minutes.
Rows that differ in T alone are of one run, whose inner steps take longer from the second one on.
What counts as trained is what `dipaco_swarm/peer/usage.py` says, as the peers wrote it down; speed is the tokens of
that time, of those that they would have had in all of it without rounds. Tokens are the ledger's of
`benchmarks/chaos`. `benchmarks.simulated_utilisation` plays more rows, in virtual time.

Bytes are what a peer sends, a parameter of its path and version: all that leaves its network interface; of that the
rounds, keeping (versions for the keeper, and for members that are behind), and what joining takes, as it counts them
itself; what is left is the directory's, with messages, headers of packets, acknowledgements and encryption.
"""

import argparse
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.chaos import crew as crews
from benchmarks.chaos.crew import Member
from benchmarks.chaos.lab import Lab, Link
from benchmarks.chaos.story import Disappointed, Story, Verdict, run_file
from benchmarks.chaos.tokens import Account
from dipaco_swarm.events.usage import Usage
from dipaco_swarm.files import replace_whole
from dipaco_swarm.strategies import CODECS
from dipaco_swarm.swarm.round.reduction import MAX_PIECE
from dipaco_swarm.training.inner import InnerTrainer, StepReport

TRAINED_AIM = 0.95
"""Of the time, for whoever trained least of it, where a round trains for LONG_MINUTES or longer."""
LONG_MINUTES = 5.0
SHORT_TRAINED_AIM = 0.90
"""Where it trains for less."""
FAR_TRAINED_AIM = 0.90
"""On the far line."""
GOODPUT_AIM = 0.99
"""Tokens in versions, and those that are brought to the next ones, of all that were trained."""
VERSIONS_AIM = 1
"""Of every module, in every row."""

SCALE = 10
INNER_STEPS = 30
PARAMETERS = 15.8e6
"""Of a path: two levels of 7.9 million."""
MODEL = {"hidden_size": 768, "intermediate_size": 2048, "num_attention_heads": 4}
FAR = Link(up_mbit=10, down_mbit=10, round_trip_ms=200, loss_percent=2)
LINES = {
    "home": Link(up_mbit=20, down_mbit=100, round_trip_ms=50),
    "far": FAR,
    "far-bbr": replace(FAR, congestion_control="bbr"),
    "1000": Link(up_mbit=1000, down_mbit=1000, round_trip_ms=10),
}
"""`far-bbr`: as the doctor recommends on such a line."""
RENTED = Link(up_mbit=1000, down_mbit=1000, round_trip_ms=10)
"""Where a bootstrap node is."""
GROUPS = {"two": None, "four": None, "grid": ((0, 0), (0, 1), (1, 0), (1, 1))}
"""Path tables; None: all peers are on one path."""
PEERS = {"two": 2, "four": 4, "grid": 4}
BEGIN_SECONDS = END_SECONDS = 600.0
LEAST_SECONDS, QUICK_SECONDS = 90.0, 45.0
"""A row is looked at for at least so long, however short its rounds are."""
QUICK_ROUNDS = 2
USAGE_SECONDS = 300.0
"""A peer that trains writes down its usage every ten seconds; one that does not for so long stands still."""


def compute_by_sleeping(pace: float | Path) -> None:
    """An inner step of this process moves all parameters anyhow, and takes so long, or as long as this file says."""
    generator = torch.Generator()
    generator.seed()  # else all processes move alike: of two peers alone, both would come to the same bytes
    # longer than a piece: within what is encoded at once nothing comes twice
    noise = 1e-3 * torch.randn(2 * MAX_PIECE, generator=generator)

    def step(
        trainer: InnerTrainer, optimizer: torch.optim.Optimizer, batch: Tensor, stop: Callable[[], bool]
    ) -> StepReport:
        began = time.perf_counter()
        with torch.no_grad():
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    for part in parameter.view(-1).split(MAX_PIECE):
                        begin = int(torch.randint(len(noise) - len(part) + 1, (), generator=generator))
                        part.add_(noise[begin : begin + len(part)])
        moved = time.perf_counter() - began  # as long as the optimizer of a step that computes: a part of the step
        seconds = pace if isinstance(pace, float) else float(pace.read_text())
        time.sleep(max(0.0, seconds - moved))
        trainer._steps_done += 1
        return StepReport(trainer._steps_done, 5.0, 1e-3, batch.numel(), time.perf_counter() - began)

    setattr(InnerTrainer, "_step", step)  # noqa: B010  # in a process of its own


@dataclass(frozen=True)
class Row:
    """What came of one run."""

    line: str
    group: str
    minutes: float
    overlap: bool
    shares: Sequence[float]
    """Of the time, by peer."""
    speed: float
    """Tokens trained, of those that inner steps alone would have, all peers together: less than the shares by what
    rounds slow a step down, in threads beside it."""
    goodput: float
    versions: int
    """Of the module that had the fewest, in the time that was looked at."""
    seconds_a_version: float
    """At true scale, as the next one."""
    longest_seconds: float
    """Without a version of some module."""
    bytes_up: float
    """A parameter and version, of a peer on average, for all purposes, with the headers of the packets."""
    bytes_for: Mapping[str, float]
    """Of these, by purpose."""
    wrong: Sequence[str] = ()
    """What does not add up of its tokens."""

    @property
    def trained_aim(self) -> float:
        if self.line.startswith("far"):
            return FAR_TRAINED_AIM
        return TRAINED_AIM if self.minutes >= LONG_MINUTES else SHORT_TRAINED_AIM

    @property
    def missed(self) -> list[str]:
        """The aims that it misses, in words."""
        aims = (
            ("trained", min(self.shares), self.trained_aim),
            ("goodput", self.goodput, GOODPUT_AIM),
            ("versions", self.versions, VERSIONS_AIM),
        )
        return [*(f"{what} {seen:.3g}, aim {aim:g}" for what, seen, aim in aims if seen < aim), *self.wrong]

    def __str__(self) -> str:
        purposes = [self.bytes_for.get(purpose, 0.0) for purpose in ("round", "versions", "joining")]
        cells: Sequence[Any] = (
            self.line,
            self.group,
            f"{self.minutes:g}",
            "overlapped" if self.overlap else "blocking",
            f"{100 * min(self.shares):.0f} %",
            f"{100 * sum(self.shares) / len(self.shares):.0f} %",
            f"{100 * self.speed:.0f} %",
            f"{100 * self.goodput:.1f} %",
            f"{self.seconds_a_version:.0f}",
            f"{self.longest_seconds:.0f}",
            f"{self.bytes_up:.2f}",
            *(f"{count:.2f}" for count in (*purposes, self.bytes_up - sum(purposes))),
        )
        return f"| {' | '.join(map(str, cells))} |"


HEAD = (
    "| line | group | T, minutes | rounds | trained, least | mean | speed | goodput | s a version | longest | B up "
    "| round | keeping | joining | directory |\n" + "|---" * 15 + "|"
)


def play(
    line: str, group: str, minutes: Sequence[float], seconds_of: Callable[[float], float], codec: str, *, overlap: bool
) -> Iterator[Row]:
    """One run, a row for each T. Each is looked at for so long and on to the next version; the rows come at the end.

    Raises Disappointed when its peers do not get to a first version, or stand still in the end.
    """
    table = GROUPS[group]
    paths_of_all = {} if table is None else {"router": "k-means", "paths": table}  # at once, without a warm-up
    changes: dict[str, dict[str, Any]] = {
        "model": MODEL,
        "data": {"max_documents": 60},
        "rounds": {"inner_steps": INNER_STEPS, "overlap": overlap},
        "wire": {"codec": codec},
    }
    config = run_file("utilisation", None, paths_of_all, changes)
    with tempfile.TemporaryDirectory(prefix="dipaco-utilisation-") as name, Lab() as lab:
        folder = Path(name)
        pace = folder / "step-seconds"
        with crews.Crew(folder) as crew:
            story = Story(lab, crew, config, 0, folder / "cache", Verdict(), to_stderr)
            story.prelude = partial(compute_by_sleeping, pace)
            _write(pace, minutes[0])
            node = story.bootstrap(replace(RENTED, congestion_control=LINES[line].congestion_control))
            paths = range(PEERS[group])
            peers = [story.peer(f"peer-{i}", 0 if table is None else i, LINES[line]) for i in paths]
            looks = []
            for t in minutes:
                _write(pace, t)
                story.tell(f"{line}, {group}: T is {t:g} minutes")
                _next_version(story)  # it begins with a version and ends with one: so bytes are those of whole rounds
                looks.append(_Look(story, peers, t))
                story.pause(seconds_of(t))
                _next_version(story)
                looks[-1].end()
            story.tell("ending")
            story.finish(node, END_SECONDS)  # not Ctrl+C: who leaves in the middle of a round may lose what it gave
            tokens = sum(story.accounts().values(), Account())
            story.tell(f"tokens, of each module that they were trained on: {tokens}")
            if tokens.wrong or tokens.lost:
                kept = shutil.copytree(folder, f"{folder}-kept", ignore=shutil.ignore_patterns("cache", "blobs"))
                to_stderr(f"what its peers wrote down is in {kept}")
            yield from (look.row(line, group, overlap, tokens) for look in looks)


def step_seconds(minutes: float) -> float:
    """Of an inner step, where a round trains for so long at true scale."""
    return 60 * minutes / SCALE / INNER_STEPS


def _write(file: Path, minutes: float) -> None:
    replace_whole(file, str(step_seconds(minutes)).encode(), durable=False)


def _next_version(story: Story) -> None:
    before = story.version()
    story.until(lambda: story.version() > before, "every module has one version more", BEGIN_SECONDS)


class _Look:
    """A time that is looked at. It begins with the making."""

    def __init__(self, story: Story, peers: Sequence[Member], minutes: float) -> None:
        self._story = story
        self._peers = peers
        self._minutes = minutes
        self._began, self._at = time.monotonic(), time.time()
        self._before = [_last_usage(peer) for peer in peers]
        self._versions = story.version()
        self._sent = [peer.line.counters().bytes_out for peer in peers]
        self._after: list[Usage] = []
        self._made = 0
        self._passed = self._longest = 0.0
        self._up: list[int] = []

    def end(self) -> None:
        """Waits for what each peer says next of its time: one that stands still says nothing until it trains again."""
        story, told = self._story, [len(peer.reported(Usage)) for peer in self._peers]
        self._passed = time.monotonic() - self._began
        self._made = story.version() - self._versions
        self._longest = story.facts().longest_gap(self._at, time.time())
        sent = [peer.line.counters().bytes_out for peer in self._peers]
        self._up = [now - before for now, before in zip(sent, self._sent, strict=True)]
        story.until(
            lambda: all(len(peer.reported(Usage)) > count for peer, count in zip(self._peers, told, strict=True)),
            "every peer trains again",
            USAGE_SECONDS,
        )
        self._after = [peer.reported(Usage)[count] for peer, count in zip(self._peers, told, strict=True)]

    def row(self, line: str, group: str, overlap: bool, tokens: Account) -> Row:
        """What was seen. `tokens`: of the whole run, once everybody has left."""
        pairs = list(zip(self._before, self._after, strict=True))
        a_version = max(1, self._made) * PARAMETERS * len(pairs)
        sent_for = {
            purpose: sum(
                (after.sent[purpose] - before.sent.get(purpose, 0)) * self._passed / (after.seconds - before.seconds)
                for before, after in pairs
            )
            for purpose in pairs[0][1].sent
        }
        return Row(
            line,
            group,
            self._minutes,
            overlap,
            [_share(before, after) for before, after in pairs],
            sum(after.tokens - before.tokens for before, after in pairs)
            / self._story.config.tokens_per_step
            * step_seconds(self._minutes)
            / sum(after.seconds - before.seconds for before, after in pairs),
            1 - tokens.lost_in_all / max(1, tokens.trained),
            self._made,
            SCALE * self._passed / max(1, self._made),
            SCALE * self._longest,
            sum(self._up) / a_version,
            {purpose: count / a_version for purpose, count in sent_for.items()},
            tokens.wrong,
        )


def _share(before: Usage, after: Usage) -> float:
    """Of the time between them that was trained."""
    return (after.trained_seconds - before.trained_seconds) / (after.seconds - before.seconds)


def _last_usage(peer: Member) -> Usage:
    """What a peer has said last of its time; nothing yet: it has trained nothing."""
    told = peer.reported(Usage)
    return told[-1] if told else Usage(0.0, 0.0, 0, {}, {})


def to_stderr(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def played(options: argparse.Namespace) -> Iterator[tuple[str, Row | Disappointed]]:
    """Every row by its name, or why there is none."""

    def seconds(minutes: float) -> float:
        looked: float = max(options.least, options.rounds * 60 * minutes / SCALE)
        return looked

    for line, group in product(options.lines, options.groups):
        try:
            for row in play(line, group, options.minutes, seconds, options.codec, overlap=not options.blocking):
                yield f"{line}, {group}, {row.minutes:g} min", row
        except Disappointed as disappointed:
            yield f"{line}, {group}", disappointed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two and grid at home, T for 1 and 5 minutes")
    parser.add_argument("--groups", nargs="+", choices=list(GROUPS), default=["two", "grid"])
    parser.add_argument("--lines", nargs="+", choices=list(LINES), default=["home"])
    parser.add_argument("--minutes", nargs="+", type=float, default=[1, 5, 30])
    parser.add_argument("--rounds", type=int, default=6, help="so many times the training of a round is looked at")
    parser.add_argument("--codec", choices=list(CODECS), default="int8")
    parser.add_argument("--blocking", action="store_true", help="training waits for rounds; no aim is for that")
    parser.set_defaults(least=LEAST_SECONDS)
    options = parser.parse_args()
    if options.quick:
        options.least, options.rounds = QUICK_SECONDS, QUICK_ROUNDS
        options.groups, options.lines, options.minutes = ["two", "grid"], ["home"], [1, 5]
    if missing := Lab.missing():
        print(missing, file=sys.stderr)
        return 2
    crews.prepare()
    print(HEAD, flush=True)
    missed = []
    for name, row in played(options):
        if isinstance(row, Row):
            print(row, flush=True)
        aims = row.missed if isinstance(row, Row) else [str(row)]
        missed += [f"missed, {name}: {aim}" for aim in aims]
    print("\n".join(["", *missed]) if missed else "\nall aims are met")
    return 1 if missed and not options.blocking else 0


if __name__ == "__main__":
    sys.exit(main())
