"""How a peer gives way: seconds until it pauses and goes on, and what it costs while it is paused, or has finished.

    python -m benchmarks.manners [--seconds 60]

Two real peers train one path, in network namespaces with home lines. One of them is told to pause and to resume by its
command, then `stress-ng` takes all cores; in a second, short run both stay when it is over. CPU is that of all its
processes, as a share of one core; bytes are counted at its interface, with headers and encryption. Seconds are from the
command, or the start and end of stress-ng, to the peer's own event. Needs root, iproute2, iptables, and stress-ng for
its row, which also needs a machine that nobody else uses. Exit code 1 when a figure misses its aim.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import psutil

from benchmarks.chaos import crew as crews
from benchmarks.chaos.crew import Member
from benchmarks.chaos.lab import Lab
from benchmarks.chaos.story import Story, Verdict, run_file
from benchmarks.utilisation import LINES, RENTED, to_stderr
from dipaco_swarm.events.event import Event
from dipaco_swarm.events.pausing import GoesOn, Pauses
from dipaco_swarm.events.training import Round
from dipaco_swarm.events.volunteer import Waiting
from dipaco_swarm.machine.manners import CALM_SECONDS, CPU_CALM
from dipaco_swarm.machine.others import CpuOfOthers
from dipaco_swarm.machine.watching import ask_for_pause, let_go_on

CPU_AIM, KB_AIM, YIELD_AIM = 0.01, 1.0, 2.0
SETTLE_SECONDS = 90.0
"""From the pause to when its costs are counted: rounds end, and the directory becomes quiet."""
START_SECONDS = 600.0
SHORT_ROUNDS, SHORT_STEPS = 2, 100
"""Of the run that is over soon."""
INNER_STEPS = 4000
"""Of a path and round: half a minute to a minute and a half on a core, where real runs take minutes. Every version is
news, of which the directory of a paused peer has its part: with ten seconds a round it sends twice as much."""
EVENT_SECONDS = 240.0
LOOK_SECONDS = 5.0


@dataclass(frozen=True)
class Cost:
    """Of one peer and second."""

    cpu: float
    kb_out: float
    kb_in: float

    def __str__(self) -> str:
        return f"{100 * self.cpu:.2f} % | {self.kb_out:.2f} | {self.kb_in:.2f}"


def cost(member: Member, wait: Callable[[float], None], seconds: float) -> Cost:
    """What it uses in the next seconds."""

    def used() -> tuple[float, int, int]:
        total = 0.0
        for process in (member.process, *member.process.children(recursive=True)):
            with suppress(psutil.NoSuchProcess):
                times = process.cpu_times()
                total += times.user + times.system
        line = member.line.counters()
        return total, line.bytes_out, line.bytes_in

    before, began = used(), time.monotonic()
    wait(seconds)
    after, took = used(), time.monotonic() - began
    cpu, out, into = ((now - then) / took for now, then in zip(after, before, strict=True))
    return Cost(cpu, out / 1e3, into / 1e3)


def seconds_until(story: Story, member: Member, kind: type[Event], since: float) -> float:
    """From `since`, by the wall clock, to the member's first event of this kind after it."""

    def times() -> list[float]:
        entries = member.told.entries()
        return [entry.time for entry in entries if isinstance(entry.event, kind) and entry.time >= since]

    story.until(lambda: bool(times()), f"{member.name} says {kind.kind}", EVENT_SECONDS)
    return times()[0] - since


def others_use() -> float:
    """Share of all cores that programs of normal priority use just now."""
    look = CpuOfOthers()
    look.look()
    time.sleep(LOOK_SECONDS)
    return look.look()


