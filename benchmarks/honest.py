"""Swarms with nobody hostile, in virtual time: who comes in how soon, on how many lines of versions, and what is kept.

    python -m benchmarks.honest [--worlds 80] [--first 0] [--jobs 2]

Modules, machines, lines and gaps are drawn by the world's number. In one half of the worlds everybody stays; in the
other they stay for one to four minutes, leave or are killed, and others come. A line is printed for each world in which
something was seen: twins (two versions of one state), members that came in late or never, or modules whose versions
the operator's node does not keep. Exit code 1 when a program ended or an invariant did not hold.
"""

import argparse
import asyncio
import multiprocessing
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from random import Random

from benchmarks.simulated import prepare, workplace
from dipaco_swarm.swarm.tasks import end_all
from dipaco_swarm.testing.network import Line, home_line
from dipaco_swarm.testing.process import Machine
from dipaco_swarm.testing.run import Plan, StagePlan
from dipaco_swarm.testing.world import World

WIDTHS = ((2,), (3,), (2, 2), (1, 3), (2, 3), (1, 2, 3))
"""Modules of each level; a path for each combination."""
AFTER_SECONDS = 300.0
"""Goes on so long once the last one has come."""
COMING_SECONDS = 500.0
"""Where members come and go: for so long."""
LATE_ROUNDS, LATE_SECONDS = 3.0, 60.0
"""A member is late that is in no version after so many rounds of its own training, and so long."""
BEHIND, BEHIND_SHARE = 3, 0.3
"""The operator's node is behind with a module by more than so many versions, and more than such a share of them."""


@dataclass(frozen=True)
class Arrival:
    """Of one member."""

    name: str
    pause: float
    """Seconds from it to the next one."""
    path: int | None
    """None: where it is needed."""
    step_seconds: float
    line: Line
    stays: float | None = None
    """Seconds; None: to the end."""


@dataclass(frozen=True)
class Drawn:
    """One world."""

    number: int
    plan: Plan
    arrivals: tuple[Arrival, ...]
    is_killed: bool
    """Whether who leaves does so without a word."""

    @property
    def comes_and_goes(self) -> bool:
        return self.arrivals[0].stays is not None

    @property
    def about(self) -> str:
        table = self.plan.stages[0].table or ()
        steps = [one.step_seconds for one in self.arrivals]
        return (
            f"{len(table)} paths, {len(steps)} members, {self.plan.inner_steps} steps a round of {min(steps):.1f} to "
            f"{max(steps):.1f} s, "
            f"{'overlapping' if self.plan.overlap else 'one after the other'}"
        )


@dataclass(frozen=True)
class Seen:
    """What became of it."""

    versions: int
    twins: int
    late: dict[str, float]
    """Seconds that members trained and were in no version, to the end where they never were."""
    behind: dict[str, tuple[int, int]]
    """Module -> version that the operator's node keeps, and the newest."""
    broken: tuple[str, ...]
    """Programs that ended, and invariants that did not hold."""

    @property
    def is_quiet(self) -> bool:
        return not (self.twins or self.late or self.behind or self.broken)


def drawn(number: int) -> Drawn:
    """Odd ones come and go."""
    chance, comes_and_goes = Random(f"honest {number}"), number % 2 == 1
    table = tuple(product(*map(range, chance.choice(WIDTHS))))
    inner_steps, spread = chance.choice((5, 10, 20)), chance.choice((1.0, 3.0, 8.0))
    pause = chance.choice((15.0, 25.0, 40.0) if comes_and_goes else (0.0, 3.0, 7.0, 20.0, 45.0))
    stay = chance.choice((60.0, 120.0, 240.0))
    is_free = chance.random() < 0.5
    arrivals = tuple(
        Arrival(
            name=f"peer-{i}",
            pause=pause * chance.uniform(0.5, 1.5),
            path=None if is_free else chance.randrange(len(table)),
            step_seconds=chance.choice((0.5, 1.0, 2.0)) * chance.uniform(1.0, spread),
            line=home_line(chance),
            stays=stay * chance.uniform(0.5, 1.5) if comes_and_goes else None,
        )
        for i in range(int(COMING_SECONDS / pause) if comes_and_goes else chance.randint(2, 9))
    )
    plan = Plan((StagePlan(table),), inner_steps=inner_steps, overlap=chance.random() < 0.5)
    return Drawn(number, plan, arrivals, is_killed=chance.random() < 0.5)


