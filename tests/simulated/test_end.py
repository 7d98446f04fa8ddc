"""The end of a run, for who is not there to hear it."""

from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from dipaco_swarm.algorithm.paths import ModuleId, PathIndex
from dipaco_swarm.events.volunteer import LeftAlone
from dipaco_swarm.machine.notices import Notices
from dipaco_swarm.path_in_training import PathInTraining
from dipaco_swarm.peer.company import Company
from dipaco_swarm.peer.surroundings import Surroundings
from dipaco_swarm.run.manifest import Manifest
from dipaco_swarm.swarm.interface import Announcement, PeerName, Role
from dipaco_swarm.swarm.local import local_address
from dipaco_swarm.swarm.timing import Timing
from dipaco_swarm.testing.process import Machine
from dipaco_swarm.testing.run import OPERATOR, Plan, StagePlan
from dipaco_swarm.testing.stories import tell
from dipaco_swarm.testing.world import World
from tests.clocks import HandClock
from tests.long import cases

APART = ((0,), (1,))
"""Two paths that share nothing."""
ADDRESS = local_address("run", "0" * 64, OPERATOR)


def of_stages(number: int) -> Manifest:
    """A run that is in the first of so many stages."""
    plan = SimpleNamespace(stages=(None,) * number)
    return cast(Manifest, SimpleNamespace(stage=SimpleNamespace(index=0, rounds=None), config=plan, delegates=()))


@pytest.mark.parametrize("stages", [1, 2])
def test_who_sleeps_through_the_end_finishes_its_path_and_leaves(tmp_path: Path, stages: int) -> None:
    plan = Plan((StagePlan(APART, rounds=4),) * stages, inner_steps=4, until_finished=True)
    world = World(1, plan, tmp_path / "world")
    left: list[bool] = []

    async def story(world: World) -> None:
        world.start("awake", 0)
        sleeper = world.start("asleep", 1, Machine(step_seconds=5.0))
        assert await world.until(lambda: sleeper.watched is not None and bool(sleeper.watched.at), 60.0)
        world.loop.freeze(sleeper.owner)
        helper = world.start("helper", 1)
        assert await world.until(lambda: world.finished, 600.0)
        assert await world.until(lambda: not (helper.is_alive or world.operator.is_alive), 120.0)
        world.loop.thaw(sleeper.owner)
        assert world.is_one()  # nobody is left to hear of a newer stage from
        left.append(await world.until(lambda: not sleeper.is_alive, 900.0))

    world.play(story)
    assert left == [True]
    assert not world.failures()
    assert not world.ledger.violations
    assert any(who == "asleep" and LeftAlone(600.0).line == what for _, who, what in world.lines)


def company_of(others: list[Announcement]) -> tuple[Company, PathInTraining, HandClock]:
    """Of ada, who is done with the only module of her path at version 4, and hears these others; and her clock."""
    clock, module = HandClock(), ModuleId(0, 0)
    swarm = SimpleNamespace(peer=PeerName("ada"), timing=Timing(), members=lambda stage, module: others)
    notices, settings = Notices(lambda event: None, clock), SimpleNamespace(address=ADDRESS)
    around = SimpleNamespace(clock=clock, swarm=swarm, notices=notices, settings=settings)
    rules = SimpleNamespace(last_versions={module: 4})
    peer = SimpleNamespace(swarm=swarm, stage=0, modules=[module], is_done=True, rules=rules)
    return Company(cast(Surroundings, around)), cast(PathInTraining, peer), clock


def test_who_hears_nobody_before_the_last_stage_waits_for_others_as_long_as_it_was_with_them() -> None:
    hour = 3600.0
    others = [Announcement(PeerName("bob"), 0, ModuleId(0, 0), PathIndex(0), 1, "", 8)]
    company, peer, clock = company_of(others)
    clock.now += 5 * hour
    company.look_around(peer, of_stages(1))
    others.clear()
    left = []
    for alone in (0.1 * hour, hour, 3 * hour, 2 * hour):
        clock.now += alone
        left.append([company.has_been_left(peer, of_stages(number)) for number in (1, 2)])
    assert left == [[False, False], [True, False], [True, False], [True, True]]


@pytest.mark.parametrize(
    ("name", "known", "role", "leaves"),
    [
        ("bob", True, Role.TRAINS, False),
        ("mallory", False, Role.TRAINS, True),
        ("mallory", False, Role.KEEPS, True),
        (OPERATOR, False, Role.KEEPS, False),
    ],
)
def test_a_strangers_word_that_the_run_goes_on_keeps_nobody(name: str, known: bool, role: Role, leaves: bool) -> None:
    path = PathIndex(0) if role is Role.TRAINS else None
    said = Announcement(PeerName(name), 0, ModuleId(0, 0), path, 1, "", 8, role=role, known=known)
    company, peer, clock = company_of([said])
    for _ in range(10):
        clock.now += 3600.0
        company.look_around(peer, of_stages(1))
    assert company.has_been_left(peer, of_stages(1)) == leaves


@pytest.mark.parametrize("stage", cases("a stage before it", long=["the last stage"]))
def test_those_who_missed_the_end_together_leave_together(tmp_path: Path, stage: str) -> None:
    """Nobody heard some of them for 90 s; meanwhile the run was finished, and all others left."""
    seed = {"the last stage": 174, "a stage before it": 270}[stage]
    assert not tell(seed, tmp_path, seconds=120.0, overlap=True).violations


def test_who_hears_nobody_goes_only_where_it_has_been(tmp_path: Path) -> None:
    """It slept until all had left, and to it every other path looks as if nobody trained it."""
    assert not tell(787, tmp_path, seconds=120.0).violations


def test_who_is_told_to_stop_asks_nobody_any_more(tmp_path: Path) -> None:
    """It reads the directory until the last moment, sees nobody there whom it knows, and would ask others who is."""
    assert not tell(11, tmp_path, seconds=90.0).violations
