"""Between two stages nobody stands still, and nothing that is trained meanwhile is lost or counted twice."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from dipaco_swarm.events.operator import FittingRouter, StageOpened, TrainsOn
from dipaco_swarm.testing import training
from dipaco_swarm.testing.process import Machine
from dipaco_swarm.testing.run import OPERATOR, Plan, StagePlan
from dipaco_swarm.testing.world import World
from tests.long import cases

GRID = ((0, 0), (0, 1), (1, 0), (1, 1))
REROUTED = (StagePlan(GRID, rounds=3), StagePlan(None, "discriminative", rounds=3))
PLAN = Plan(REROUTED, inner_steps=20)
ENDED_SECONDS = 3600.0
AROUND_SECONDS = 300.0


def when(world: World, line: str) -> float:
    """When somebody said so first."""
    return next(at for at, _, what in world.lines if what == line)


def lines_of(world: World, who: str) -> list[str]:
    return [what for _, name, what in world.lines if name == who]


class Watch:
    """Which peers train, looked at twice a second."""

    def __init__(self) -> None:
        self.seen: list[tuple[float, str, bool]] = []

    async def look(self, world: World) -> None:
        while True:
            self.seen.extend((world.now, peer.name, peer.step_ends > world.now) for peer in world.live_peers())
            await asyncio.sleep(0.5)

    def share(self, around: float) -> float:
        """Of the time of all peers, in the ten minutes around a moment."""
        trains = [train for at, _, train in self.seen if abs(at - around) < AROUND_SECONDS]
        return sum(trains) / len(trains)


def played(
    tmp_path: Path,
    plan: Plan,
    *,
    preparing: float = 30.0,
    peers: int = 4,
    meanwhile: Callable[[World], object] | None = None,
    watch: Watch | None = None,
) -> World:
    """A run to its end; `meanwhile`: a coroutine beside it."""
    world = World(1, plan, tmp_path / "world")

    async def story(world: World) -> None:
        beside = [] if watch is None else [asyncio.ensure_future(watch.look(world))]
        for number in range(peers):
            world.start(f"peer-{number}", number % 4, Machine(step_seconds=1.0, preparing_seconds=preparing))
        if meanwhile is not None:
            await meanwhile(world)  # type: ignore[misc]
        assert await world.until(lambda: world.finished, ENDED_SECONDS)
        for each in beside:
            each.cancel()

    world.play(story)
    assert world.final is not None
    assert not world.failures()
    assert not [str(violation) for violation in world.ledger.violations]
    assert not world.final.twice
    assert not world.final.nowhere
    return world


@pytest.mark.parametrize("preparing", cases(120.0, long=[30.0]))
def test_peers_train_on_while_the_next_stage_is_prepared(tmp_path: Path, preparing: float) -> None:
    """Its router is fitted and its documents are read beside training, however long that takes a peer."""
    watch = Watch()
    stages = (StagePlan(GRID, rounds=15), StagePlan(None, "discriminative", rounds=15))
    world = played(tmp_path, replace(PLAN, stages=stages, overlap=True), preparing=preparing, watch=watch)
    assert world.final is not None
    assert not world.final.lost
    assert world.final.beyond < 0.05 * world.final.trained
    opened = when(world, StageOpened(1, 4).line)
    assert opened - when(world, TrainsOn(0).line) > preparing
    assert watch.share(opened) > 0.95


def test_a_node_that_is_killed_between_two_stages_goes_on_where_it_was(tmp_path: Path) -> None:
    killed: list[float] = []

    async def kill(world: World) -> None:
        for line in (TrainsOn(0).line, FittingRouter("discriminative", 4).line):
            assert await world.until(lambda line=line: line in lines_of(world, OPERATOR), ENDED_SECONDS)  # type: ignore[misc]
            await asyncio.sleep(1.0)
            world.operator.kill()
            killed.append(world.now)
            await asyncio.sleep(20.0)
            world.operator.start()
        assert await world.until(lambda: world.operator.manifest is not None, 60.0)
        assert await world.until(lambda: world.operator.manifest.coming is not None, ENDED_SECONDS)  # type: ignore[union-attr]
        world.operator.kill()
        killed.append(world.now)
        await asyncio.sleep(20.0)
        world.operator.start()

    world = played(tmp_path, PLAN, meanwhile=kill)
    assert len(killed) == 3
    assert lines_of(world, OPERATOR).count(TrainsOn(0).line) == 1  # it is in the manifest
    assert world.final is not None
    assert not world.final.lost


def test_who_comes_between_two_stages_trains_in_the_old_one_and_moves_with_the_others(tmp_path: Path) -> None:
    async def join(world: World) -> None:
        assert await world.until(lambda: TrainsOn(0).line in lines_of(world, OPERATOR), ENDED_SECONDS)
        world.start("late", 2, Machine(step_seconds=1.0, preparing_seconds=5.0))

    world = played(tmp_path, PLAN, meanwhile=join)
    said = [line for line in lines_of(world, "late") if line.startswith("stage ")]
    assert [line.partition(":")[0] for line in said][-1] == "stage 1"


def test_who_has_an_older_manifest_comes_after(tmp_path: Path) -> None:
    """It sleeps through the end of the stage, and wakes up in it."""

    async def sleep(world: World) -> None:
        assert await world.until(lambda: TrainsOn(0).line in lines_of(world, OPERATOR), ENDED_SECONDS)
        sleeper = world.peers["peer-3"]
        world.loop.freeze(sleeper.owner)
        assert await world.until(lambda: world.stage == 1, ENDED_SECONDS)
        await asyncio.sleep(10.0)
        world.loop.thaw(sleeper.owner)

    world = played(
        tmp_path, replace(PLAN, stages=(REROUTED[0], StagePlan(None, "discriminative", rounds=8))), meanwhile=sleep
    )
    assert any(line.startswith("stage 1:") for line in lines_of(world, "peer-3"))


def test_a_path_that_its_peer_leaves_between_two_stages_keeps_nobody_waiting(tmp_path: Path) -> None:
    async def leave(world: World) -> None:
        assert await world.until(lambda: TrainsOn(0).line in lines_of(world, OPERATOR), ENDED_SECONDS)
        world.peers["peer-3"].kill()
        assert await world.until(lambda: world.stage == 1, 600.0)
        world.start("peer-3", 3)

    played(tmp_path, PLAN, meanwhile=leave)


def test_a_path_s_peers_divide_the_routing_sample(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(training, "SCORING_SECONDS", 90.0)
    world = played(tmp_path, PLAN, peers=8)
    scored = [line for line in lines_of(world, "peer-0") + lines_of(world, "peer-4") if line.startswith("scored ")]
    assert 6 <= sum(int(line.split()[1]) for line in scored) < 9, scored  # of 6; each may do one that the other does


def test_in_a_synchronous_run_all_wait_for_the_next_stage_at_one_version(tmp_path: Path) -> None:
    world = played(tmp_path, replace(PLAN, pacing="synchronous"))
    assert TrainsOn(0).line not in lines_of(world, OPERATOR)
    assert world.final is not None
    assert not world.final.lost
    assert not world.final.beyond
