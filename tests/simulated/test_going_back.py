"""The operator goes back to an anchor: peers that are there, cut off, killed or new all end on the restored line."""

import asyncio
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from dipaco_swarm.algorithm.generations import generation_of, restored
from dipaco_swarm.algorithm.paths import ModuleId
from dipaco_swarm.algorithm.state import ModuleState
from dipaco_swarm.events.training import WentBack
from dipaco_swarm.operator.anchors import Anchor, Anchors
from dipaco_swarm.operator.home import OperatorHome
from dipaco_swarm.run.config import AnchorsConfig
from dipaco_swarm.run.orders import Ban, Rollback
from dipaco_swarm.swarm.interface import Announcement
from dipaco_swarm.testing import hostile
from dipaco_swarm.testing.hostile import Claimer, Stranger
from dipaco_swarm.testing.ledger import Version
from dipaco_swarm.testing.process import Machine
from dipaco_swarm.testing.run import OPERATOR, Plan, StagePlan
from dipaco_swarm.testing.world import World
from tests.long import cases

TABLE = ((0, 0), (0, 1), (1, 0), (1, 1))
PLAN = Plan((StagePlan(TABLE),), inner_steps=10)
ALL = tuple(ModuleId(level, index) for level in (0, 1) for index in (0, 1))
PATIENCE = 300.0
BACK_SECONDS = 30.0
"""Everybody has heard by then, and has what the operator has gone back to."""


def world_of(seed: int, folder: Path, plan: Plan = PLAN) -> World:
    world = World(seed, plan, folder / "world")
    world.config = world.config.model_copy(update={"anchors": AnchorsConfig(every=4, keep=3)})
    return world


def anchors(world: World) -> list[Anchor]:
    return Anchors(world.operator.home).all()


def lowest(world: World) -> int:
    return min(world.at_versions().values(), default=0)


def order(world: World, anchor: Anchor, *modules: ModuleId) -> None:
    names = tuple(map(str, modules))
    OperatorHome(world.operator.home).order(Rollback(anchor=anchor.number, modules=names))


def link(world: World) -> None:
    """The ledger knows what a restored state is: what the anchor had, under another digest."""
    manifest = world.operator.manifest
    assert manifest is not None
    for anchor in anchors(world):
        for name, then in anchor.modules.items():
            back = manifest.stage.restored.get(name)
            if back is not None and back.version == then.version and then.generation < back.generation:
                place, work = (anchor.stage, ModuleId.parse(name)), back.generation << 54
                version = Version(back.digest, then.digest, back.version, work + then.tokens, {})
                world.ledger.versions[place].setdefault(back.digest, version)


def off_the_line(world: World, *modules: ModuleId) -> list[str]:
    """Who is at a state that does not come from the restored one."""
    manifest = world.operator.manifest
    assert manifest is not None
    found = []
    for place, states in world.states().items():
        back = manifest.stage.restored.get(str(place[1]))
        if place[1] not in modules:
            assert back is None
            continue
        assert back is not None
        for peer, (_, digest) in states.items():
            line = {digest, *(version.parent for version in world.ledger.line_of(place, digest))}
            if back.digest not in line:
                found.append(f"{peer} with {place[1]}")
    return found


async def come_to(world: World, version: int) -> None:
    assert await world.until(lambda: lowest(world) >= version, PATIENCE), world.apart()


async def all_back(world: World, version: int, *modules: ModuleId) -> None:
    """Everybody comes to the restored line, and goes on on it."""
    link(world)
    assert await world.until(lambda: not off_the_line(world, *modules), PATIENCE), off_the_line(world, *modules)
    await come_to(world, version)
    assert await world.until(world.is_one, PATIENCE), world.apart()
    assert not off_the_line(world, *modules)
    kept = world.operator.kept(0)
    assert all(generation_of(kept[module].work) == (module in modules) for module in ALL)


