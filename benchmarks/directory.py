"""What a peer says while it only trains: real peers in network namespaces, in no round, counted at their interfaces.

    python -m benchmarks.directory [--peers 4 8 16] [--seconds 120]

Each has a path of its own in a grid of two levels, and computes by sleeping. Bytes are a peer's and second, mean and
most, with the headers of packets, acknowledgements and encryption; the node is the bootstrap node. Needs root,
iproute2 and iptables. Exit code 1 when a peer sends more than `AIM_KB` on average.
"""

import argparse
import statistics
import sys
import tempfile
from functools import partial
from itertools import product
from pathlib import Path

from benchmarks.chaos import crew as crews
from benchmarks.chaos.crew import Member
from benchmarks.chaos.lab import Lab
from benchmarks.chaos.story import Story, Verdict, run_file
from benchmarks.utilisation import LINES, RENTED, compute_by_sleeping, to_stderr
from dipaco_swarm.events.usage import Usage

AIM_KB = 2.0
STEP_SECONDS = 1.0
SIDES = {4: (2, 2), 8: (4, 2), 16: (4, 4)}
"""Peers -> modules at each of the two levels."""
SETTLE_SECONDS = 150.0
"""From when all train to when bytes are counted: who has come says more than who is there."""
BEGIN_SECONDS = 900.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", nargs="+", type=int, choices=list(SIDES), default=list(SIDES))
    parser.add_argument("--seconds", type=float, default=120.0, help="so long bytes are counted")
    options = parser.parse_args()
    if missing := Lab.missing():
        print(missing, file=sys.stderr)
        return 2
    crews.prepare()
    print("| peers | kB/s out, mean | most | kB/s in, mean | packets/s out | messages kB/s | node out | node in |")
    print("|---" * 8 + "|", flush=True)
    sent = [play(count, options.seconds) for count in options.peers]
    return int(max(sent) > AIM_KB)


def play(count: int, seconds: float) -> float:
    """One swarm; prints its row. Returns kB that a peer sends a second, on average."""
    first, second = SIDES[count]
    paths = list(product(range(first), range(second)))
    far_off = {"inner_steps": 1_000_000}
    config = run_file(
        "quiet", {"router": "k-means", "paths": paths}, {}, {"data": {"max_documents": 200}, "rounds": far_off}
    )
    config = config.model_copy(update={"stages": config.stages[1:]})
    with tempfile.TemporaryDirectory(prefix="dipaco-directory-") as name, Lab() as lab:
        folder = Path(name)
        with crews.Crew(folder) as crew:
            story = Story(lab, crew, config, 0, folder / "cache", Verdict(), to_stderr)
            story.prelude = partial(compute_by_sleeping, STEP_SECONDS)
            node = story.bootstrap(RENTED)
            peers = [story.peer(f"peer-{i}", i, LINES["home"]) for i in range(count)]
            story.until(lambda: all(len(p.reported(Usage)) > 1 for p in peers), "all peers train", BEGIN_SECONDS)
            story.pause(SETTLE_SECONDS)
            before = [_counted(member) for member in (node, *peers)]
            story.pause(seconds)
            after = [_counted(member) for member in (node, *peers)]
            told = [peer.reported(Usage) for peer in peers]
    of_node, *of_peers = (
        [(now - then) / seconds for now, then in zip(late, early, strict=True)]
        for late, early in zip(after, before, strict=True)
    )
    said = statistics.fmean(
        (usages[-1].sent["messages"] - usages[-2].sent["messages"]) / (usages[-1].seconds - usages[-2].seconds)
        for usages in told
    )
    out, into, packets = ([of[i] for of in of_peers] for i in range(3))
    print(
        f"| {count} | {statistics.fmean(out) / 1e3:.2f} | {max(out) / 1e3:.2f} | {statistics.fmean(into) / 1e3:.2f} | "
        f"{statistics.fmean(packets):.1f} | {said / 1e3:.2f} | {of_node[0] / 1e3:.2f} | {of_node[1] / 1e3:.2f} |",
        flush=True,
    )
    return statistics.fmean(out) / 1e3


def _counted(member: Member) -> tuple[int, int, int]:
    line = member.line.counters()
    return line.bytes_out, line.bytes_in, line.packets_out


if __name__ == "__main__":
    sys.exit(main())
