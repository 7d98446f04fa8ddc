"""What share of the time a peer trains, at a community's ratio of line to model, in virtual time.

    python -m benchmarks.simulated_utilisation [--groups two grid] [--minutes 1 5 30] [--lines home far] [--rounds 12]
                                               [--life 10] [--overlapped]

A path of 150 million parameters that trains for T minutes between two rounds is played as one of 150 / SCALE million
that trains for T / SCALE: the lines are the true ones, so what takes a fixed time (dialling, a directory read) weighs
SCALE times as much as it would. The protocol is the real one, computing takes no time, a module's two levels are alike.
What counts as trained is what `dipaco_swarm/peer/usage.py` says, as with real peers in `benchmarks/utilisation.py`.
`--life`: peers come and go; each lives for so many times the training of a round, on average, is killed or stopped by
Ctrl+C, and comes back after as long as a round trains. Then the time trained is also what they are away.
"""

import argparse
import asyncio
import math
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from random import Random

from benchmarks.simulated import prepare, workplace
from dipaco_swarm.testing.faults import KINDS, Fault
from dipaco_swarm.testing.network import Line, Traffic
from dipaco_swarm.testing.process import Machine
from dipaco_swarm.testing.run import OPERATOR, Plan, StagePlan
from dipaco_swarm.testing.world import World

SCALE = 20
PARAMETERS = 150_000_000
INNER_STEPS = 30
FIRST_SECONDS = 3000.0
"""Until every module has its first version."""

LINES = {
    "home": Line(up=2.5e6, down=12.5e6, delay=0.025, jitter=0.005),  # 100/20 Mbit/s, 50 ms
    "1000": Line(up=1.25e8, down=1.25e8, delay=0.005, jitter=0.001),
    "far": Line(up=1.25e6, down=1.25e6, delay=0.1, jitter=0.02, loss=0.02),  # 10 Mbit/s, 200 ms
}
GROUPS = {
    "two": ((0, 0), (0, 1)),
    "four": ((0, 0), (0, 1), (0, 2), (0, 3)),
    "grid": ((0, 0), (0, 1), (1, 0), (1, 1)),
    "grid4": tuple(product(range(4), repeat=2)),
}
"""Path tables: two and four peers that share one module and have one of their own; two by two; four by four."""


@dataclass(frozen=True)
class Row:
    """What came of one run."""

    group: str
    line: str
    minutes: float
    overlap: bool
    shares: Sequence[float]
    """Of the time, by peer."""
    seconds_a_version: float
    """Of the module that is made most slowly, at true scale."""
    goodput: float
    """Tokens in committed versions, and those that are yet to come, of all that were trained."""
    bytes_up: float
    """A parameter and version, of a peer on average, for all purposes."""
    keeper_bytes_up: float
    forks: int


async def come_and_go(world: World, name: str, random: Random, life: float, away: float) -> None:
    """A peer's lives, of so many seconds on average, and between them so many seconds without it. Until cancelled."""
    while True:
        await asyncio.sleep(random.expovariate(1 / life))
        kind = random.choice(("kill", "leave"))
        await KINDS[kind](world, Fault(world.now, kind, away, (name,)))


@asynccontextmanager
async def churn(world: World, life: float | None, away: float) -> AsyncIterator[None]:
    """While it is open, every peer comes and goes; none without a `life`."""
    if life is None:
        yield
        return
    world.ledger.calm_from = math.inf
    tasks = [asyncio.ensure_future(come_and_go(world, name, Random(name), life, away)) for name in sorted(world.peers)]
    yield
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


def time_trained(world: World) -> dict[str, float]:
    """Seconds within inner steps so far, by peer, as its own meter has them."""
    return {name: peer.usage.so_far().trained_seconds for name, peer in world.peers.items()}