@pytest.mark.parametrize("case", cases((4, True), long=[(3, False), (5, False), (6, True), (7, True)]))
def test_a_live_run_goes_back_and_nobody_is_restarted(tmp_path: Path, case: tuple[int, bool]) -> None:
    seed, overlap = case
    world = world_of(seed, tmp_path, replace(PLAN, overlap=overlap))
    said: list[str] = []

    async def story(world: World) -> None:
        for path in range(4):
            world.start(f"peer-{path}", path, Machine(step_seconds=1.0 + 0.3 * path))
        await come_to(world, 10)
        first = anchors(world)[0]
        assert first.versions[0] <= 8
        order(world, first)
        assert await world.until(lambda: bool(world.operator.manifest and world.operator.manifest.stage.restored), 30)
        ordered = world.now
        await all_back(world, 14, *ALL)
        said.extend(what for at, who, what in world.lines if "the operator has gone back" in what and who != OPERATOR)
        assert world.now - ordered < PATIENCE

    world.play(story)
    assert not world.ledger.violations
    assert not world.failures()
    assert len(said) == 8, said  # each peer of each of its modules, once
    assert {peer.lives for peer in world.peers.values()} == {1}


@pytest.mark.parametrize(
    "case",
    cases(("paced", True, False), long=[("paced", True, True), ("paced", False, False), ("synchronous", False, True)]),
)
def test_who_waits_as_all_rounds_are_made_hears_of_it_as_well(tmp_path: Path, case: tuple[str, bool, bool]) -> None:
    """In the moment of the last round, and when the run is known to be finished."""
    rounds, (pacing, overlap, finished) = 6, case
    plan = replace(PLAN, stages=(StagePlan(TABLE, rounds=rounds),), pacing=pacing, overlap=overlap)
    world = world_of(51, tmp_path, plan)

    async def story(world: World) -> None:
        for path in range(4):
            world.start(f"peer-{path}", path, Machine(step_seconds=1.0 + 0.1 * path))
        await come_to(world, rounds)
        assert not finished or await world.until(lambda: world.finished, PATIENCE)
        order(world, anchors(world)[0])
        assert await world.until(lambda: bool(world.operator.manifest and world.operator.manifest.stage.restored), 30)
        ordered = world.now
        link(world)
        assert await world.until(lambda: not off_the_line(world, *ALL), PATIENCE), off_the_line(world, *ALL)
        assert world.now - ordered < BACK_SECONDS
        await come_to(world, rounds)  # and trains the rest again
        assert await world.until(lambda: world.finished and world.is_one(), PATIENCE), world.apart()

    world.play(story)
    assert not world.ledger.violations
    assert not world.failures()
    assert {peer.lives for peer in world.peers.values()} == {1}


@pytest.mark.parametrize("seed", cases(13, long=(14, 15)))
def test_who_comes_back_later_with_what_was_taken_back_ends_on_the_restored_line(tmp_path: Path, seed: int) -> None:
    world = world_of(seed, tmp_path)

    async def story(world: World) -> None:
        for path in range(4):
            world.start(f"peer-{path}", path, Machine())
            world.start(f"twin-{path}", path, Machine(step_seconds=1.5))
        await come_to(world, 10)
        killed, left, *apart = (world.peers[f"twin-{path}"] for path in range(4))
        left.ask_to_stop()  # its checkpoint is of the very end
        killed.kill()
        world.network.part([peer.name for peer in apart], [*(f"peer-{path}" for path in range(4)), OPERATOR])
        await asyncio.sleep(30.0)
        order(world, anchors(world)[0])
        assert await world.until(lambda: bool(world.operator.manifest and world.operator.manifest.stage.restored), 30)
        await asyncio.sleep(60.0)  # the two that are apart make versions of what is taken back
        assert off_the_line(world, *ALL)
        world.network.heal()
        world.operator.kill()  # nobody need be told by the node
        killed.start()
        left.start()
        world.start("newcomer", 2, Machine())
        await asyncio.sleep(60.0)
        world.operator.start()
        await all_back(world, 12, *ALL)

    world.play(story)
    assert not world.ledger.violations
    assert not world.failures()


def test_one_module_goes_back_and_the_others_go_on(tmp_path: Path) -> None:
    world = world_of(21, tmp_path)
    one = ModuleId(0, 1)

    async def story(world: World) -> None:
        for path in range(4):
            world.start(f"peer-{path}", path, Machine())
        await come_to(world, 10)
        before = world.at_versions()
        order(world, anchors(world)[0], one)
        assert await world.until(lambda: bool(world.operator.manifest and world.operator.manifest.stage.restored), 30)
        await all_back(world, 12, one)
        after = world.at_versions()
        assert all(after[place] >= before[place] for place in before if place[1] != one)

    world.play(story)
    assert not world.ledger.violations
    assert not world.failures()


