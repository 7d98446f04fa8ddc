"""How soon a peer that was away for some versions trains again, on a home line: real peers in network namespaces.

    python -m benchmarks.away [--versions 3] [--minutes 1]

Three peers share one path of 15 million parameters, which stands for one of 150 (`benchmarks/utilisation.py`). One
leaves by Ctrl+C, the others make some versions, and it comes back. The seconds are those from its joining on, which has
the manifest: until the end of its first ten inner steps, less these steps, and until it has every module as the others
do. Needs root, iproute2 and iptables. Exit code 1 when the aims are missed: a tenth of the
time that a state of 8 bytes a parameter takes from the two others, whose lines are slower up than ours is down, and
training nine tenths of the time until it has caught up.
"""

import argparse
import sys
import tempfile
from functools import partial
from pathlib import Path

from benchmarks.chaos import crew as crews
from benchmarks.chaos.crew import Member
from benchmarks.chaos.lab import Lab
from benchmarks.chaos.story import Story, Verdict, run_file
from benchmarks.utilisation import (
    BEGIN_SECONDS,
    END_SECONDS,
    INNER_STEPS,
    LINES,
    MODEL,
    PARAMETERS,
    RENTED,
    compute_by_sleeping,
    step_seconds,
    to_stderr,
)
from dipaco_swarm.events.event import Event
from dipaco_swarm.events.lines import Entry
from dipaco_swarm.events.training import CaughtUp, Steps
from dipaco_swarm.events.volunteer import Joined

STATE_BYTES = 8
"""A parameter of a state: what a peer had to fetch before it trained, once."""
TENTH, TRAINED_AIM = 0.1, 0.9


def in_last_life(peer: Member) -> list[Entry]:
    """What a peer has reported since it joined last, with the times."""
    entries = peer.told.entries()
    last = max(number for number, entry in enumerate(entries) if isinstance(entry.event, Joined))
    return entries[last:]


def first(entries: list[Entry], kind: type[Event], times: int = 1) -> float | None:
    """When something was reported so often, in seconds after joining; None: not yet."""
    found = [entry.time for entry in entries if isinstance(entry.event, kind)]
    return found[times - 1] - entries[0].time if len(found) >= times else None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--versions", type=int, default=3, help="that it misses")
    parser.add_argument("--minutes", type=float, default=1, help="that a round trains, at 150 million parameters")
    options = parser.parse_args()
    if missing := Lab.missing():
        print(missing, file=sys.stderr)
        return 2
    crews.prepare()
    step = step_seconds(options.minutes)
    changes = {"model": MODEL, "data": {"max_documents": 200}, "rounds": {"inner_steps": INNER_STEPS}}
    config = run_file("away", None, {}, {**changes, "wire": {"codec": "int8"}})
    with tempfile.TemporaryDirectory(prefix="dipaco-away-") as name, Lab() as lab:
        folder = Path(name)
        with crews.Crew(folder) as crew:
            story = Story(lab, crew, config, 0, folder / "cache", Verdict(), to_stderr)
            story.prelude = partial(compute_by_sleeping, step)
            node = story.bootstrap(RENTED)
            leaver, *_ = [story.peer(f"peer-{number}", 0, LINES["home"]) for number in range(3)]
            story.until(lambda: story.version() >= 2, "all have made a version or two", BEGIN_SECONDS)
            leaver.ctrl_c()
            story.until_version(story.version() + options.versions, BEGIN_SECONDS)
            leaver.start()
            story.until(lambda: bool(leaver.reported(Joined)), "it is back", BEGIN_SECONDS)
            story.until(
                lambda: first(in_last_life(leaver), CaughtUp, len(config.levels)) is not None,
                "it has caught up with every module",
                BEGIN_SECONDS,
            )
            entries = in_last_life(leaver)
            story.finish(node, END_SECONDS)
    ten, caught_up = first(entries, Steps), first(entries, CaughtUp, len(config.levels))
    assert ten is not None
    assert caught_up is not None
    tens = [entry.time - entries[0].time for entry in entries if isinstance(entry.event, Steps)]
    until_then = [seconds for seconds in tens if seconds <= caught_up] or [ten]
    training = ten - 10 * step
    trained = 10 * len(until_then) * step / (until_then[-1] - training)  # it tells of ten steps at a time
    home = LINES["home"]
    assert home.up_mbit is not None
    assert home.down_mbit is not None
    whole = STATE_BYTES * PARAMETERS / (1e6 / 8 * min(home.down_mbit, 2 * home.up_mbit))
    columns = ("versions missed", "s until it trains", "s until it has caught up", "of that trained", "s for a state")
    print(f"| {' | '.join(columns)} |\n{'|---' * len(columns)}|")
    print(f"| {options.versions} | {training:.1f} | {caught_up:.1f} | {100 * trained:.0f} % | {whole:.1f} |")
    missed = training > TENTH * whole or trained < TRAINED_AIM
    print("an aim is missed" if missed else "all aims are met")
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