def play(
    group: str, line: str, minutes: float, *, overlap: bool, rounds: int, life: float | None = None, seed: int = 1
) -> Row:
    """One run. `rounds`, `life`: in times of the training of a round."""
    table = GROUPS[group]
    plan = Plan(
        (StagePlan(table),),
        inner_steps=INNER_STEPS,
        codec="int8",
        parameters=PARAMETERS // 2 // SCALE,
        overlap=overlap,
    )
    step = 60 * minutes / SCALE / INNER_STEPS
    shares: list[float] = []
    versions, passed = 1, 0.0
    sent: dict[str, Traffic] = {}

    async def story(world: World) -> None:
        nonlocal versions, passed
        for path in range(len(table)):
            world.start(f"peer-{path}", path, Machine(replace(LINES[line]), step_seconds=step))
        await world.until(lambda: min(world.at_versions().values(), default=0) >= 1, FIRST_SECONDS)
        trained, at, began = time_trained(world), world.at_versions(), world.now
        before = world.network.snapshot()
        training = 60 * minutes / SCALE
        async with churn(world, None if life is None else life * training, training):
            await asyncio.sleep(rounds * training)
        passed = world.now - began
        shares.extend((seconds - trained[name]) / passed for name, seconds in time_trained(world).items())
        versions = max(1, min(version - at.get(place, 0) for place, version in world.at_versions().items()))
        sent.update({name: traffic - before.get(name, Traffic()) for name, traffic in world.network.snapshot().items()})

    with tempfile.TemporaryDirectory(prefix="dipaco-utilisation-", dir=workplace()) as folder:
        world = World(seed, plan, Path(folder) / "world")
        world.play(story)
    balance = world.final
    assert balance is not None
    whole = versions * PARAMETERS / SCALE
    peers = [traffic for name, traffic in sent.items() if name != OPERATOR]
    return Row(
        group,
        line,
        minutes,
        overlap,
        shares,
        SCALE * passed / versions,
        1 - sum(balance.lost.values()) / balance.trained,
        sum(traffic.bytes + traffic.request_bytes for traffic in peers) / len(peers) / whole,
        sent[OPERATOR].bytes / whole,
        world.forks,
    )


def rows(options: argparse.Namespace) -> Iterator[Row]:
    for line, group, minutes in product(options.lines, options.groups, options.minutes):
        for overlap in (True,) if options.overlapped else (False, True):
            yield play(
                group, line, minutes, overlap=overlap, rounds=options.rounds, life=options.life, seed=options.seed
            )


def line_of(row: Row) -> str:
    """A row of the table; bytes are a parameter and version."""
    cells = (
        row.line,
        row.group,
        f"{row.minutes:g}",
        "overlapped" if row.overlap else "blocking",
        f"{100 * min(row.shares):.0f} %",
        f"{100 * sum(row.shares) / len(row.shares):.0f} %",
        f"{row.seconds_a_version:.0f}",
        f"{100 * row.goodput:.1f} %",
        f"{row.bytes_up:.1f}",
        f"{row.keeper_bytes_up:.1f}",
        row.forks,
    )
    return f"| {' | '.join(map(str, cells))} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--groups", nargs="+", choices=list(GROUPS), default=list(GROUPS))
    parser.add_argument("--lines", nargs="+", choices=list(LINES), default=["home"])
    parser.add_argument("--minutes", nargs="+", type=float, default=[1, 5, 30])
    parser.add_argument("--rounds", type=int, default=12, help="so many times the training of a round is played")
    parser.add_argument("--life", type=float, help="of a peer, on average, in times of the training of a round")
    parser.add_argument("--seed", type=int, default=1, help="of delays, steps and names: another one, another run")
    parser.add_argument("--overlapped", action="store_true", help="no rows of blocking rounds")
    options = parser.parse_args()
    prepare()
    print(
        "| line | group | T, minutes | rounds | trained, least | mean | s a version | goodput | B up | keeper | forks |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|---|")
    for row in rows(options):
        print(line_of(row), flush=True)


if __name__ == "__main__":
    main()
