"""What a peer that leaves takes for held by others: anybody may say anything, and what is lost with it is lost."""

from dataclasses import replace

import torch

from dipaco_swarm.algorithm.paths import ModuleId, PathIndex
from dipaco_swarm.algorithm.state import ModuleState
from dipaco_swarm.events.event import Event
from dipaco_swarm.events.volunteer import HandedOver, OnlyHere
from dipaco_swarm.machine.stopping import Stopping
from dipaco_swarm.peer.handover import hand_over, nodes_of, other_holders
from dipaco_swarm.run.manifest import Delegate
from dipaco_swarm.swarm.circle import Circle
from dipaco_swarm.swarm.interface import Announcement, Role
from dipaco_swarm.swarm.networked import NetworkedSwarm
from tests.doors.test_manifest import manifest
from tests.hub import BOOTSTRAP, Hub, hear

MODULE = ModuleId(0, 0)
OURS = ModuleState(3, torch.ones(4), torch.ones(4), 300)
NEWER = ModuleState(4, torch.ones(4), torch.ones(4), 400)
ELSEWHERE = ModuleState(3, torch.zeros(4), torch.ones(4), 200)
"""As many versions, with less work behind it."""
NODES = {BOOTSTRAP}


def says(swarm: NetworkedSwarm, state: ModuleState, role: Role = Role.TRAINS, version: int | None = None) -> None:
    path = PathIndex(0) if role is Role.TRAINS else None
    said = Announcement(swarm.peer, 0, MODULE, path, state.version, state.digest, state.work, role=role)
    swarm.announce([said if version is None else replace(said, version=version, digest="d" * 64, work=1 << 40)])


def we(hub: Hub) -> NetworkedSwarm:
    """A peer that has made states with "known"."""
    circle = Circle()
    circle.meet(["us", "known"])
    return hub._opened.enter_context(hub.open("us", circle=circle))


def holders(us: NetworkedSwarm, *others: NetworkedSwarm) -> list[str]:
    hear([us, *others], 0, [MODULE])
    return [said.peer for said in other_holders(us, 0, MODULE, OURS, NODES)]


def test_only_whom_we_know_and_the_operators_nodes_hold_what_we_have(hub: Hub) -> None:
    us, known, stranger, node = we(hub), hub.swarm("known"), hub.swarm("stranger"), hub.swarm(BOOTSTRAP)
    says(stranger, OURS, Role.KEEPS)
    says(known, ELSEWHERE)
    says(node, ModuleState(2, OURS.params, OURS.momentum, 250), Role.KEEPS)
    assert holders(us, known, stranger, node) == []
    says(stranger, OURS, Role.KEEPS, version=10**6)
    says(known, OURS)
    assert holders(us, known, stranger, node) == ["known"]
    says(known, ELSEWHERE)
    says(node, NEWER, Role.KEEPS)
    assert holders(us, known, stranger, node) == [BOOTSTRAP]


def test_a_stranger_that_claims_a_huge_version_keeps_nobody_from_handing_over(hub: Hub) -> None:
    us, stranger, node = we(hub), hub.swarm("stranger"), hub.swarm(BOOTSTRAP)
    says(stranger, OURS, Role.KEEPS, version=10**6)
    hear([us, stranger], 0, [MODULE])
    reported: list[Event] = []
    hand_over(us, 0, {MODULE: OURS}, NODES, Stopping(), reported.append)
    assert reported == [OnlyHere((str(MODULE),))]  # there is nobody to wait for
    says(node, OURS, Role.KEEPS)
    hear([us, stranger, node], 0, [MODULE])
    reported.clear()
    hand_over(us, 0, {MODULE: OURS}, NODES, Stopping(), reported.append)
    assert HandedOver() not in reported  # the node has had it all along
    assert reported == []


def test_appointed_standbys_are_nodes_of_the_operators(hub: Hub) -> None:
    place = hub.address.bootstraps[0].replace(BOOTSTRAP, "standby")
    appointed = Delegate(key="0" * 64, signature="0" * 128, places=(place,))
    assert nodes_of(hub.address, manifest()) == {BOOTSTRAP}
    assert nodes_of(hub.address, manifest().model_copy(update={"delegates": (appointed,)})) == {BOOTSTRAP, "standby"}
