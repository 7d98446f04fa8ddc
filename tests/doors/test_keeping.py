"""What a node keeps: a slow sender holds up neither other modules nor the node, and strangers train nothing."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from dipaco_swarm.algorithm.paths import ModuleId, PathIndex
from dipaco_swarm.algorithm.plan import Claim
from dipaco_swarm.algorithm.stages import soonest_end
from dipaco_swarm.algorithm.state import ModuleState
from dipaco_swarm.events.operator import StrangersAhead
from dipaco_swarm.operator.keeping import CATCH_UP_SECONDS, Keeping
from dipaco_swarm.operator.surroundings import Disk, Surroundings
from dipaco_swarm.operator.unbelieved import AFTER_SECONDS, AGAIN_SECONDS, Unbelieved
from dipaco_swarm.run.manifest import Stage
from dipaco_swarm.swarm.interface import Announcement, PeerName
from tests.doors.test_manifest import manifest

LEFT, RIGHT = ModuleId(0, 0), ModuleId(0, 1)
SEED = ModuleState.seed(torch.zeros(4))


def at(version: int) -> ModuleState:
    return ModuleState(version, torch.full((4,), float(version)), torch.ones(4), 100 * version)


@dataclass
class Coming:
    """A `FetchUnderWay` that is over when the test says so."""

    swarm: "Swarm"
    sent: ModuleState
    is_over: bool
    cancelled: bool = False

    def state(self, timeout: float | None = None) -> ModuleState | None:
        if self.is_over:
            return self.sent
        assert timeout is not None, "the node would wait for as long as the sender likes"
        self.swarm.now += timeout
        return None

    def cancel(self) -> None:
        self.cancelled = True


@dataclass
class Swarm:
    """What `Keeping` asks of one: everybody trains, and what is claimed is believed."""

    claims: dict[ModuleId, ModuleState] = field(default_factory=dict)
    slow: set[ModuleId] = field(default_factory=set)
    begun: dict[ModuleId, list[Coming]] = field(default_factory=dict)
    strangers: set[ModuleId] = field(default_factory=set)
    now: float = 0.0
    peer = PeerName("node")

    timing = SimpleNamespace(long_ago=600.0)

    @property
    def clock(self) -> Any:
        return SimpleNamespace(monotonic=lambda: self.now)

    def members(self, stage: int, module: ModuleId) -> list[Announcement]:
        state = self.claims.get(module)
        if state is None:
            return []
        said = Announcement(PeerName("ada"), 0, module, PathIndex(0), state.version, state.digest, state.work)
        return [replace(said, known=module not in self.strangers)]

    def believed(self, stage: int, module: ModuleId, ours: Claim, claims: list[Claim], timeout: float = 0) -> Any:
        return [claim for claim in claims if claim.beats(ours)]

    def begin_fetch(self, stage: int, module: ModuleId, digest: str, **_: object) -> Coming:
        coming = Coming(self, self.claims[module], is_over=module not in self.slow)
        self.begun.setdefault(module, []).append(coming)
        return coming

    def hold(self, stage: int, module: ModuleId, state: ModuleState) -> None:
        """Nobody asks for it here."""


@pytest.fixture
def swarm() -> Swarm:
    return Swarm()


@pytest.fixture
def keeping(swarm: Swarm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Keeping:
    around = SimpleNamespace(swarm=swarm, home=SimpleNamespace(folder=tmp_path), stop=lambda: False)
    disk = SimpleNamespace(write=lambda work: None)
    monkeypatch.setattr(Keeping, "_announce", lambda keeping, stage: None)
    monkeypatch.setattr(Keeping, "_look_up_next", lambda keeping, stage: None)
    made = Keeping(cast(Surroundings, around), cast(Disk, disk))
    made._states.update({LEFT: SEED, RIGHT: SEED})
    return made


@pytest.fixture
def stage() -> Stage:
    return manifest().stage


def test_a_slow_sender_holds_up_neither_the_node_nor_the_other_modules(
    swarm: Swarm, keeping: Keeping, stage: Stage
) -> None:
    swarm.claims, swarm.slow = {LEFT: at(1), RIGHT: at(1)}, {LEFT}
    for _ in range(3):
        keeping.catch_up(stage)
    assert swarm.now <= CATCH_UP_SECONDS
    assert (keeping.states[LEFT].version, keeping.states[RIGHT].version) == (0, 1)
    swarm.claims = {LEFT: at(3), RIGHT: at(2)}  # the group is faster than the sender
    keeping.catch_up(stage)
    (coming,) = swarm.begun[LEFT]
    coming.is_over = True
    swarm.claims = {RIGHT: at(2)}  # and has gone meanwhile
    keeping.catch_up(stage)
    assert (keeping.states[LEFT].version, keeping.states[RIGHT].version) == (1, 2)


def test_what_is_on_its_way_is_let_go_when_the_run_goes_back(swarm: Swarm, keeping: Keeping, stage: Stage) -> None:
    swarm.claims, swarm.slow = {LEFT: at(1)}, {LEFT}
    keeping.catch_up(stage)
    keeping.let_go()
    (coming,) = swarm.begun[LEFT]
    assert coming.cancelled
    coming.is_over, swarm.claims = True, {}
    keeping.catch_up(stage)
    assert keeping.states[LEFT].version == 0


def test_a_stranger_that_says_it_trains_what_nobody_trains_does_not_keep_a_stage_from_its_end(
    swarm: Swarm, keeping: Keeping, stage: Stage
) -> None:
    keeping._states.update({LEFT: at(5), RIGHT: at(2)})
    swarm.claims = {LEFT: at(5), RIGHT: at(2)}
    swarm.strangers = {RIGHT}
    held = {module: state.version for module, state in keeping.states.items()}
    assert keeping.trained(stage) == {LEFT: 5}
    assert soonest_end(held, keeping.trained(stage), 1) == 2
    swarm.strangers = set()  # as in a new run, in which nobody is known
    assert keeping.trained(stage) == {LEFT: 5, RIGHT: 2}


def test_the_operator_is_told_of_strangers_whose_states_the_node_does_not_take(swarm: Swarm, stage: Stage) -> None:
    told: list[StrangersAhead] = []
    screen = SimpleNamespace(event=told.append)
    unbelieved = Unbelieved(cast(Surroundings, SimpleNamespace(swarm=swarm, screen=screen)))

    def looks(seconds: float, **held: int) -> int:
        """So many times it is told when these versions are held meanwhile."""
        before, until = len(told), swarm.now + seconds
        while swarm.now < until:
            unbelieved.look(stage, {LEFT: at(held["left"]), RIGHT: at(held["right"])})
            swarm.now += 1.0
        return len(told) - before

    swarm.claims, swarm.strangers = {LEFT: at(3), RIGHT: at(3)}, {LEFT, RIGHT}
    assert looks(AFTER_SECONDS, left=1, right=3) == 0, "they may be believed in a moment"
    assert looks(AGAIN_SECONDS, left=1, right=3) == 1
    assert looks(AGAIN_SECONDS, left=1, right=3) == 1
    assert told[0].line.startswith("1 peer trains ahead of this node, which knows none of them")
    assert "after 10 minutes" in told[0].line
    assert looks(2 * AGAIN_SECONDS, left=3, right=3) == 0
    swarm.strangers = {LEFT}
    assert looks(2 * AGAIN_SECONDS, left=1, right=3) == 0, "whom it knows is there, and is asked"
