"""A directory that was taken from a group: each member finds nothing in it but what it has written itself."""

import asyncio
from pathlib import Path
from random import Random

import pytest

from dipaco_swarm.testing.network import home_line
from dipaco_swarm.testing.process import Machine
from dipaco_swarm.testing.run import OPERATOR, Plan, StagePlan
from dipaco_swarm.testing.world import World
from tests.long import cases

PLAN = Plan((StagePlan(((0, 0), (0, 1), (1, 0), (1, 1))),), inner_steps=10)
SECONDS = 150.0
"""Long enough that all that was heard before has expired."""


@pytest.mark.parametrize("node", cases("is eclipsed as well", long=["sees", "is down"]))
def test_members_whose_directory_was_taken_go_on_together(tmp_path: Path, node: str) -> None:
    chance = Random(node)
    world = World(5, PLAN, tmp_path / "world")
    before = versions = 0

    async def story(world: World) -> None:
        nonlocal before, versions
        for path in range(4):
            world.start(f"peer-{path}", path, Machine(home_line(chance)))
        await asyncio.sleep(SECONDS)
        before = sum(map(len, world.ledger.versions.values()))
        world.directory.eclipsed |= {*world.peers, *([OPERATOR] if node == "is eclipsed as well" else [])}
        if node == "is down":
            world.operator.kill()
        await asyncio.sleep(SECONDS)
        assert await world.until(world.is_one, 60.0), world.apart()
        versions = sum(map(len, world.ledger.versions.values())) - before
        world.directory.eclipsed.clear()
        if node == "is down":
            world.operator.start()

    world.play(story)
    assert not world.failures()
    assert not world.ledger.violations
    assert world.forks == 0
    assert versions > 0.6 * before, f"{before} versions before, {versions} while nobody saw the others"


def test_who_comes_back_into_an_eclipse_finds_the_others(tmp_path: Path) -> None:
    chance = Random("back")
    world = World(6, PLAN, tmp_path / "world")

    async def story(world: World) -> None:
        for path in range(4):
            world.start(f"peer-{path}", path, Machine(home_line(chance)))
        await asyncio.sleep(SECONDS)
        world.directory.eclipsed.add("peer-2")
        world.peers["peer-2"].kill()
        await asyncio.sleep(60.0)
        world.start("peer-2", 2)
        await asyncio.sleep(60.0)
        assert await world.until(world.is_one, 60.0), world.apart()
        world.directory.eclipsed.clear()

    world.play(story)
    assert not world.failures()
    assert world.forks == 0
