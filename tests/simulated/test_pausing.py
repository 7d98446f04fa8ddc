"""A peer whose machine is needed otherwise: it stops between two steps, the others go on, and no token is lost."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from dipaco_swarm.machine.manners import RUN, Pause
from dipaco_swarm.swarm.interface import Role
from dipaco_swarm.testing.process import Machine
from dipaco_swarm.testing.run import Plan, StagePlan
from dipaco_swarm.testing.stories import checked_balance
from dipaco_swarm.testing.world import World
from tests.long import cases

TABLE = ((0, 0), (0, 1), (1, 0), (1, 1))
PACED = Plan((StagePlan(TABLE),), inner_steps=10, parameters=256)
SYNCHRONOUS = replace(PACED, stages=(StagePlan(TABLE),), pacing="synchronous", min_peers=4)
PLANS = {"paced": PACED, "overlapping": replace(PACED, overlap=True, codec="int8"), "synchronous": SYNCHRONOUS}
ASKED = Pause("asked", "paused, as you asked")
STEP_SECONDS = 1.0
SLEEPER = "peer-0"
OTHERS = ("peer-1", "peer-2", "peer-3")


def lowest(world: World) -> int:
    return min(world.at_versions().values(), default=0)


def says_it_trains(world: World, name: str) -> bool:
    """As the others hear it."""
    watched = world.peers["peer-1"].watched
    assert watched is not None
    said = [each for module in watched.at for each in watched.as_swarm().members(*module) if each.peer == name]
    return any(each.role is Role.TRAINS for each in said)


async def seconds_of(world: World, versions: int) -> float:
    """Until the slowest module has so many versions more."""
    began, goal = world.now, lowest(world) + versions
    assert await world.until(lambda: lowest(world) >= goal, 900), world.apart()
    return world.now - began


@pytest.mark.parametrize(
    "how",
    cases(
        "overlapping 7.7",
        long=[
            "paced 3.3",
            "synchronous 0.0",
            "paced 0.0",
            "paced 7.7",
            "overlapping 0.0",
            "overlapping 3.3",
            "synchronous 3.3",
            "synchronous 7.7",
        ],
    ),
)
def test_others_go_on_while_one_pauses_and_nothing_is_lost(tmp_path: Path, how: str) -> None:
    """`how`: the pacing, and when it pauses, in seconds."""
    name, at = how.split()
    plan = PLANS[name]
    world = World(7, plan, tmp_path / "world")
    found: dict[str, float] = {}

    async def story(world: World) -> None:
        for path, name in enumerate((SLEEPER, *OTHERS)):
            world.start(name, path, Machine(step_seconds=STEP_SECONDS))
        assert await world.until(lambda: len(world.at_versions()) == 4 and lowest(world) >= 2, 300)
        found["before"] = await seconds_of(world, 4)
        await asyncio.sleep(float(at))
        sleeper, paused_at = world.peers[SLEEPER], world.now
        sleeper.now = ASKED
        found["with a pause"] = await seconds_of(world, 4)
        found["last step"] = sleeper.step_ends - paused_at
        assert await world.until(lambda: not says_it_trains(world, SLEEPER), 120)
        steps = sleeper.step_ends
        await asyncio.sleep(300)
        assert sleeper.step_ends == steps
        sleeper.now, woken_at = RUN, world.now
        assert await world.until(lambda: sleeper.step_ends > steps, 60)
        found["first step"] = world.now - woken_at
        assert await world.until(world.is_one, 300), world.apart()
        await seconds_of(world, 2)
        assert says_it_trains(world, SLEEPER)

    world.play(story)
    balance = checked_balance(world)
    assert not world.failures()
    assert not world.ledger.violations
    assert found["last step"] <= 1.25 * STEP_SECONDS
    assert found["with a pause"] <= 1.6 * found["before"], found
    assert found["first step"] <= 10, found
    if plan.pacing == "paced":
        assert not balance.lost, balance
    lines = [line for _, who, line in world.lines if who == SLEEPER]
    assert sum("paused, as you asked" in line for line in lines) == 1
    assert sum("goes on after a pause" in line for line in lines) == 1
