"""Rounds that are made while training goes on: nothing is lost or counted twice, and nobody stands still."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

import pytest

from dipaco_swarm.algorithm.paths import ModuleId
from dipaco_swarm.dashboard.views import PeerView
from dipaco_swarm.events.event import Event
from dipaco_swarm.events.usage import Usage
from dipaco_swarm.peer.volunteer import WAIT_SECONDS
from dipaco_swarm.testing.lines import Lines
from dipaco_swarm.testing.network import Line
from dipaco_swarm.testing.process import Machine
from dipaco_swarm.testing.run import Plan, StagePlan
from dipaco_swarm.testing.stories import tell
from dipaco_swarm.testing.volunteer import SimulatedPeer
from dipaco_swarm.testing.world import World
from tests.long import cases

TABLE = ((0, 0), (0, 1), (1, 0), (1, 1))
ROUNDS = 4
SLOW = Line(up=17e3, down=83e3)
"""A module of 100,000 parameters takes it more than half of the time that a round trains."""


@pytest.mark.parametrize("seed", cases(0, long=(1, 2, 13072)))
def test_without_faults_nothing_forks_and_nothing_is_lost(tmp_path: Path, seed: int) -> None:
    outcome = tell(seed, tmp_path, faulty=False, seconds=60.0, overlap=True)
    assert not outcome.violations
    assert not outcome.forks
    assert not outcome.balance.lost
    assert outcome.commits > 0


@pytest.mark.parametrize("seed", cases(203, 1015, long=(200, 201, 202, 204)))
def test_whatever_breaks_every_token_is_accounted_for_and_all_are_one_again(tmp_path: Path, seed: int) -> None:
    outcome = tell(seed, tmp_path, seconds=90.0, overlap=True)
    assert outcome.faults
    assert not outcome.violations
    assert outcome.commits > 0


# ------------------------------------------------------------------------------------------------------- synchronous


def play_to_the_end(plan: Plan, folder: Path, line: Line) -> dict[ModuleId, str]:
    """The digests that a synchronous run ends on."""
    world = World(3, plan, folder)
    last: dict[ModuleId, str] = {}

    async def story(world: World) -> None:
        for path in range(len(TABLE)):
            world.start(f"peer-{path}", path, Machine(replace(line), step_seconds=0.5 + 0.25 * path))
        assert await world.until(lambda: not world.live(), 1800.0), world.apart()
        last.update({module: state.digest for module, state in world.operator.kept(0).items()})

    world.play(story)
    assert not world.failures()
    assert not world.ledger.violations
    return last


@pytest.mark.parametrize("codec", cases("fp32", "int4", long=["int8"]))
def test_results_that_come_a_fixed_number_of_steps_late_are_the_same_on_every_line(tmp_path: Path, codec: str) -> None:
    plan = Plan(
        (StagePlan(TABLE, rounds=ROUNDS),),
        inner_steps=6,
        codec=codec,
        parameters=2000,
        pacing="synchronous",
        overlap_steps=3,
        min_peers=4,
        until_finished=True,
    )
    fast = play_to_the_end(plan, tmp_path / "fast", Line())
    slow = play_to_the_end(plan, tmp_path / "slow", Line(up=2e3, down=1e4, delay=0.3))
    assert fast == slow
    assert len(fast) == 4


# ------------------------------------------------------------------------------------------------ nobody stands still


def play_on_a_slow_line(plan: Plan, folder: Path) -> tuple[float, World]:
    """The share of the time that four peers train on a line that is slower than their training."""
    world = World(1, plan, folder)
    shares: list[float] = []

    async def story(world: World) -> None:
        for path in range(len(TABLE)):
            world.start(f"peer-{path}", path, Machine(replace(SLOW)))
        await asyncio.sleep(60.0)
        before, began = sum(world.ledger.trained.values()), world.now
        await asyncio.sleep(150.0)
        steps = (sum(world.ledger.trained.values()) - before) / (2 * plan.config(0).tokens_per_step)
        shares.append(steps / (world.now - began) / len(TABLE))

    world.play(story)
    return shares[0], world


@dataclass(frozen=True)
class Overlapped:
    """A run on a slow line with overlapped rounds."""

    share: float
    """Of the time that its peers trained, by the ledger."""
    world: World
    seen: Sequence[PeerView]
    """What one of them showed..."""
    usages: Sequence[Usage]
    """... and wrote down."""
    pauses: Sequence[float]
    """Seconds from the end of an inner step to the beginning of the same peer's next one."""


PLAN = Plan((StagePlan(TABLE),), inner_steps=10, codec="int8", parameters=100_000)


@pytest.fixture(scope="module")
def overlapped(tmp_path_factory: pytest.TempPathFactory) -> Overlapped:
    seen: list[PeerView] = []
    usages: list[Usage] = []
    pauses: list[float] = []

    def show(self: Lines, view: object) -> None:
        if self.name == "peer-0" and isinstance(view, PeerView):
            seen.append(view)

    def said(self: Lines, event: Event) -> None:
        tell_event(self, event)
        if self.name == "peer-0" and isinstance(event, Usage):
            usages.append(event)

    def step(self: SimulatedPeer, random: Random) -> float:
        if self.step_ends:  # not before the first one
            pauses.append(self.clock.monotonic() - self.step_ends)
        return step_seconds(self, random)

    tell_event, step_seconds = Lines.event, SimulatedPeer._step
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Lines, "show", show)
        patch.setattr(Lines, "event", said)
        patch.setattr(SimulatedPeer, "_step", step)
        share, world = play_on_a_slow_line(replace(PLAN, overlap=True), tmp_path_factory.mktemp("overlap") / "world")
    return Overlapped(share, world, seen, usages, pauses)


def test_a_peer_trains_on_while_its_rounds_are_made(tmp_path: Path, overlapped: Overlapped) -> None:
    blocking, _ = play_on_a_slow_line(PLAN, tmp_path / "blocking")
    assert overlapped.share > 0.9, (blocking, overlapped.share)
    assert blocking < 0.7 * overlapped.share, (blocking, overlapped.share)
    assert not overlapped.world.ledger.violations
    assert overlapped.world.final is not None
    assert overlapped.world.final.counted


def test_a_round_that_is_due_before_the_next_step_is_begun_and_training_goes_on_at_once(overlapped: Overlapped) -> None:
    assert len(overlapped.pauses) > 500
    assert max(overlapped.pauses) < WAIT_SECONDS


def test_a_volunteer_sees_that_training_goes_on_in_a_round(overlapped: Overlapped) -> None:
    beside = [view for view in overlapped.seen if any(module.on_its_way is not None for module in view.modules)]
    assert len({view.tokens for view in beside}) > 50
    assert all(view.activity.startswith("training, and sharing L") for view in beside)
    parts = {module.on_its_way for view in beside for module in view.modules if module.on_its_way is not None}
    assert 0.0 in parts
    assert any(0.2 < part < 0.9 for part in parts)


def test_it_is_written_down_what_time_and_line_were_used_for(overlapped: Overlapped) -> None:
    first, last = overlapped.usages[0], overlapped.usages[-1]
    assert first.seconds < last.seconds
    assert last.share == pytest.approx(overlapped.share, abs=0.1)
    assert last.sent["round"] > PLAN.parameters
    assert last.received["joining"] > 0
