"""Strangers who say that they are members: rounds come as often as without them, and are made of as much training."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from dipaco_swarm.testing import hostile
from dipaco_swarm.testing.hostile import CallsRounds, PretendsToBeThere, Stranger
from dipaco_swarm.testing.network import home_line
from dipaco_swarm.testing.process import Machine
from dipaco_swarm.testing.run import Plan, StagePlan
from dipaco_swarm.testing.world import World
from tests.long import cases

PLAN = Plan((StagePlan(((0, 0), (0, 1), (1, 0), (1, 1))),), inner_steps=10)
CALM_SECONDS = 120.0

Attack = Callable[[], PretendsToBeThere]


def claims_tokens() -> PretendsToBeThere:
    return PretendsToBeThere(hostile.has_trained_much)


def never_comes() -> PretendsToBeThere:
    return PretendsToBeThere(hostile.is_on_its_way)


@pytest.mark.parametrize("attack", cases((CallsRounds, 1), long=[(claims_tokens, 1), (never_comes, 3)]))
def test_a_stranger_moves_the_pace_of_nobody(tmp_path: Path, attack: tuple[Attack, int]) -> None:
    make, path = attack
    chance = Random(make.__name__)
    world = World(13, PLAN, tmp_path / "world")
    pretender = make()
    strangers = [Stranger(world, "stranger", Machine(), pretender, path)]
    made: list[int] = []

    def versions() -> int:
        return sum(map(len, world.ledger.versions.values()))

    async def story(world: World) -> None:
        for path in range(3):  # nobody trains the fourth
            world.start(f"peer-{path}", path, Machine(home_line(chance)))
        await asyncio.sleep(CALM_SECONDS)
        for comes in ([], strangers, []):
            for stranger in comes:
                stranger.start()
            before = versions()
            await asyncio.sleep(CALM_SECONDS)
            made.append(versions() - before)
        for stranger in strangers:
            stranger.kill()

    world.play(story)
    assert not world.ledger.violations
    assert pretender.said > 20
    undisturbed, first, then = made
    assert 0.75 * undisturbed < then < 1.25 * undisturbed, made
    assert first < 1.25 * undisturbed, made  # who has just come is waited for, once in a while
