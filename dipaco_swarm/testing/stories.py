"""Random whole swarms, by a seed, and what must hold in every one of them."""

import asyncio
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random

from dipaco_swarm.testing.aims import ANYTHING, Aim
from dipaco_swarm.testing.faults import faults_of, play_faults
from dipaco_swarm.testing.ledger import AT_THE_EDGE, Balance, Violation
from dipaco_swarm.testing.network import home_line
from dipaco_swarm.testing.plans import random_paths, random_plan
from dipaco_swarm.testing.process import Machine
from dipaco_swarm.testing.run import Plan
from dipaco_swarm.testing.world import World

HEALED_SECONDS = 300.0
"""So long after the last fault all are one again."""
CALM_SECONDS = 30.0
"""After the last fault: whoever came back is in a round again."""
ENDED_SECONDS = 1800.0
"""... and so long after it a run that has an end has come to it."""
LEFT_SECONDS = 900.0
"""So long after the run is finished, whoever was to leave then has left."""


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
    demotions: int
    """So often somebody was not waited for any more by somebody; all are honest."""
    most_demotions: int
    """Of one peer by one other; each is for twice as long as the one before."""
    violations: tuple[Violation, ...]
    lines: tuple[str, ...] = field(repr=False, default=())


def tell(
    seed: int,
    folder: Path,
    *,
    faulty: bool = True,
    seconds: float = 200.0,
    overlap: bool = False,
    aim: Aim = ANYTHING,
) -> Outcome:
    """Play the story of a seed: a random swarm, random faults, then calm; and look whether it heals.

    `overlap`: whether training goes on in rounds. `aim`: what the faults aim at.
    """
    began = time.process_time()
    random = Random(f"{seed}/story")
    plan = replace(random_plan(random, seed), overlap=overlap)
    if aim.parameters is not None:
        plan = replace(plan, parameters=aim.parameters)
    world = World(seed, plan, folder / f"seed-{seed}")
    count = random.choice([4, 4, 5, 6, 7, 8, 10, 12, 16])
    names = [f"peer-{number}" for number in range(count)]
    told = random_paths(random, count, world.plan)
    faults = faults_of(random, names, seconds, aim) if faulty else []
    healing, demoted = 0.0, (0, 0)

    async def story(world: World) -> None:
        nonlocal healing
        for name, path in zip(names, told, strict=True):
            machine = Machine(home_line(random), step_seconds=random.choice([0.5, 1.0, 2.0]))
            world.start(name, path, machine)
            await asyncio.sleep(random.choice([0.0, 0.1, 3.0]))
        await play_faults(world, faults)
        await asyncio.sleep(max(CALM_SECONDS, seconds - world.now))
        calm = world.now
        if not await world.until(world.is_one, HEALED_SECONDS):
            world.ledger.violate(world.now, "forks heal", f"not one after {HEALED_SECONDS:.0f} s: {world.apart()}")
        healing = world.now - calm
        nonlocal demoted
        demoted = _demotions(world)
        await _come_to_an_end(world)

    world.play(story)
    ledger, balance = world.ledger, checked_balance(world)
    if not faulty and world.forks:
        ledger.violate(world.now, "no fork without a fault", f"{world.forks} versions have a twin")
    if not faulty and balance.lost.keys() - AT_THE_EDGE:
        ledger.violate(world.now, "no token lost without a fault", str(balance.lost))
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
        balance=balance,
        demotions=demoted[0],
        most_demotions=demoted[1],
        violations=tuple(ledger.violations),
        lines=tuple(f"{at:9.2f} {who}: {what}" for at, who, what in world.lines),
    )


def _demotions(world: World) -> tuple[int, int]:
    """How often peers that are here have demoted others in this life, and most often the same; nobody is banned."""
    times: list[int] = []
    for peer in world.live_peers():
        swarm = peer.watched.as_networked() if peer.watched is not None else None
        if swarm is not None and swarm.door.bans.names():
            world.ledger.violate(world.now, "nobody is banned for weather", f"{peer.name}: {swarm.door.bans.names()}")
        if swarm is not None and swarm._rounds is not None:
            times.extend(swarm._rounds.laggards.times())
            times.extend(swarm._rounds._auditing.hidden.times())
    return sum(times), max(times, default=0)


async def _come_to_an_end(world: World) -> None:
    """A run that has an end comes to it, and then whoever was to leave leaves."""
    if not world.plan.ends:
        return
    if not await world.until(lambda: world.finished, ENDED_SECONDS):
        what = f"stage {world.stage} goes on {ENDED_SECONDS:.0f} s later: {world.at_versions()}"
        world.ledger.violate(world.now, "a run that has an end ends", what)
    elif world.plan.until_finished and not await world.until(lambda: not world.live(), LEFT_SECONDS):
        names = ", ".join(process.name for process in world.live())
        world.ledger.violate(world.now, "who waits for the end leaves", f"after {LEFT_SECONDS:.0f} s {names}: here")


def checked_balance(world: World) -> Balance:
    assert world.final is not None, "the story was not played to its end"
    for name, tokens in world.final.nowhere.items():
        world.ledger.violate(world.now, "every token once", f"{name}: {tokens:,} tokens are nowhere")
    for name, tokens in world.final.twice.items():
        world.ledger.violate(world.now, "every token once", f"{name}: {tokens:,} tokens are counted twice")
    return world.final
