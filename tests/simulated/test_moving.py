"""Members and newcomers that those who are there do not know: nobody makes versions beside the others, and soon all
are known."""

import asyncio
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from dipaco_swarm.algorithm.paths import ModuleId
from dipaco_swarm.swarm.circle import Circle, circle_file
from dipaco_swarm.swarm.round.awaiting import STRANGERS_EVERY
from dipaco_swarm.swarm.vouching import Vouching
from dipaco_swarm.testing.ledger import Version
from dipaco_swarm.testing.network import home_line
from dipaco_swarm.testing.process import Machine
from dipaco_swarm.testing.run import Plan, StagePlan
from dipaco_swarm.testing.world import Story, World
from tests.long import cases

GRID = ((0, 0), (0, 1), (1, 0), (1, 1))
PLAN = Plan((StagePlan(GRID),), inner_steps=10)
OURS, THEIRS = 0, 3
"""Two paths that share nothing."""


def counted(world: World) -> set[str]:
    """Who has contributed to some version."""
    made = world.ledger.versions.values()
    return {name for of in made for version in of.values() for name in version.members}


def on_one_line(world: World, story: Story) -> None:
    """Play it: nobody makes a version beside another one, and nothing breaks."""
    world.play(story)
    assert not world.failures()
    assert not world.ledger.violations
    assert not world.forks


@pytest.mark.parametrize("seed", cases(1, long=[2, 3, 5, 6]))
def test_who_moves_to_modules_whose_members_do_not_know_it_makes_no_version_beside_theirs(
    tmp_path: Path, seed: int
) -> None:
    chance = Random(f"m{seed}")
    world = World(seed, PLAN, tmp_path / "world")

    async def story(world: World) -> None:
        for number in range(4):
            world.start(f"peer-{number}", (OURS, THEIRS)[number % 2], Machine(home_line(chance)))
        await asyncio.sleep(120.0)
        moving = world.peers["peer-0"]
        moving.kill()
        await asyncio.sleep(15.0)
        moving.path = THEIRS
        world.start("peer-0", None)
        await asyncio.sleep(120.0)

    on_one_line(world, story)
    made = world.ledger.versions.values()
    assert any({"peer-0", "peer-1"} <= version.members for of in made for version in of.values())


@pytest.mark.parametrize("seed", cases(11, long=[12, 13]))
def test_newcomers_with_slow_steps_come_in_and_make_no_version_beside_the_others(tmp_path: Path, seed: int) -> None:
    chance = Random(f"n{seed}")
    world = World(seed, PLAN, tmp_path / "world")

    async def story(world: World) -> None:
        for path in range(4):
            world.start(f"peer-{path}", path, Machine(home_line(chance)))
        await asyncio.sleep(90.0)
        for path in range(2):
            world.start(f"new-{path}", path, Machine(home_line(chance), step_seconds=10.0))
        await asyncio.sleep(200.0)

    on_one_line(world, story)
    assert {"new-0", "new-1"} <= counted(world)


@pytest.mark.parametrize("overlap", cases(True, long=[False]))
@pytest.mark.parametrize("seed", cases(2, long=[1, 3, 4]))
def test_newcomers_that_are_far_faster_come_in_with_the_others_first_round(
    tmp_path: Path, seed: int, overlap: bool
) -> None:
    """They train on until the others are there, and make no versions alone or with each other meanwhile."""
    chance = Random(f"l{seed}")
    world = World(seed, replace(PLAN, overlap=overlap), tmp_path / "world")
    steps = 10 * 6.0
    waited: list[float] = []

    async def story(world: World) -> None:
        for path in range(4):
            world.start(f"peer-{path}", path, Machine(home_line(chance), step_seconds=6.0))
        await asyncio.sleep(150.0)
        for path in range(2):
            world.start(f"new-{path}", path, Machine(home_line(chance), step_seconds=0.3))
        began = world.now
        assert await world.until(lambda: {"new-0", "new-1"} <= counted(world), 4 * steps)
        waited.append(world.now - began)
        await asyncio.sleep(120.0)

    on_one_line(world, story)
    assert max(waited) < 3 * steps


