"""Peers that live for ten rounds on average, and are killed without a word: hardly a token is lost."""

import asyncio
from pathlib import Path
from random import Random

import pytest

from dipaco_swarm.testing.network import home_line
from dipaco_swarm.testing.process import Machine
from dipaco_swarm.testing.run import Plan, StagePlan
from dipaco_swarm.testing.world import World
from tests.long import cases

PATHS = 4
PEERS = 8
PLAN = Plan((StagePlan(((0, 0), (0, 1), (1, 0), (1, 1))),), inner_steps=20)
ROUND_SECONDS = 10.0
"""Two peers share a path's twenty steps of a second."""
LIFE_ROUNDS = 10
STORY_SECONDS = 400.0
AWAY_SECONDS = 20.0
LOST_SHARE = 0.05


@pytest.mark.parametrize("seed", cases(long=(0, 1)))
def test_lives_of_ten_rounds_lose_less_than_a_twentieth(tmp_path: Path, seed: int) -> None:
    chance = Random(seed)
    world = World(seed, PLAN, tmp_path / "world")
    kills = 0

    async def live_and_die(number: int) -> None:
        nonlocal kills
        peer = world.start(f"peer-{number}", number % PATHS, Machine(home_line(chance)))
        while True:
            await asyncio.sleep(chance.expovariate(1 / (LIFE_ROUNDS * ROUND_SECONDS)))
            peer.kill()
            kills += 1
            await asyncio.sleep(AWAY_SECONDS)
            peer.start()

    async def story(world: World) -> None:
        lives = [asyncio.ensure_future(live_and_die(number)) for number in range(PEERS)]
        await asyncio.sleep(STORY_SECONDS)
        for life in lives:
            life.cancel()
        for peer in world.peers.values():
            if not peer.is_alive:
                peer.start()
        await asyncio.sleep(AWAY_SECONDS)
        assert await world.until(world.is_one, 120.0), world.apart()

    world.play(story)
    assert not world.ledger.violations
    assert world.final is not None
    assert not world.final.nowhere
    assert not world.final.twice
    assert kills >= PEERS
    assert world.final.lost_share < LOST_SHARE, world.final.lost
