"""Peers that live for ten rounds on average, and are killed without a word: hardly a token is lost."""

import asyncio
from pathlib import Path
from random import Random

import pytest

from dipaco_swarm.algorithm.paths import PathIndex
from dipaco_swarm.testing.ledger import trainer_of
from dipaco_swarm.testing.network import home_line
from dipaco_swarm.testing.process import Machine
from dipaco_swarm.testing.run import Plan, StagePlan
from dipaco_swarm.testing.watched import KILLED
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


def test_what_was_trained_before_the_first_checkpoint_is_lost_with_a_peer_that_comes_back_elsewhere(
    tmp_path: Path,
) -> None:
    plan = Plan((StagePlan(router="single", rounds=2), StagePlan(((0,), (1,)))))
    world = World(1, plan, tmp_path / "world")

    def trains(stage: int, path: int) -> bool:
        return any(
            (whose, place[0]) == (trainer_of("peer-0", PathIndex(path)), stage) for whose, place in world.ledger.trained
        )

    async def story(world: World) -> None:
        peer = world.start("peer-0", 1)
        assert await world.until(lambda: trains(1, 1), 300.0)
        peer.kill()  # it has just saved the stage before, and saves this one later
        peer.path = 0
        peer.start()
        assert await world.until(lambda: trains(1, 0), 60.0)

    world.play(story)
    assert world.final is not None
    assert not world.final.nowhere
    assert world.final.lost[KILLED] > 0
