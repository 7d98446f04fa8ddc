"""Strangers who know the run address: whatever they claim, nobody takes a state of theirs, and the others go on."""

import asyncio
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from dipaco_swarm.testing import hostile
from dipaco_swarm.testing.cast import enter
from dipaco_swarm.testing.hostile import Claimer, Forge, Stranger
from dipaco_swarm.testing.network import home_line
from dipaco_swarm.testing.process import Machine
from dipaco_swarm.testing.run import Plan, StagePlan
from dipaco_swarm.testing.world import World
from tests.long import cases

GRID = ((0, 0), (0, 1), (1, 0), (1, 1))
PLAN = Plan((StagePlan(GRID),), inner_steps=10)
ATTACKED_SECONDS = 120.0
STRANGERS = 3


def forged_by(stranger: Stranger) -> dict[str, int]:
    """Digests of the states that it has claimed to have."""
    assert isinstance(stranger.outsider, Claimer)
    return stranger.outsider.forged


def forged_states_taken(world: World, strangers: list[Stranger], stage: int = 0) -> list[str]:
    """By whom a state of a stranger was taken, or gone on from."""
    forged = {digest for stranger in strangers for digest in forged_by(stranger)}
    taken = [
        f"{peer} is at {at}" for states in world.states().values() for peer, at in states.items() if at[1] in forged
    ]
    kept = [f"the node keeps {m}" for m, state in world.operator.kept(stage).items() if state.digest in forged]
    gone_on = [
        f"version {version.number} of {place[1]} goes on from it"
        for place, versions in world.ledger.versions.items()
        for version in versions.values()
        if version.parent in forged
    ]
    return [*taken, *kept, *gone_on]


@pytest.mark.parametrize(
    "attack",
    cases(
        (hostile.takeover, "up"),
        (hostile.twin, "restarted"),
        long=[
            (hostile.far, "down"),
            (hostile.not_a_number, "up"),
            (hostile.takeover, "restarted"),
            (hostile.not_a_number, "down"),
        ],
    ),
)
def test_a_state_that_only_strangers_vouch_for_is_taken_by_nobody(tmp_path: Path, attack: tuple[Forge, str]) -> None:
    forge, node = attack
    chance = Random(f"{forge.__name__}/{node}")
    world = World(11, PLAN, tmp_path / "world")
    strangers = [Stranger(world, f"stranger-{n}", Machine(), Claimer(forge), path=n) for n in range(STRANGERS)]
    before = versions = 0

    async def story(world: World) -> None:
        nonlocal before, versions
        for path in range(4):
            world.start(f"peer-{path}", path, Machine(home_line(chance)))
        await asyncio.sleep(ATTACKED_SECONDS)
        before = sum(map(len, world.ledger.versions.values()))
        for stranger in strangers:
            stranger.start()
        await asyncio.sleep(ATTACKED_SECONDS / 2)
        if node != "up":
            world.operator.kill()
        if node == "restarted":
            world.operator.start()
        await asyncio.sleep(ATTACKED_SECONDS / 2)
        assert await world.until(world.is_one, 60.0), world.apart()
        versions = sum(map(len, world.ledger.versions.values())) - before
        taken = forged_states_taken(world, strangers)
        for stranger in strangers:
            stranger.kill()
        assert not taken

    world.play(story)
    assert all(forged_by(stranger) for stranger in strangers)
    assert not world.failures()
    assert not world.ledger.violations
    assert versions > 0.5 * before, f"{before} versions before, {versions} with strangers"


@pytest.mark.parametrize("forge", cases(hostile.takeover, long=[hostile.far]))
@pytest.mark.parametrize("seed", cases(11, long=[12, 13]))
def test_nor_where_a_stage_begins_and_nobody_has_a_version_yet(tmp_path: Path, forge: Forge, seed: int) -> None:
    """Everybody is at the beginning, and can say of no version that it has had it: so whose word counts, then?"""
    chance = Random(f"{forge.__name__}/{seed}")
    plan = Plan((StagePlan(GRID, rounds=3), StagePlan(GRID, "k-means")), inner_steps=40)
    world = World(seed, plan, tmp_path / "world")
    strangers = [Stranger(world, f"stranger-{n}", Machine(), Claimer(forge), path=n) for n in range(STRANGERS)]
    versions = 0

    async def story(world: World) -> None:
        nonlocal versions
        for path in range(4):
            world.start(f"peer-{path}", path, Machine(home_line(chance)))
        assert await world.until(lambda: world.stage == 1, 3000.0)
        before = sum(map(len, world.ledger.versions.values()))
        for stranger in strangers:
            stranger.start()
        await asyncio.sleep(ATTACKED_SECONDS)
        versions = sum(map(len, world.ledger.versions.values())) - before
        taken = forged_states_taken(world, strangers, stage=1)
        for stranger in strangers:
            stranger.kill()
        assert not taken

    world.play(story)
    assert all(forged_by(stranger) for stranger in strangers)
    assert versions > 0
    assert not world.failures()
    assert not world.ledger.violations