@pytest.mark.parametrize("seed", cases(1, long=[2, 4, 5, 6]))
def test_a_run_whose_members_come_one_by_one_has_one_line_of_versions_and_knows_them_all(
    tmp_path: Path, seed: int
) -> None:
    """The first one is known at once. Through it the others are, who have trained beside it."""
    chance = Random(f"f{seed}")
    world = World(seed, PLAN, tmp_path / "world")
    steps = (1.0, 1.0, 2.0, 2.0, 4.0, 4.0, 10.0, 15.0)
    names = [f"p{number}-{seconds:g}" for number, seconds in enumerate(steps)]
    known: list[str] = []

    async def story(world: World) -> None:
        for number, seconds in enumerate(steps):
            world.start(names[number], number % 4, Machine(home_line(chance), step_seconds=seconds))
            await asyncio.sleep(7.0)
        await asyncio.sleep(150.0)
        known.extend(Circle(circle_file(world.operator.home, world.address.fingerprint)).last(2 * len(names)))

    on_one_line(world, story)
    assert sorted(known) == names, "the operator's node"


@pytest.mark.parametrize("is_told", [True, False])
def test_two_circles_of_members_that_are_strangers_to_each_other_become_one(
    tmp_path: Path, is_told: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each waits a moment only for the other, and is elsewhere when they gather; until the operator's node says whom to
    know. Where it does not (`is_told`), until a version waits for all, and they go on from the same one."""
    answer = Vouching.answer
    if not is_told:
        monkeypatch.setattr(Vouching, "answer", lambda *of: answer(*of).model_copy(update={"known": ()}))
    chance = Random("circles")
    plan = Plan((StagePlan(((0,), (1,))),), inner_steps=5)
    world = World(1, plan, tmp_path / "world")
    circles = {"ann": 1.0, "ada": 0.5}, {"bob": 2.0, "ben": 2.0}

    def together() -> list[int]:
        versions = world.ledger.versions.get((0, ModuleId(0, 0)), {}).values()
        return sorted(version.number for version in versions if len(version.members) == 4)

    async def story(world: World) -> None:
        for circle in circles:
            for name, seconds in circle.items():
                home = world.folder / name
                home.mkdir()
                Circle(circle_file(home, world.address.fingerprint)).meet(circle)
                world.start(name, 0, Machine(home_line(chance), step_seconds=seconds))
        assert await world.until(lambda: len(together()) == 5, 1500.0)

    world.play(story)
    assert not world.failures()
    assert not world.ledger.violations
    first = together()[0]
    assert (first < STRANGERS_EVERY) == is_told
    assert is_told or 0 <= first % STRANGERS_EVERY < 5, "by such a version, and not by chance"
    assert together()[4] <= first + 5, "they know each other then, and one may be late once"


def test_newcomers_that_come_where_a_stage_begins_train_with_its_members(tmp_path: Path) -> None:
    """Nobody has a version yet, so nothing that they take tells them whom to know; the operator's node does."""
    chance = Random("stage")
    stages = StagePlan(GRID, rounds=2), StagePlan(None, "discriminative", rounds=30)
    world = World(1, Plan(stages, inner_steps=10), tmp_path / "world")

    async def story(world: World) -> None:
        for path in range(4):
            world.start(f"peer-{path}", path, Machine(home_line(chance), step_seconds=6.0))
        assert await world.until(lambda: world.stage == 1, 600.0)
        await asyncio.sleep(8.0)
        for path in range(2):
            world.start(f"new-{path}", path, Machine(home_line(chance), step_seconds=0.3))
        await asyncio.sleep(150.0)

    on_one_line(world, story)
    assert {"new-0", "new-1"} <= counted(world)


@pytest.mark.parametrize("seed", cases(1, long=[2, 3]))
def test_newcomers_that_know_each_other_by_a_module_of_theirs_are_as_new_as_before_in_the_others(
    tmp_path: Path, seed: int
) -> None:
    """They would make versions with each other there, before anybody of its members knows them."""
    chance = Random(f"np{seed}")
    world = World(seed, replace(PLAN, inner_steps=40), tmp_path / "world")
    shared = 0, ModuleId(0, 0)

    async def story(world: World) -> None:
        for number in range(4):
            world.start(f"peer-{number}", 0, Machine(home_line(chance), step_seconds=6.0))
        await asyncio.sleep(150.0)
        for number in range(2):
            world.start(f"new-{number}", 1, Machine(home_line(chance), step_seconds=0.3))
        assert await world.until(lambda: any(map(counted_all, world.ledger.versions[shared].values())), 120.0)
        await asyncio.sleep(120.0)

    def counted_all(version: Version) -> bool:
        return {"new-0", "new-1", "peer-0"} <= version.members

    on_one_line(world, story)