def test_the_run_can_go_back_twice_and_to_what_it_has_left(tmp_path: Path) -> None:
    world = world_of(22, tmp_path)

    async def story(world: World) -> None:
        for path in range(4):
            world.start(f"peer-{path}", path, Machine())
        await come_to(world, 10)
        first, *_, last = anchors(world)
        order(world, first)
        await world.until(lambda: bool(world.operator.manifest and world.operator.manifest.stage.restored), 30)
        order(world, last)  # it was no good idea
        wanted = {name: module.version for name, module in last.modules.items()}
        manifest = world.operator.manifest
        assert manifest is not None

        def is_back() -> bool:
            manifest = world.operator.manifest
            restored = {} if manifest is None else manifest.stage.restored
            return all(back.generation == 2 and back.version == wanted[name] for name, back in restored.items())

        assert await world.until(is_back, 60)
        link(world)
        assert await world.until(lambda: not off_the_line(world, *ALL), PATIENCE), off_the_line(world, *ALL)
        await come_to(world, 14)
        assert await world.until(world.is_one, PATIENCE), world.apart()

    world.play(story)
    assert not world.ledger.violations
    assert not world.failures()


def test_the_line_of_who_goes_back() -> None:
    assert str(WentBack("L0M1", 37, 20, 5120)) == (
        "L0M1: the operator has gone back; from version 37 to 20; 5,120 tokens trained since are dropped"
    )


def ahead(said: Announcement, parameters: int, random: Random) -> ModuleState:
    """As if the operator had gone back a hundred times."""
    return restored(hostile.takeover(said, parameters, random), 100)


@pytest.mark.parametrize("seed", cases(31, long=(32,)))
def test_nobody_but_the_operator_makes_a_state_count_for_more_than_its_work(tmp_path: Path, seed: int) -> None:
    """Not even a member whom all know, and whose claims are believed else."""
    world = world_of(seed, tmp_path)
    liar = Stranger(world, "peer-3", Machine(), claimer := Claimer(ahead), path=3)

    async def story(world: World) -> None:
        for path in range(4):
            world.start(f"peer-{path}", path, Machine())
        await come_to(world, 4)
        world.peers["peer-3"].kill()
        liar.lives = 1  # a new life under the name that all know
        liar.start()
        await asyncio.sleep(120.0)
        assert claimer.forged
        assert not taken(world, claimer)
        order(world, anchors(world)[0])
        assert await world.until(lambda: bool(world.operator.manifest and world.operator.manifest.stage.restored), 30)
        await asyncio.sleep(60.0)
        assert not taken(world, claimer)
        liar.kill()
        await all_back(world, 8, *ALL)

    world.play(story)
    assert not world.failures()


@pytest.mark.parametrize("seed", cases(41, long=(42, 43)))
def test_what_a_member_has_forged_is_taken_back_and_the_run_goes_on(tmp_path: Path, seed: int) -> None:
    world = world_of(seed, tmp_path)
    liar = Stranger(world, "peer-3", Machine(), claimer := Claimer(hostile.takeover), path=3)

    async def story(world: World) -> None:
        for path in range(4):
            world.start(f"peer-{path}", path, Machine())
        await come_to(world, 6)
        good = anchors(world)[-1]
        world.peers["peer-3"].kill()
        liar.lives = 1  # a new life under the name that all know
        liar.start()
        assert await world.until(lambda: len(taken(world, claimer)) >= 2, PATIENCE), "it was to be believed"
        await asyncio.sleep(30.0)
        OperatorHome(world.operator.home).order(Ban(name="peer-3", why="forged states"))
        order(world, good)
        assert await world.until(lambda: bool(world.operator.manifest and world.operator.manifest.stage.restored), 30)
        await asyncio.sleep(60.0)  # it goes on claiming, and nobody hears it
        link(world)
        assert await world.until(lambda: not off_the_line(world, *ALL), PATIENCE), off_the_line(world, *ALL)
        liar.kill()
        world.start("peer-4", 3, Machine())
        await all_back(world, 10, *ALL)
        assert not taken(world, claimer)

    world.play(story)
    assert not world.failures()


def taken(world: World, claimer: Claimer) -> list[str]:
    """By whom a state that it has made up was taken, or one that goes on from it."""
    return [
        f"{peer} with {place[1]}"
        for place, states in world.states().items()
        for peer, (_, digest) in states.items()
        if {digest, *(version.parent for version in world.ledger.line_of(place, digest))} & claimer.forged.keys()
    ]