def play(seconds: float) -> int:
    """All of it; prints the table. Returns how many aims were missed."""
    changes = {"data": {"max_documents": 200}, "rounds": {"inner_steps": INNER_STEPS}}
    config = run_file("manners", None, {"rounds": 10**6}, changes)
    missed = 0
    with tempfile.TemporaryDirectory(prefix="dipaco-manners-") as name, Lab() as lab:
        folder = Path(name)
        with crews.Crew(folder) as crew:
            story = Story(lab, crew, config, 0, folder / "cache", Verdict(), to_stderr)
            story.bootstrap(RENTED)
            guest = story.peer("guest", 0, LINES["home"])
            story.peer("other", 0, LINES["home"])
            story.until(lambda: all(p.reported(Round) for p in story.peers), "both make rounds", START_SECONDS)
            training = cost(guest, story.pause, seconds)
            asked = time.time()
            ask_for_pause(guest.home)
            yields = seconds_until(story, guest, Pauses, asked)
            story.pause(SETTLE_SECONDS)
            paused = cost(guest, story.pause, seconds)
            asked = time.time()
            let_go_on(guest.home)
            back = seconds_until(story, guest, GoesOn, asked)
            seconds_until(story, guest, Round, asked)
            print(f"| {'':22} | CPU of a core | kB/s out | kB/s in | s to pause | s to go on |")
            print("|---|---:|---:|---:|---:|---:|")
            print(f"| training | {training} | | |")
            print(f"| paused, dipaco-peer pause | {paused} | {yields:.1f} | {back:.1f} |", flush=True)
            missed += too_much(paused)
            missed += max(yields, back) > YIELD_AIM
            for each in story.peers:
                each.ctrl_c()
            missed += stressed(story, partial(story.peer, "polite", 0, LINES["home"], "--yield", "cpu"))
    return missed


def too_much(rests: Cost) -> int:
    """How many aims it misses."""
    return int(rests.cpu > CPU_AIM) + int(max(rests.kb_out, rests.kb_in) > KB_AIM)


def finished(seconds: float) -> int:
    """The row of a peer that stays when its run is over; how many aims it misses."""
    changes = {"data": {"max_documents": 200}, "rounds": {"inner_steps": SHORT_STEPS}}
    config = run_file("manners", None, {"rounds": SHORT_ROUNDS}, changes)
    with tempfile.TemporaryDirectory(prefix="dipaco-manners-") as name, Lab() as lab:
        folder = Path(name)
        with crews.Crew(folder) as crew:
            story = Story(lab, crew, config, 0, folder / "cache", Verdict(), to_stderr)
            story.peers_leave = False
            story.bootstrap(RENTED)
            both = [story.peer(name, 0, LINES["home"]) for name in ("guest", "other")]
            over = Waiting("finished")
            story.until(lambda: all(over in peer.reported(Waiting) for peer in both), "the run is over", START_SECONDS)
            story.pause(SETTLE_SECONDS)
            rests = cost(both[0], story.pause, seconds)
    print(f"| the run is over | {rests} | | |", flush=True)
    return too_much(rests)


def stressed(story: Story, start: Callable[[], Member]) -> int:
    """The row of stress-ng; whether it misses its aim."""
    if (busy := others_use()) >= CPU_CALM:
        print(f"| stress-ng | not measured: others use {100 * busy:.0f} % of this machine | | | | |")
        return 0
    if shutil.which("stress-ng") is None:
        print("| stress-ng | not measured: it is not installed | | | | |")
        return 0
    polite = start()
    story.until(lambda: bool(polite.reported(Round)), "it makes rounds", START_SECONDS)
    began = time.time()
    with subprocess.Popen(["stress-ng", "--quiet", "--cpu", str(psutil.cpu_count())]) as stress:
        try:
            yields = seconds_until(story, polite, Pauses, began)
            story.pause(SETTLE_SECONDS / 3)
        finally:
            stress.terminate()
    over = time.time()
    back = seconds_until(story, polite, GoesOn, over)
    print(f"| stress-ng on all cores | | | | {yields:.1f} | {back:.1f} |")
    print(f"(it goes on {CALM_SECONDS:.0f} s after others were last seen busy)", flush=True)
    return int(yields > YIELD_AIM) + int(back > CALM_SECONDS + YIELD_AIM + 1)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0, help="so long costs are counted")
    options = parser.parse_args()
    if missing := Lab.missing():
        print(missing, file=sys.stderr)
        return 2
    crews.prepare()
    return int(play(options.seconds) + finished(options.seconds) > 0)


if __name__ == "__main__":
    sys.exit(main())
