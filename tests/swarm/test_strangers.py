"""Members that lie, and a leader that dies at the worst moment, over real libp2p: seams instead of signals."""

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from dipaco_swarm.run.address import RunAddress
from dipaco_swarm.swarm.fields import Message
from dipaco_swarm.swarm.framing import PieceHeader
from dipaco_swarm.swarm.interface import Agreed, NotAgreed, Outcome, Swarm
from dipaco_swarm.swarm.libp2p.opening import open_swarm
from dipaco_swarm.swarm.libp2p.settings import NodeSettings
from dipaco_swarm.swarm.networked import NetworkedSwarm
from dipaco_swarm.swarm.round import deciding
from dipaco_swarm.swarm.round.exchange import PieceExchange
from dipaco_swarm.swarm.round.questions import Questions
from dipaco_swarm.swarm.round.reducer import Reducer
from dipaco_swarm.swarm.round.reduction import leader_order
from dipaco_swarm.swarm.round.seats import Seat
from dipaco_swarm.swarm.round.seats import tell as honest
from dipaco_swarm.swarm.timing import Timing
from dipaco_swarm.swarm.transport import Stream
from dipaco_swarm.swarm.wire import Commit, OutcomeIs

from .test_contract import MODULE, gather, group, part, reduce_together

pytestmark = pytest.mark.swarm

PARAMETERS = 300_000
WEIGHTS = group(0.25, 0.25, 0.25, 0.25)

MakeSwarms = Callable[[int], list[NetworkedSwarm]]


def one_round(swarms: Sequence[Swarm], gradients: Sequence[torch.Tensor]) -> list[Outcome]:
    gather(swarms, {MODULE: WEIGHTS}, range(len(swarms)))
    for swarm in swarms:
        swarm.configure_rounds("fp32", 4.0)
    parts = [[part(i, gradient, WEIGHTS)] for i, gradient in enumerate(gradients)]
    return [outcome[MODULE] for outcome in reduce_together(swarms, parts)]


def ones(count: int) -> list[torch.Tensor]:
    return [torch.full((PARAMETERS,), float(i + 1)) for i in range(count)]


@pytest.fixture
def behind_a_router(tmp_path: Path) -> Iterator[Callable[[RunAddress], NetworkedSwarm]]:
    """Open a swarm that nobody can dial: it contributes and reduces nothing."""
    with contextlib.ExitStack() as stack:
        settings = NodeSettings(listen="/ip4/127.0.0.1/tcp/0", reachable=False)
        yield lambda address: stack.enter_context(open_swarm(address, tmp_path / "behind-a-router", settings))


def test_who_is_sent_an_average_that_is_not_the_signed_one_does_not_take_it_and_the_others_go_on(
    make_libp2p_swarms: MakeSwarms, monkeypatch: pytest.MonkeyPatch
) -> None:
    swarms = make_libp2p_swarms(3)
    liar, deceived = swarms[0].peer, swarms[1].peer
    told: list[int] = []

    class Liar:
        """A stream that changes the first number of every average."""

        def __init__(self, stream: Stream) -> None:
            self._stream = stream

        async def send_piece(self, header: PieceHeader, data: memoryview) -> None:
            told.append(header.index)
            await self._stream.send_piece(header, memoryview(b"\x00\x00\x80\x3e" + bytes(data[4:])))

    honest = Reducer._send_averages

    async def send_averages(self: Reducer, stream: Any, outlet: Any) -> None:
        lies = self._roster.members[self._me].peer == liar and stream.peer == deceived
        await honest(self, Liar(stream) if lies else stream, outlet)  # type: ignore[arg-type]

    monkeypatch.setattr(Reducer, "_send_averages", send_averages)
    gradients = ones(3)
    outcomes = one_round(swarms, gradients)
    assert isinstance(outcomes[1], NotAgreed)
    for outcome in (outcomes[0], outcomes[2]):
        assert isinstance(outcome, Agreed)
        assert torch.equal(outcome.mean, torch.full((PARAMETERS,), 2.0))
    assert told, "nobody lied, which proves nothing"
    assert all(torch.equal(gradient, expected) for gradient, expected in zip(gradients, ones(3), strict=True))


