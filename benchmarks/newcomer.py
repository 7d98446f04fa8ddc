"""How soon a newcomer trains on a home line, and what it waits for: real peers in network namespaces.

    python -m benchmarks.newcomer [--documents 100]

A path of 50 million parameters, which the newcomer fetches once (8 bytes each) while it reads documents and routes
them: from the bootstrap node, which is some versions behind; the one other peer of its path is at home as well. What
came since comes while it trains. The inner steps sleep; everything else is real. The table has seconds from its joining
on: until its shard is ready, until it has a state of every module, until the end of its first ten inner steps, less
these steps; and what its own line needs for the states, with nothing else to receive. Needs root, iproute2 and
iptables. Exit code 1 when it trains before it has all states, or SLACK times later than the slower of documents and
line.
"""

import argparse
import sys
import tempfile
from functools import partial
from pathlib import Path

from benchmarks.away import STATE_BYTES, first, in_last_life
from benchmarks.chaos import crew as crews
from benchmarks.chaos.lab import Lab
from benchmarks.chaos.story import Story, Verdict, run_file
from benchmarks.utilisation import BEGIN_SECONDS, END_SECONDS, LINES, RENTED, compute_by_sleeping, to_stderr
from dipaco_swarm.events.training import Fetched, Steps
from dipaco_swarm.events.volunteer import Joined, ShardReady

MODEL = {"hidden_size": 1408, "intermediate_size": 3712, "num_attention_heads": 4}
PARAMETERS = 50.1e6
"""Of a path: two levels."""
STEP_SECONDS, INNER_STEPS = 2.0, 30
VERSIONS = 4
"""Of every module, when the newcomer comes: by then the node keeps one that was trained."""
SLACK = 2.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--documents", type=int, default=100, help="that everybody reads")
    options = parser.parse_args()
    if missing := Lab.missing():
        print(missing, file=sys.stderr)
        return 2
    crews.prepare()
    changes = {
        "model": MODEL,
        "data": {"max_documents": options.documents},
        "rounds": {"inner_steps": INNER_STEPS},
        "wire": {"codec": "int8"},
    }
    config = run_file("newcomer", None, {"router": "k-means", "paths": ((0, 0), (1, 1))}, changes)
    with tempfile.TemporaryDirectory(prefix="dipaco-newcomer-") as name, Lab() as lab:
        folder = Path(name)
        with crews.Crew(folder) as crew:
            story = Story(lab, crew, config, 0, folder / "cache", Verdict(), to_stderr)
            story.prelude = partial(compute_by_sleeping, STEP_SECONDS)
            node = story.bootstrap(RENTED)
            for path in (0, 1):
                story.peer(f"peer-{path}", path, LINES["home"])
            story.until(lambda: story.version() >= VERSIONS, f"every module has {VERSIONS} versions", BEGIN_SECONDS)
            late = story.peer("late", 0, LINES["home"])
            story.until(lambda: bool(late.reported(Joined)), "it is here", BEGIN_SECONDS)
            story.until(lambda: first(in_last_life(late), Steps) is not None, "it trains", BEGIN_SECONDS)
            entries = in_last_life(late)
            story.finish(node, END_SECONDS)
    shard, ten = first(entries, ShardReady), first(entries, Steps)
    states = first(entries, Fetched, len(config.levels))
    assert ten is not None
    assert shard is not None
    assert LINES["home"].down_mbit is not None
    training = ten - 10 * STEP_SECONDS
    line = STATE_BYTES * PARAMETERS / (1e6 / 8 * LINES["home"].down_mbit)
    columns = ("s until its shard is ready", "until it has all states", "until it trains", "of the line for the states")
    has = "-" if states is None else f"{states:.1f}"
    print(f"| {' | '.join(columns)} |\n{'|---' * len(columns)}|\n| {shard:.1f} | {has} | {training:.1f} | {line:.1f} |")
    missed = states is None or training < states or training > SLACK * max(shard, line)
    print("an aim is missed" if missed else "all aims are met")
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
