"""Synchronous means synchronous, in virtual time: who is silent is waited for, and who is gone is named."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from random import Random

import pytest

from dipaco_swarm.algorithm.paths import ModuleId
from dipaco_swarm.errors import NotWholeError
from dipaco_swarm.testing.network import Line
from dipaco_swarm.testing.process import Machine
from dipaco_swarm.testing.run import OPERATOR, Plan, StagePlan
from dipaco_swarm.testing.world import World
from tests.long import cases

ROUNDS = 6
PLAN = Plan(
    stages=(StagePlan(((0, 0), (0, 1), (1, 0)), rounds=ROUNDS),),
    inner_steps=4,
    parameters=4096,
    pacing="synchronous",
    min_peers=4,
    until_finished=True,
)
NAMES = ("peer-0", "peer-1", "peer-2", "peer-3")
"""The last one trains the path of the first."""
END_SECONDS = 900.0
"""A run ends within this, whatever happens to one of four for a minute."""

Trouble = Callable[[World, str], Awaitable[None]]
Digests = dict[ModuleId, str]


async def freeze(world: World, victim: str) -> None:
    owner = world.peers[victim].owner
    world.loop.freeze(owner)
    await asyncio.sleep(75)
    world.loop.thaw(owner)


async def part(world: World, victim: str) -> None:
    world.network.part([victim], [name for name in (*NAMES, OPERATOR) if name != victim])
    await asyncio.sleep(35)
    world.network.heal()


async def silence(world: World, victim: str) -> None:
    world.network.block([victim], [name for name in (*NAMES, OPERATOR) if name != victim])
    await asyncio.sleep(35)
    world.network.heal()


def play(folder: Path, trouble: Trouble | None = None, victim: str = "", at: float = 0.0) -> tuple[World, Digests]:
    """A whole run; `trouble` begins so many seconds after the first round. The last state of each module."""
    world = World(5, PLAN, folder)
    last: Digests = {}

    def has_begun() -> bool:
        return len(world.at_versions()) == 4 and min(world.at_versions().values()) >= 1

    async def story(world: World) -> None:
        for number, name in enumerate(NAMES):
            world.start(name, number % PLAN.paths)
        assert await world.until(has_begun, 60)
        if trouble is not None:
            await asyncio.sleep(at)
            await trouble(world, victim)
        assert await world.until(lambda: not world.live(), END_SECONDS), world.apart()
        last.update({module: state.digest for module, state in world.operator.kept(0).items()})

    world.play(story)
    assert not world.failures()
    assert not world.ledger.violations
    return world, last


@cache
def undisturbed(folder: Path) -> Digests:
    return play(folder / "undisturbed")[1]


@pytest.fixture
def reference(tmp_path_factory: pytest.TempPathFactory) -> Digests:
    return undisturbed(tmp_path_factory.getbasetemp())


@pytest.mark.parametrize("trouble", [freeze, part, silence])
@pytest.mark.parametrize(("victim", "at"), list(zip(NAMES, [0.5, 2.0, 4.0, 4.6], strict=True)))
def test_who_is_silent_for_more_than_half_a_minute_is_waited_for_to_the_last_byte(
    tmp_path: Path, reference: Digests, trouble: Trouble, victim: str, at: float
) -> None:
    world, last = play(tmp_path / "world", trouble, victim, at)
    assert last == reference
    for peer in world.peers.values():
        assert peer.attendance is not None
        peer.attendance.in_the_end()
    assert sum("whole: every round had everybody" in line for _, _, line in world.lines) == len(NAMES)


async def kill(world: World, victim: str) -> None:
    world.peers[victim].kill()


@pytest.mark.parametrize("at", [0.5, 4.6])
def test_who_is_gone_for_good_is_named_and_the_others_end_the_run(tmp_path: Path, at: float) -> None:
    world, _ = play(tmp_path / "world", kill, "peer-3", at)
    names = {
        (who, line) for _, who, line in world.lines if line.startswith("not whole") and line.endswith("without peer-3")
    }
    assert {who for who, _ in names} == {"peer-0", "peer-1", "peer-2"}
    for name in ("peer-0", "peer-1", "peer-2"):
        attendance = world.peers[name].attendance
        assert attendance is not None
        with pytest.raises(NotWholeError, match="was made without peer-3"):
            attendance.in_the_end()


GRID = StagePlan(((0, 0), (0, 1), (1, 0), (1, 1)), rounds=6)
CHOOSING = replace(PLAN, stages=(StagePlan(((0, 0), (0, 1)), rounds=2), GRID), inner_steps=10)
APART = (
    80,  # a member was asked to lead by those who had not heard of whom it had joined itself
    81,  # one module's round was over, and nobody knew of it before the other's was
    92,  # who was moving refused to lead twice, and was passed over when it had come
)
"""Seeds in which peers that move meanwhile waited for each other for ever."""


@pytest.mark.parametrize("seed", cases(*APART, long=range(10)))
def test_peers_that_choose_their_paths_meet_in_every_round(tmp_path: Path, seed: int) -> None:
    chance = Random(seed)
    world = World(seed, CHOOSING, tmp_path / "world")

    async def story(world: World) -> None:
        for name in NAMES:
            step, preparing = chance.choice([0.02, 0.05]), chance.uniform(0.2, 1.5)
            line = Line(delay=chance.choice([0.001, 0.01, 0.05]))
            world.start(name, None, Machine(line, step_seconds=step, preparing_seconds=preparing))
        assert await world.until(lambda: not world.live(), 300.0), world.apart()

    world.play(story)
    assert not world.failures()
    assert not world.ledger.violations
