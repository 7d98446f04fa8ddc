"""Who is silent in the middle of a round: a synchronous round asks and waits, a paced one goes on."""

import asyncio
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch

from dipaco_swarm.algorithm.paths import ModuleId, PathIndex
from dipaco_swarm.swarm.interface import Agreed, Announcement, Contribution, ModuleGroup, Outcome, PeerName
from dipaco_swarm.swarm.local import Direct, LocalNetwork, TimingWithin
from dipaco_swarm.swarm.local_stream import END, LocalStream
from dipaco_swarm.swarm.networked import NetworkedSwarm
from dipaco_swarm.swarm.round.reduction import leader_order
from dipaco_swarm.swarm.wire import Roster
from tests.hub import Hub, hear, until
from tests.long import cases

MODULE = ModuleId(0, 0)
NAMES = ("one", "other", "third")
DIGEST = "0" * 64
LEADER = leader_order(0, MODULE, 0, NAMES)[0]
MEMBER = next(name for name in NAMES if name != LEADER)

TIMING = TimingWithin(heartbeat=0.5, pulse=0.1, answer=0.4, stall=6.0)
"""Five times as fast as over a network: silence is noticed after 1.6 s, and 12 s of standing still are 2.4 s."""
STALL_SECONDS = 12 / 5


class Stalling(Direct):
    """A link on which nothing of one peer moves for a while, from the moment that a round begins for it."""

    def __init__(self, victim: str, seconds: float) -> None:
        self._victim = victim
        self._seconds = seconds
        self._held: list[tuple[LocalStream, object, int]] | None = None
        self.stalled = threading.Event()

    async def carry(self, stream: LocalStream, item: object, size: int) -> None:
        if isinstance(item, Roster) and self._victim in (stream.me, stream.peer) and not self.stalled.is_set():
            self.stalled.set()
            self._held = []
            asyncio.get_running_loop().call_later(self._seconds, self._go_on)
        self._deliver(stream, item, size)
        if size:
            await asyncio.sleep(0)

    def end(self, stream: LocalStream) -> None:
        self._deliver(stream, END, 0)

    def _deliver(self, stream: LocalStream, item: object, size: int) -> None:
        if self._held is not None and self._victim in (stream.me, stream.peer):
            self._held.append((stream, item, size))
        else:
            stream.other.arrive(item, size)

    def _go_on(self) -> None:
        held, self._held = self._held or [], None
        for stream, item, size in held:
            stream.other.arrive(item, size)


def gradient_of(path: int) -> torch.Tensor:
    return torch.randn(3000, generator=torch.Generator().manual_seed(path))


def group(*, whole: bool) -> ModuleGroup:
    return ModuleGroup(0, MODULE, {PathIndex(path): 1 / 3 for path in range(3)}, whole=whole)


def meet(hub: Hub, *, whole: bool) -> list[NetworkedSwarm]:
    swarms = [hub.swarm(name) for name in NAMES]
    for path, swarm in enumerate(swarms):
        swarm.configure_rounds("fp32", 4.0)
        swarm.announce([Announcement(swarm.peer, 0, MODULE, PathIndex(path), 0, DIGEST)], [group(whole=whole)])
    hear(swarms, 0, [MODULE])
    return swarms


def round_of(swarms: Sequence[NetworkedSwarm], *, whole: bool, patience: float = 60.0) -> dict[str, Outcome]:
    def take_part(swarm: NetworkedSwarm) -> Outcome:
        path = NAMES.index(swarm.peer)
        part = Contribution(group(whole=whole), PathIndex(path), 0, gradient_of(path), 1, DIGEST)
        return swarm.all_reduce([part], patience=patience)[MODULE]

    with ThreadPoolExecutor(len(swarms)) as pool:
        outcomes = pool.map(take_part, swarms)
        return {swarm.peer: outcome for swarm, outcome in zip(swarms, outcomes, strict=True)}


def mean_without_disturbance() -> torch.Tensor:
    with Hub() as hub:
        outcome = round_of(meet(hub, whole=True), whole=True)[LEADER]
    assert isinstance(outcome, Agreed)
    return outcome.mean


@pytest.mark.parametrize("victim", [LEADER, MEMBER])
def test_a_synchronous_round_waits_for_who_stands_still_and_ends_on_the_same_bytes(victim: str) -> None:
    link = Stalling(victim, STALL_SECONDS)
    with Hub(network=LocalNetwork(link, TIMING)) as hub:
        outcomes = round_of(meet(hub, whole=True), whole=True)
    assert link.stalled.is_set()
    undisturbed = mean_without_disturbance()
    for outcome in outcomes.values():
        assert isinstance(outcome, Agreed), outcome
        assert set(outcome.contributors) == set(NAMES)
        assert outcome.left_out == ()
        assert torch.equal(outcome.mean, undisturbed)


def test_a_paced_round_goes_on_without_who_stands_still() -> None:
    link = Stalling(MEMBER, STALL_SECONDS)
    with Hub(network=LocalNetwork(link, TIMING)) as hub:
        outcomes = round_of(meet(hub, whole=False), whole=False, patience=1.0)
    assert link.stalled.is_set()
    for name in set(NAMES) - {MEMBER}:
        outcome = outcomes[name]
        assert isinstance(outcome, Agreed), outcome
        assert set(outcome.contributors) == set(NAMES) - {MEMBER}


@pytest.mark.parametrize("victim", cases(LEADER, long=[MEMBER]))
def test_a_synchronous_round_does_not_wait_for_who_cannot_be_dialled_any_more(victim: str) -> None:
    network = LocalNetwork(timing=TIMING)
    with Hub(network=network) as hub:
        swarms = meet(hub, whole=True)
        del network.transports[victim]  # no goodbye: its announcement goes on to count
        outcomes = round_of([swarm for swarm in swarms if swarm.peer != victim], whole=True)
    for outcome in outcomes.values():
        assert isinstance(outcome, Agreed), outcome
        assert set(outcome.contributors) == set(NAMES) - {victim}


def test_who_moves_away_leads_what_it_has_begun_to_its_end() -> None:
    """It takes no part any more, and does not turn away those for whom the others wait."""
    with Hub(network=LocalNetwork(timing=TIMING)) as hub, ThreadPoolExecutor() as pool:
        by_name = {swarm.peer: swarm for swarm in meet(hub, whole=True)}
        leader, second, first = (by_name[PeerName(name)] for name in leader_order(0, MODULE, 0, NAMES))

        def take_part(swarm: NetworkedSwarm) -> Outcome:
            path = PathIndex(NAMES.index(swarm.peer))
            part = Contribution(group(whole=True), path, 0, gradient_of(path), 10, DIGEST)
            return swarm.all_reduce([part], patience=20.0)[MODULE]

        begun = pool.submit(take_part, first)
        until(lambda: leader.is_gathering(0, MODULE, 0))
        elsewhere = replace(group(whole=True), module=ModuleId(0, 1))
        said = Announcement(leader.peer, 0, ModuleId(0, 1), PathIndex(0), 0, DIGEST)
        leader.announce([said], [elsewhere])
        until(lambda: leader.peer not in {said.peer for said in second.members(0, MODULE)})
        over = take_part(second)
        assert isinstance(over, Agreed)
        assert isinstance(begun.result(), Agreed)
        assert {*over.contributors} == {first.peer, second.peer}
