"""Which state a peer begins a module from, when it enters a stage."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import cast

import pytest
import torch

from dipaco_swarm.algorithm.paths import ModuleId, PathIndex
from dipaco_swarm.algorithm.state import ModuleState
from dipaco_swarm.events.event import Event
from dipaco_swarm.events.training import Fetched
from dipaco_swarm.machine.notices import Notices
from dipaco_swarm.machine.stopping import Stopping
from dipaco_swarm.peer.arriving import NewestOnEntering
from dipaco_swarm.peer.surroundings import Surroundings
from dipaco_swarm.run.manifest import Stage
from dipaco_swarm.swarm.interface import Announcement, ModuleGroup, Role
from dipaco_swarm.swarm.networked import NetworkedSwarm
from tests.hub import Hub, hear

MODULE = ModuleId(0, 0)
GROUP = ModuleGroup(0, MODULE, {PathIndex(0): 1.0})
PARAMETERS = 500


def state_of(version: int) -> ModuleState:
    random = torch.Generator().manual_seed(version)
    return ModuleState(version, torch.randn(PARAMETERS, generator=random), torch.zeros(PARAMETERS), work=100 * version)


def announce(swarm: NetworkedSwarm, version: int, role: Role) -> None:
    state, path = state_of(version), PathIndex(0) if role is Role.TRAINS else None
    swarm.hold(0, MODULE, state)
    said = Announcement(swarm.peer, 0, MODULE, path, version, state.digest, state.work, role=role)
    swarm.announce([said], [GROUP] if path is not None else [])


Enter = Callable[..., tuple[ModuleState, list[Event]]]


@pytest.fixture
def enter(hub: Hub) -> Enter:
    def enter(*, kept: int | None, trained: int, ours: int | None = None, begins_earlier: bool = True) -> object:
        """The state that a peer enters with, and what it says. `kept`: version at the node; None: it keeps nothing."""
        node, ada, late = (hub.swarm(name) for name in ("bootstrap", "ada", "late"))
        node._vouching.circle.meet(["ada"])  # else only what the node has had is believed
        if kept is not None:
            announce(node, kept, Role.KEEPS)
        announce(ada, trained, Role.TRAINS)
        hear([node, ada, late], 0, [MODULE])
        said: list[Event] = []
        around = SimpleNamespace(
            swarm=late,
            stop=Stopping(),
            notices=Notices(said.append, late.clock),
            screen=SimpleNamespace(event=said.append),
        )
        states = NewestOnEntering(
            cast(Surroundings, around),
            cast(Stage, SimpleNamespace(index=0, generations={}, restored={})),
            at_hand=[],
            start=lambda module: state_of(0),
            size=lambda module: PARAMETERS,
            follow=lambda module: lambda *_: pytest.fail("there are no averages"),
            trains_on=False,
            begins_earlier=begins_earlier,
        )
        return states.of({MODULE: None if ours is None else state_of(ours)})[MODULE], said

    return cast(Enter, enter)


@pytest.mark.parametrize(("kept", "version"), [(7, 7), (5, 5), (3, 3), (2, 9), (9, 9), (None, 9)])
def test_a_newcomer_begins_with_a_state_that_the_node_keeps_unless_it_is_long_ago(
    enter: Enter, kept: int | None, version: int
) -> None:
    state, said = enter(kept=kept, trained=9)
    assert state.digest == state_of(version).digest
    assert said == [Fetched(str(MODULE), version)]


def test_where_nothing_comes_while_training_it_takes_the_newest(enter: Enter) -> None:
    assert enter(kept=7, trained=9, begins_earlier=False)[0].version == 9


def test_who_has_as_much_as_the_node_keeps_takes_the_newest(enter: Enter) -> None:
    assert enter(kept=7, trained=9, ours=7)[0].version == 9


def test_what_the_node_says_that_it_keeps_and_does_not_send_is_taken_from_whoever_has_more(
    enter: Enter, monkeypatch: pytest.MonkeyPatch
) -> None:
    hold = NetworkedSwarm.hold

    def hold_but(swarm: NetworkedSwarm, stage: int, module: ModuleId, state: ModuleState) -> None:
        if swarm.peer != "bootstrap":
            hold(swarm, stage, module, state)

    monkeypatch.setattr(NetworkedSwarm, "hold", hold_but)
    assert enter(kept=7, trained=9)[0].version == 9
