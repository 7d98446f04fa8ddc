"""A fast peer is cut off for minutes: alone it does not outrun the others, and their work counts in the end."""

import asyncio
from pathlib import Path

import pytest

from dipaco_swarm.testing.process import Machine
from dipaco_swarm.testing.run import OPERATOR, Plan, StagePlan
from dipaco_swarm.testing.volunteer import SimulatedPeer
from dipaco_swarm.testing.world import World
from tests.long import cases

PATHS = 4
PLAN = Plan((StagePlan(tuple((0, path) for path in range(PATHS))),), inner_steps=20)
"""The first level is everybody's, the second one the path's own."""
TOGETHER_SECONDS = 120.0
APART_SECONDS = 240.0


@pytest.mark.parametrize("seed", cases(0, long=(1, 2)))
def test_the_work_of_three_is_not_replaced_by_that_of_a_fast_one(tmp_path: Path, seed: int) -> None:
    world = World(seed, PLAN, tmp_path / "world")
    versions: dict[str, int] = {}

    async def story(world: World) -> None:
        for path in range(PATHS):
            world.start(f"peer-{path}", path, Machine(step_seconds=1.0 if path == 0 else 1.5))
        fast, *others = world.peers.values()
        await asyncio.sleep(TOGETHER_SECONDS)
        world.network.part([fast.name], [*(peer.name for peer in others), OPERATOR])
        await asyncio.sleep(APART_SECONDS)
        versions.update({peer.name: _version(peer) for peer in world.peers.values()})
        world.network.heal()
        assert await world.until(world.is_one, 120.0), world.apart()

    world.play(story)
    assert not world.ledger.violations
    alone, *group = versions.values()
    assert alone <= min(group) + 1
    balance = world.final
    assert balance is not None
    shared = {trainer: tokens for (trainer, place), tokens in world.ledger.trained.items() if place[1].level == 0}
    share_of_fast = shared["peer-0/0"] / sum(shared.values())
    apart = APART_SECONDS / world.now
    assert sum(balance.lost.values()) < 1.2 * share_of_fast * apart * sum(shared.values())


def _version(peer: SimulatedPeer) -> int:
    assert peer.watched is not None
    return next(version for place, (version, _) in peer.watched.at.items() if place[1].level == 0)
