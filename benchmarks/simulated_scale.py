"""Large swarms in virtual time: what a peer sends and asks as the swarm grows."""

import asyncio
import math
import random
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.simulated import prepare, workplace
from dipaco_swarm.testing.network import Traffic, home_line
from dipaco_swarm.testing.process import Machine
from dipaco_swarm.testing.run import OPERATOR, Plan, StagePlan
from dipaco_swarm.testing.world import World

STEP_SECONDS = 4.0
INNER_STEPS = 10
"""A round of forty seconds."""
CHURN_SHARE = 1 / 3
LIMIT_SECONDS = 1800.0


@dataclass(frozen=True)
class Scaled:
    peers: int
    grid: str
    members: float
    """Peers of a module, on average."""
    versions: int
    one: bool
    """Whether everybody ended on one digest a module."""
    virtual: float
    cpu: float
    traffic: Traffic
    """Of all peers together, in the time between the first and the last round."""
    operator: Traffic


def grid_of(peers: int) -> int:
    """The width of the square grid: a peer a path up to 256 paths."""
    return min(16, math.isqrt(peers))


def play(peers: int, rounds: int) -> Scaled:
    prepare()
    width = grid_of(peers)
    table = tuple((row, column) for row in range(width) for column in range(width))
    chance = random.Random(peers)
    began = time.process_time()
    measured: list[tuple[float, dict[str, Traffic]]] = []
    one = False

    async def story(world: World) -> None:
        nonlocal one
        names = [f"peer-{number}" for number in range(peers)]
        for number, name in enumerate(names):
            machine = Machine(home_line(chance), step_seconds=STEP_SECONDS)
            world.start(name, number % len(table), machine)
        await world.until(lambda: len(world.at_versions()) == 2 * width, LIMIT_SECONDS)
        measured.append((world.now, world.network.snapshot()))
        churn = asyncio.ensure_future(leave_and_join(world, names, chance))
        await world.until(lambda: min(world.at_versions().values(), default=0) >= rounds, LIMIT_SECONDS)
        measured.append((world.now, world.network.snapshot()))
        await churn
        one = await world.until(world.is_one, LIMIT_SECONDS)

    with tempfile.TemporaryDirectory(prefix="dipaco-scale-", dir=workplace()) as folder:
        world = World(peers, Plan((StagePlan(table),), inner_steps=INNER_STEPS, parameters=64), Path(folder) / "world")
        world.play(story)
    (start, before), (stop, after) = measured
    seconds = stop - start
    total = Traffic()
    for name in world.peers:
        total = total + (after[name] - before.get(name, Traffic()))
    operator = after[OPERATOR] - before.get(OPERATOR, Traffic())
    versions = sum(len(found) for found in world.ledger.versions.values())
    return Scaled(
        peers=peers,
        grid=f"{width}x{width}",
        members=peers / width,
        versions=versions,
        one=one,
        virtual=seconds,
        cpu=time.process_time() - began,
        traffic=total,
        operator=operator,
    )


async def leave_and_join(world: World, names: list[str], chance: random.Random) -> None:
    """A third of the peers leave, by Ctrl+C or by being killed, and come back after half a minute."""
    leaving = chance.sample(names, int(len(names) * CHURN_SHARE))

    async def one(name: str) -> None:
        await asyncio.sleep(chance.uniform(0, 300))
        peer = world.peers[name]
        if chance.random() < 0.5:
            peer.kill()
        else:
            peer.ask_to_stop()
            assert peer.program is not None
            await peer.program.ended
        await asyncio.sleep(30)
        peer.start()

    await asyncio.gather(*(one(name) for name in leaving))


def scale(sizes: list[int], rounds: int) -> int:
    """Print a row for each size; 1 when somebody did not end on the others' digest."""
    print(
        "| peers | grid | a module | versions | one digest | messages | kB | requests | kB of them | node kB | CPU s |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|---|")
    whole = True
    for size in sizes:
        row = play(size, rounds)
        whole = whole and row.one
        each = row.peers * row.virtual
        print(
            f"| {row.peers} | {row.grid} | {row.members:.0f} | {row.versions} | {'yes' if row.one else 'NO'} "
            f"| {row.traffic.messages / each:.2f} | {row.traffic.bytes / each / 1000:.2f} "
            f"| {row.traffic.requests / each:.2f} | {row.traffic.request_bytes / each / 1000:.2f} "
            f"| {(row.operator.bytes + row.operator.request_bytes) / row.virtual / 1000:.1f} | {row.cpu:.0f} |",
            flush=True,
        )
    print("\nMessages, bytes and requests to the directory: a peer and second. Node: the bootstrap node, a second.")
    return 0 if whole else 1
