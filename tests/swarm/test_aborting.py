"""A leader that aborts each round, whatever it says why: it is passed over soon, and strangers are all together."""

import threading
import time
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from dipaco_swarm.algorithm.paths import ModuleId, PathIndex
from dipaco_swarm.swarm.interface import Agreed, Announcement, Contribution, ModuleGroup, Outcome
from dipaco_swarm.swarm.networked import NetworkedSwarm
from dipaco_swarm.swarm.proofs import Proof
from dipaco_swarm.swarm.round import deciding
from dipaco_swarm.swarm.round.candidates import STRANGERS
from dipaco_swarm.swarm.round.reduction import leader_order
from dipaco_swarm.swarm.round.seals import Subject
from dipaco_swarm.swarm.wire import Abort
from tests.hub import FINGERPRINT, Hub, hear, until

from .test_contract import reduce_together

MODULE = ModuleId(0, 0)
GROUP = ModuleGroup(0, MODULE, {PathIndex(path): 0.25 for path in range(4)}, "robust")
DIGEST = "0" * 64
HONEST = ["anna", "bert", "cleo"]


def old_proof(hub: Hub) -> Proof:
    """Of a name that its leader has made up, which is in no round: it has signed two averages of something once."""
    sign, about = hub.swarm("ghost")._transport.sign, Subject(FINGERPRINT, 0, MODULE, 0, bytes(32))
    one, other = b"1" * 32, b"2" * 32
    signed = bytes(sign(about.statement(0, one))), bytes(sign(about.statement(0, other)))
    return Proof(
        reducer="ghost",
        stage=0,
        module=str(MODULE),
        version=0,
        roster=bytes(32),
        generation=0,
        digests=(one, other),
        signatures=signed,
    )


def abort_rounds_of(name: str, monkeypatch: pytest.MonkeyPatch, proofs: tuple[Proof, ...]) -> list[set[str]]:
    """It leads in this way from now on; returns who was in these rounds, of those that others were in."""
    honest, aborted = deciding.RunningRound.reach_decision, list[set[str]]()

    async def reach_decision(self: Any) -> None:
        if not self._transport.peer.startswith(name):
            await honest(self)
            return
        if there := {member.peer for member in self._roster.members} & {*HONEST}:
            aborted.append(there)
        await self._tell_all(self._roster)
        await self._tell_all(Abort(reason="it likes to", proofs=proofs))

    monkeypatch.setattr(deciding.RunningRound, "reach_decision", reach_decision)
    return aborted


def make_a_round(swarms: Sequence[NetworkedSwarm], version: int) -> dict[str, Outcome]:
    gradients = [torch.randn(1 << 12, generator=torch.Generator().manual_seed(path)) for path in range(len(swarms))]
    parts = [[Contribution(GROUP, PathIndex(i), version, each, 100, DIGEST)] for i, each in enumerate(gradients)]
    found = reduce_together(swarms, parts, patience=3)
    return {str(swarm.peer): outcomes[MODULE] for swarm, outcomes in zip(swarms, found, strict=True)}


@pytest.fixture
def members(hub: Hub) -> list[NetworkedSwarm]:
    made = [hub.swarm(name) for name in HONEST]
    for swarm in made:
        swarm._vouching.circle.meet([*HONEST, "mallory"])
        swarm.configure_rounds("int8", 4.0)
    return made


def announce(swarms: Sequence[NetworkedSwarm], version: int) -> None:
    for path, swarm in enumerate(swarms):
        swarm.announce([Announcement(swarm.peer, 0, MODULE, PathIndex(path), version, DIGEST)], [GROUP])
    hear([*swarms], 0, [MODULE])


@pytest.mark.parametrize("proves", [True, False])
def test_a_member_is_passed_over_after_two_of_them(
    hub: Hub, members: list[NetworkedSwarm], monkeypatch: pytest.MonkeyPatch, proves: bool
) -> None:
    """Also where it shows that somebody is guilty of something: who is in no round makes none fail."""
    mallory = hub.swarm("mallory")
    mallory.configure_rounds("int8", 4.0)
    version = next(v for v in range(100) if leader_order(0, MODULE, v, [*HONEST, "mallory"])[0] == "mallory")
    aborted = abort_rounds_of("mallory", monkeypatch, (old_proof(hub),) if proves else ())
    announce([*members, mallory], version)
    for _ in range(2):
        found = make_a_round([*members, mallory], version)
        assert not any(isinstance(found[name], Agreed) for name in HONEST)
    assert len(aborted) == 2
    found = make_a_round([*members, mallory], version)
    assert all(isinstance(found[name], Agreed) for name in HONEST)
    assert len(aborted) == 2
    assert "ghost" not in members[0].door.bans, "nobody here has ever met it"


@pytest.mark.parametrize("proves", [True, False])
def test_strangers_are_passed_over_together(
    hub: Hub, members: list[NetworkedSwarm], monkeypatch: pytest.MonkeyPatch, proves: bool
) -> None:
    """Each has a name of its own, which costs nothing, and which is the first one in the order of leaders."""
    names = [f"stranger-{n}" for n in range(400)]
    first = [name for name in names if leader_order(0, MODULE, 5, [*HONEST, name])[0] == name]
    aborted = abort_rounds_of("stranger", monkeypatch, (old_proof(hub),) if proves else ())
    for tried, name in enumerate(first[:2], start=1):
        stranger = hub.swarm(name)
        stranger.configure_rounds("int8", 4.0)
        announce([*members, stranger], 5)
        gathers = threading.Thread(target=make_a_round, args=[[stranger], 5])
        gathers.start()
        until(lambda s=stranger: s._rounds is not None and s._rounds._leader.leads((0, MODULE, 5)))  # type: ignore[misc]
        make_a_round(members, 5)
        gathers.join()
        assert len(aborted) == tried
    in_both = set.intersection(*aborted)
    assert in_both, "who came when a round had begun has nothing against its leader"
    met = {str(member.peer): member._rounds._demotions for member in members if member._rounds}
    assert all(STRANGERS in met[name].found(time.monotonic()) for name in in_both)