class Story:
    """One world, while it is played."""

    def __init__(self, what: Drawn, folder: Path) -> None:
        self._drawn = what
        self._world = World(what.number, what.plan, folder / "world")
        self._came: dict[str, float] = {}
        self._left: dict[str, float] = {}
        self._first: dict[str, float] = {}
        """Of each member: when it was seen in a version first."""
        self._behind: dict[str, tuple[int, int]] = {}
        self._ended = 0.0

    def play(self) -> Seen:
        self._world.play(self._play)
        world, ledger = self._world, self._world.ledger
        return Seen(
            versions=sum(map(len, ledger.versions.values())),
            twins=world.forks,
            late=dict(self._late()),
            behind=self._behind,
            broken=(*world.failures(), *map(str, ledger.violations)),
        )

    async def _play(self, world: World) -> None:
        tasks = [asyncio.create_task(self._watch())]
        for one in self._drawn.arrivals:
            self._came[one.name] = world.now
            world.start(one.name, one.path, Machine(one.line, step_seconds=one.step_seconds))
            if one.stays is not None:
                tasks.append(asyncio.create_task(self._leave(one.name, one.stays)))
            await asyncio.sleep(one.pause)
        await asyncio.sleep(0.0 if self._drawn.comes_and_goes else AFTER_SECONDS)
        self._behind = dict(self._modules_behind())
        self._ended = world.now
        await end_all(*tasks)

    async def _leave(self, name: str, seconds: float) -> None:
        await asyncio.sleep(seconds)
        self._left[name] = self._world.now
        peer = self._world.peers[name]
        if self._drawn.is_killed:
            peer.kill()
        else:
            peer.ask_to_stop()

    async def _watch(self) -> None:
        while True:
            for of in self._world.ledger.versions.values():
                for version in of.values():
                    for name in version.members:
                        self._first.setdefault(name, self._world.now)
            await asyncio.sleep(0.5)

    def _late(self) -> Iterator[tuple[str, float]]:
        for one in self._drawn.arrivals:
            end = self._first.get(one.name, self._left.get(one.name, self._ended))
            waited = end - self._came[one.name]
            if waited > LATE_ROUNDS * one.step_seconds * self._drawn.plan.inner_steps + LATE_SECONDS:
                yield one.name, round(waited)

    def _modules_behind(self) -> Iterator[tuple[str, tuple[int, int]]]:
        kept = self._world.operator.kept(0)
        for (_, module), versions in self._world.ledger.versions.items():
            newest = max((one.number for one in versions.values()), default=0)
            ours = kept[module].version if module in kept else 0
            if newest - ours > max(BEHIND, BEHIND_SHARE * newest):
                yield str(module), (ours, newest)


def play(number: int) -> Seen:
    prepare()
    with tempfile.TemporaryDirectory(prefix="dipaco-honest-", dir=workplace()) as folder:
        return Story(drawn(number), Path(folder)).play()


def line(what: Drawn, seen: Seen) -> str:
    """What was seen in one world."""
    late = ", ".join(f"{name} after {seconds:.0f} s" for name, seconds in seen.late.items())
    behind = ", ".join(f"{module} at {ours} of {newest}" for module, (ours, newest) in seen.behind.items())
    said = [
        f"{seen.twins} twins of {seen.versions} versions" if seen.twins else "",
        f"late: {late}" if late else "",
        f"not kept: {behind}" if behind else "",
        *seen.broken,
    ]
    return f"world {what.number} ({what.about}): {'; '.join(filter(None, said))}"


def table(found: dict[int, Seen]) -> str:
    """A row for worlds in which all stay, one for the others."""
    rows = [
        "| members | worlds | quiet | versions | twins | late | modules not kept | broken |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, comes_and_goes in ("stay", False), ("come and go", True):
        of = [seen for number, seen in found.items() if drawn(number).comes_and_goes == comes_and_goes]
        rows.append(
            f"| {name} | {len(of)} | {sum(one.is_quiet for one in of)} | {sum(one.versions for one in of)} | "
            f"{sum(one.twins for one in of)} | {sum(len(one.late) for one in of)} | "
            f"{sum(len(one.behind) for one in of)} | {sum(bool(one.broken) for one in of)} |"
        )
    return "\n".join(rows)


def main() -> int:
    parser = argparse.ArgumentParser(description="Swarms with nobody hostile, in virtual time.")
    parser.add_argument("--worlds", type=int, default=80)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args()
    found: dict[int, Seen] = {}
    with ProcessPoolExecutor(options.jobs, mp_context=multiprocessing.get_context("forkserver")) as pool:
        numbers = range(options.first, options.first + options.worlds)
        for number, seen in zip(numbers, pool.map(play, numbers), strict=True):
            found[number] = seen
            if not seen.is_quiet:
                print(line(drawn(number), seen), flush=True)
    print(table(found))
    return 1 if any(seen.broken for seen in found.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
