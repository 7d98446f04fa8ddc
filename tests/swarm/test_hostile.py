"""Members and strangers that do their worst, each as one identity, in process: nobody else ends, freezes or is lost."""

import asyncio
import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from dipaco_swarm.algorithm.state import ModuleState
from dipaco_swarm.swarm.interface import Agreed, Announcement, NotAgreed, Role
from dipaco_swarm.swarm.networked import NetworkedSwarm
from dipaco_swarm.swarm.round.average import Average
from dipaco_swarm.swarm.round.candidates import DEMOTED_AT
from dipaco_swarm.swarm.round.channels import Channel
from dipaco_swarm.swarm.round.exchange import PieceExchange
from dipaco_swarm.swarm.round.following import MISTAKE
from dipaco_swarm.swarm.round.gathering import Gathering
from dipaco_swarm.swarm.round.leader import Leader
from dipaco_swarm.swarm.round.reducer import Reducer
from dipaco_swarm.swarm.round.reduction import leader_order
from dipaco_swarm.swarm.wire import Exchange, Join, Refuse
from tests.hub import Hub

from .test_contract import MODULE, gather, group, part, reduce_together

MakeSwarms = Callable[[int], list[NetworkedSwarm]]
PARAMETERS = 300_000


def one_round(swarms: Sequence[NetworkedSwarm], codec: str = "fp32") -> list[Agreed | NotAgreed]:
    weights = group(*[1 / len(swarms)] * len(swarms))
    gather(swarms, {MODULE: weights}, range(len(swarms)))
    for swarm in swarms:
        swarm.configure_rounds(codec, 4.0)
    parts = [[part(i, torch.full((PARAMETERS,), i + 1.0), weights)] for i in range(len(swarms))]
    return [outcome[MODULE] for outcome in reduce_together(swarms, parts)]


@pytest.mark.parametrize("codec", ["fp32", "int8"])
def test_nobody_takes_an_average_that_is_not_a_number(
    make_local_swarms: MakeSwarms, monkeypatch: pytest.MonkeyPatch, codec: str
) -> None:
    swarms = make_local_swarms(4)
    liar = swarms[1].peer
    honest = Reducer._send_averages
    sent: list[int] = []

    class Liar:
        """A stream on which every average begins with NaN, as a number or as the scale of a block."""

        def __init__(self, stream: Any) -> None:
            self._stream = stream

        async def send_piece(self, header: Any, data: memoryview) -> None:
            sent.append(header.index)
            await self._stream.send_piece(header, memoryview(b"\x00\x00\xc0\x7f" + bytes(data[4:])))

    async def send_averages(self: Reducer, stream: Any, outlet: Any) -> None:
        lies = self._roster.members[self._me].peer == liar
        await honest(self, Liar(stream) if lies else stream, outlet)  # type: ignore[arg-type]

    monkeypatch.setattr(Reducer, "_send_averages", send_averages)
    outcomes = one_round(swarms, codec)
    assert sent, "nobody lied, which proves nothing"
    assert all(bool(torch.isfinite(outcome.mean).all()) for outcome in outcomes if isinstance(outcome, Agreed))