@pytest.mark.parametrize("case", cases((240, "up"), (10, "goes and comes back alone"), long=[(10, "up")]))
def test_nor_while_all_members_are_away(tmp_path: Path, case: tuple[int, str]) -> None:
    """A power cut takes them all, without a word. It has claimed its state before that for as long as strangers have to
    where nobody can say that it is wrong."""
    steps, node = case
    chance, away = Random(node), 75.0
    world = World(11, replace(PLAN, inner_steps=steps), tmp_path / "world")
    stranger = Stranger(world, "stranger-0", Machine(), Claimer(hostile.takeover), path=0)

    async def story(world: World) -> None:
        for path in range(4):
            world.start(f"peer-{path}", path, Machine(home_line(chance)))
        await asyncio.sleep(320.0)
        stranger.start()
        await asyncio.sleep(150.0)
        for peer in world.live_peers():
            peer.kill()
        if node != "up":
            world.operator.kill()
            await asyncio.sleep(away)
            world.operator.start()
        await asyncio.sleep(away)
        assert not forged_states_taken(world, [stranger])
        for path in range(4):
            world.start(f"peer-{path}", path)
        await asyncio.sleep(60.0)
        taken = forged_states_taken(world, [stranger])
        stranger.kill()
        assert not taken

    world.play(story)
    assert forged_by(stranger)
    assert not world.failures()


@pytest.mark.parametrize("node", ["stops, the last", "is killed"])
def test_new_members_are_taken_at_once_where_the_node_was_the_last_to_leave(tmp_path: Path, node: str) -> None:
    """Nobody whom it knows may be back with more than it has. It took nothing of them for ten minutes."""
    world = World(3, replace(PLAN, inner_steps=10), tmp_path / "world")
    kept: list[int] = []

    async def story(world: World) -> None:
        for path in range(4):
            world.start(f"peer-{path}", path)
        await asyncio.sleep(60.0)
        for peer in world.live_peers():
            peer.ask_to_stop()
            assert await world.until(lambda peer=peer: not peer.is_alive, 60.0)  # type: ignore[misc]
        await asyncio.sleep(20.0)
        if node == "is killed":
            world.operator.kill()
        else:
            world.operator.ask_to_stop()
            assert await world.until(lambda: not world.operator.is_alive, 60.0)
        world.operator.start()
        for path in range(4):
            world.start(f"newcomer-{path}", path)
        for _ in range(2):
            kept.append(min(state.version for state in world.operator.kept(0).values()))
            await asyncio.sleep(60.0)

    world.play(story)
    assert (kept[1] > kept[0]) == (node == "stops, the last"), kept
    assert not world.failures()


@pytest.mark.parametrize("role", cases("holds", long=["answers", "gathers"]))
def test_who_says_that_it_trains_and_does_not_holds_nothing_up(tmp_path: Path, role: str) -> None:
    """Rounds do not overlap with training: whoever waits trains nothing."""
    chance = Random(role)
    world = World(11, PLAN, tmp_path / "world")
    strangers = [enter(world, f"stranger-{n}", role, n, Machine()) for n in range(4)]
    made: list[int] = []

    async def story(world: World) -> None:
        for path in range(4):
            world.start(f"peer-{path}", path, Machine(home_line(chance)))
        await asyncio.sleep(60.0)
        for attacked in False, True:
            if attacked:
                for stranger in strangers:
                    stranger.start()
            before = sum(map(len, world.ledger.versions.values()))
            await asyncio.sleep(ATTACKED_SECONDS)
            made.append(sum(map(len, world.ledger.versions.values())) - before)
        for stranger in strangers:
            stranger.kill()

    world.play(story)
    assert not world.failures()
    assert not world.ledger.violations
    before, attacked = made
    assert 0.9 * before <= attacked <= 1.2 * before, f"{before} versions before, {attacked} with strangers"
