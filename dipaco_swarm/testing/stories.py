"""Random whole swarms, by a seed, and what must hold in every one of them."""

import asyncio
import time
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from dipaco_swarm.strategies import CODECS
from dipaco_swarm.testing.faults import faults_of, play_faults
from dipaco_swarm.testing.ledger import Balance, Violation
from dipaco_swarm.testing.network import home_line
from dipaco_swarm.testing.process import Machine
from dipaco_swarm.testing.run import Plan, StagePlan
from dipaco_swarm.testing.world import World

HEALED_SECONDS = 300.0
"""So long after the last fault all are one again."""
CALM_SECONDS = 30.0
"""After the last fault: whoever came back is in a round again."""


@dataclass(frozen=True)
class Outcome:
    """What came of one seed."""

    seed: int
    plan: Plan
    peers: int
    faults: tuple[str, ...]
    trace: str
    virtual_seconds: float
    cpu_seconds: float
    commits: int
    forks: int
    healing_seconds: float
    balance: Balance
    violations: tuple[Violation, ...]
    lines: tuple[str, ...] = field(repr=False, default=())


def random_table(random: Random) -> tuple[tuple[int, ...], ...]:
    """One to three levels; every level shared, split or of the path's own; two to six paths."""
    levels, paths = random.randint(1, 3), random.randint(2, 6)
    while True:
        widths = [random.choice([1, 2, paths]) for _ in range(levels)]
        rows = [tuple(random.randrange(width) for width in widths) for _ in range(paths)]
        columns = [sorted({row[level] for row in rows}) for level in range(levels)]
        dense = tuple(tuple(columns[level].index(row[level]) for level in range(levels)) for row in rows)
        if len(set(dense)) == paths:
            return dense


def random_plan(random: Random) -> Plan:
    return Plan(
        stages=(StagePlan(random_table(random)),),
        inner_steps=random.randint(4, 20),
        codec=random.choice(tuple(CODECS)),
        parameters=random.randint(8, 200),
    )


def tell(seed: int, folder: Path, *, faulty: bool = True, seconds: float = 200.0) -> Outcome:
    """Play the story of a seed: a random swarm, random faults, then calm; and look whether it heals."""
    began = time.process_time()
    random = Random(f"{seed}/story")
    world = World(seed, random_plan(random), folder / f"seed-{seed}")
    paths = world.plan.paths
    count = random.choice([4, 4, 5, 6, 7, 8, 10, 12, 16])
    names = [f"peer-{number}" for number in range(count)]
    faults = faults_of(random, names, seconds, 40.0) if faulty else []
    healing = 0.0

    async def story(world: World) -> None:
        nonlocal healing
        for number, name in enumerate(names):
            machine = Machine(home_line(random), step_seconds=random.choice([0.5, 1.0, 2.0]))
            world.start(name, number % paths, machine)
            await asyncio.sleep(random.choice([0.0, 0.1, 3.0]))
        await play_faults(world, faults)
        await asyncio.sleep(max(CALM_SECONDS, seconds - world.now))
        calm = world.now
        if not await world.until(world.is_one, HEALED_SECONDS):
            world.ledger.violate(world.now, "forks heal", f"not one after {HEALED_SECONDS:.0f} s: {world.apart()}")
        healing = world.now - calm

    world.play(story)
    assert world.final is not None
    ledger = world.ledger
    if not faulty and world.forks:
        ledger.violate(world.now, "no fork without a fault", f"{world.forks} versions have a twin")
    if not faulty and world.final.lost_share > 0:
        ledger.violate(world.now, "no token lost without a fault", str(world.final.lost))
    for name, tokens in world.final.nowhere.items():
        ledger.violate(world.now, "every token once", f"{name}: {tokens:,} tokens are nowhere")
    for name, tokens in world.final.twice.items():
        ledger.violate(world.now, "every token once", f"{name}: {tokens:,} tokens are counted twice")
    for failure in world.failures():
        ledger.violate(world.now, "nothing fails", failure)
    return Outcome(
        seed=seed,
        plan=world.plan,
        peers=count,
        faults=tuple(map(str, faults)),
        trace=world.trace,
        virtual_seconds=world.now,
        cpu_seconds=time.process_time() - began,
        commits=sum(len(versions) for versions in ledger.versions.values()),
        forks=world.forks,
        healing_seconds=healing,
        balance=world.final,
        violations=tuple(ledger.violations),
        lines=tuple(f"{at:9.2f} {who}: {what}" for at, who, what in world.lines),
    )