def not_a_number(data: memoryview) -> memoryview:
    return memoryview(b"\x00\x00\xc0\x7f" + bytes(data[4:]))


def too_long_a_vector(data: memoryview) -> memoryview:
    return memoryview(bytes(torch.frombuffer(bytearray(data), dtype=torch.float32).mul(10).numpy().tobytes()))


def too_few_bytes(data: memoryview) -> memoryview:
    return data[:-4]


def too_many_bytes(data: memoryview) -> memoryview:
    return memoryview(bytes(data) * 3)


@pytest.mark.parametrize(
    "spoil", [not_a_number, too_long_a_vector, pytest.param(too_few_bytes, marks=pytest.mark.long), too_many_bytes]
)
def test_a_contribution_that_cannot_be_is_left_out_and_its_sender_named(
    make_libp2p_swarms: MakeSwarms,
    behind_a_router: Callable[[RunAddress], NetworkedSwarm],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    spoil: Callable[[memoryview], memoryview],
) -> None:
    swarms = make_libp2p_swarms(2)
    swarms.append(behind_a_router(swarms[0].address))
    culprit = swarms[2].peer
    honest = PieceExchange.contribution_to

    def encode(self: PieceExchange, piece: int) -> memoryview:
        data = honest(self, piece)
        return spoil(data) if self._transport.peer == culprit else data

    monkeypatch.setattr(PieceExchange, "contribution_to", encode)
    started = time.monotonic()
    outcomes = one_round(swarms, ones(3))
    assert time.monotonic() - started < 30
    for outcome in outcomes[:2]:
        assert isinstance(outcome, Agreed), outcome
        assert set(outcome.contributors) == {swarm.peer for swarm in swarms[:2]}
        assert torch.equal(outcome.mean, torch.full((PARAMETERS,), 1.5))
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert any(culprit[-8:] in warning for warning in warnings), warnings


@pytest.mark.parametrize(("told", "leader_asks_for"), [(0, 0.0), (0, 1.0), (1, 0.0)])
def test_a_leader_that_dies_while_it_commits_leaves_one_outcome(
    make_libp2p_swarms: MakeSwarms, monkeypatch: pytest.MonkeyPatch, told: int, leader_asks_for: float
) -> None:
    """... though the machine itself is there, and may be the last to know what the others decide next."""
    swarms = make_libp2p_swarms(4)
    leader = leader_order(0, MODULE, 0, [swarm.peer for swarm in swarms])[0]
    ask_outcome = Questions.outcome

    async def ask(self: Questions, peer: str, round_id: bytes) -> OutcomeIs | None:
        if self._transport.peer == leader:
            await asyncio.sleep(leader_asks_for)
        return await ask_outcome(self, peer, round_id)

    monkeypatch.setattr(Questions, "outcome", ask)
    deaths: list[int] = []

    async def tell(seats: Sequence[Seat], message: Message, timing: Timing) -> None:
        if not isinstance(message, Commit) or deaths:
            await honest(seats, message, timing)
            return
        deaths.append(len(seats))
        listeners = [seat for seat in seats if seat.channel.peer != leader][:told]
        await honest(listeners, message, timing)
        names = {seat.channel.peer for seat in listeners}
        told_rounds = [swarm._rounds for swarm in swarms if swarm.peer in names and swarm._rounds is not None]
        while not all(rounds._verdicts._commits for rounds in told_rounds):
            await asyncio.sleep(0.01)  # until it was taken
        for seat in seats:
            seat.channel.close()

    monkeypatch.setattr(deciding, "tell", tell)
    outcomes = one_round(swarms, ones(4))
    assert deaths == [4]
    means = [outcome.mean for outcome in outcomes if isinstance(outcome, Agreed)]
    assert len(means) == 4, outcomes
    assert all(torch.equal(mean, torch.full((PARAMETERS,), 2.5)) for mean in means)
    assert all(math.isclose(o.spans[0].effective_paths, 4.0) for o in outcomes if isinstance(o, Agreed))