def test_streams_of_a_round_that_have_ended_are_not_held(
    make_local_swarms: MakeSwarms, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One member opens hundreds and closes them: 18 kB each were held until the round was over."""
    swarms = make_local_swarms(3)
    restless, held = swarms[1].peer, list[int]()
    exchange_with, serve = PieceExchange._exchange_with, PieceExchange.serve

    async def opens_and_closes(self: PieceExchange, owner: int) -> None:
        for _ in range(200 if self._transport.peer == restless else 0):
            async with self._transport.dial(self.roster.members[owner].peer, self._protocol) as stream:
                await stream.send(Exchange(round_id=self.roster.round_id))
            for _ in range(20):  # turns of the loop, in which the other side sees its end
                await asyncio.sleep(0)
        await exchange_with(self, owner)

    async def counted(self: PieceExchange, stream: Any) -> None:
        await serve(self, stream)
        held.append(len(self._streams.open))

    monkeypatch.setattr(PieceExchange, "_exchange_with", opens_and_closes)
    monkeypatch.setattr(PieceExchange, "serve", counted)
    outcomes = one_round(swarms)
    assert all(isinstance(outcome, Agreed) for outcome in outcomes)
    assert len(held) >= 400
    assert max(held) < 10
    assert all(outcome.bytes_received > PARAMETERS for outcome in outcomes if isinstance(outcome, Agreed))


def test_a_mistake_in_the_middle_of_a_round_ends_the_round_and_nothing_else(
    make_local_swarms: MakeSwarms, monkeypatch: pytest.MonkeyPatch, mistakes: list[str]
) -> None:
    swarms = make_local_swarms(3)
    unlucky = swarms[2]
    honest = Average.digest

    def digest(self: Average) -> bytes:
        assert unlucky._rounds is not None
        return b"%d" % (1 // 0) if self._compute is unlucky._rounds._compute else honest(self)

    monkeypatch.setattr(Average, "digest", digest)
    outcomes = one_round(swarms)
    # or the leader was sooner, where this machine is slow enough that it had said what it waits for
    assert isinstance(outcomes[2], NotAgreed)
    assert outcomes[2].given
    assert outcomes[2].reason == MISTAKE or "slower than the others" in outcomes[2].reason
    assert len(mistakes) >= 1
    assert all("ZeroDivisionError" in line for line in mistakes)
    mistakes.clear()
    monkeypatch.undo()
    assert all(isinstance(outcome, Agreed) for outcome in one_round(swarms))


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("name", ["params", "momentum"])
def test_nobody_takes_a_state_that_is_not_a_number(hub: Hub, bad: float, name: str) -> None:
    poison = ModuleState(42, torch.ones(3000), torch.ones(3000))
    getattr(poison, name)[1234] = bad
    stranger, peer = hub.swarm("stranger"), hub.swarm("peer")
    stranger.hold(0, MODULE, poison)
    stranger.announce([Announcement(stranger.peer, 0, MODULE, None, 42, poison.digest, 10**9, role=Role.KEEPS)])
    peer.look_up(0, [MODULE], timeout=10)
    assert peer.fetch_state(0, MODULE, poison.digest, timeout=10) is None
    sound = ModuleState(42, torch.ones(3000), torch.ones(3000))
    stranger.hold(0, MODULE, sound)
    assert peer.fetch_state(0, MODULE, sound.digest, timeout=10) is not None


def test_a_leader_that_sends_all_to_a_state_that_nobody_has_leads_no_more(
    make_local_swarms: MakeSwarms, monkeypatch: pytest.MonkeyPatch
) -> None:
    swarms = make_local_swarms(3)
    liar = leader_order(0, MODULE, 0, [swarm.peer for swarm in swarms])[0]
    honest = Leader.admit
    refusal = Refuse(reason="the group is ahead", version=1, digest="f" * 64, work=10**9)

    def admit(self: Leader, join: Join, channel: Channel) -> Gathering | Refuse:
        return refusal if self._transport.peer == liar else honest(self, join, channel)

    monkeypatch.setattr(Leader, "admit", admit)
    weights = group(1 / 3, 1 / 3, 1 / 3)
    gather(swarms, {MODULE: weights}, [0, 1, 2])
    victims = [(path, swarm) for path, swarm in enumerate(swarms) if swarm.peer != liar]
    for swarm in swarms:
        swarm.configure_rounds("fp32", 4.0)
    parts = [[part(path, torch.ones(1000), weights)] for path, _ in victims]
    made: list[bool] = []
    while not any(made):
        outcomes = reduce_together([swarm for _, swarm in victims], parts, patience=1.0)
        made.append(all(isinstance(outcome[MODULE], Agreed) for outcome in outcomes))
        assert len(made) <= DEMOTED_AT + 2, "it leads for ever"
    assert len(made) > 1, "nobody was sent away, which proves nothing"
