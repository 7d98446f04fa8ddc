"""Questions of the DHT come over streams of ours: who sends them by halves, or takes no answer, holds nothing of us."""

import asyncio
from collections.abc import Callable
from uuid import uuid4

import pytest
from hivemind.dht.routing import DHTID
from hivemind.p2p import PeerID
from hivemind.proto import dht_pb2, p2pd_pb2
from hivemind.utils.timed_storage import get_dht_time

from dipaco_swarm.swarm.libp2p import incoming, questions
from dipaco_swarm.swarm.libp2p.pipe import Pipe, open_stream
from dipaco_swarm.swarm.libp2p.protobuf import framed
from dipaco_swarm.swarm.networked import NetworkedSwarm

from .test_weeks import node_of

pytestmark = pytest.mark.swarm

MakeSwarms = Callable[[int], list[NetworkedSwarm]]
FIND = "DHTProtocol.rpc_find"


def question(data: bytes) -> bytes:
    call = p2pd_pb2.CallUnaryRequest(peer=b"anybody", proto=FIND, data=data)
    return framed(p2pd_pb2.PersistentConnectionRequest(callId=uuid4().bytes, callUnary=call))


class Asker:
    """One node that asks another one, by bytes."""

    def __init__(self, swarms: list[NetworkedSwarm]) -> None:
        self.asked, self.us = swarms

    def run(self, *sent: bytes, seconds: float = 20.0) -> list[bytes]:
        """The first byte of what comes on streams on which this is sent, until they end; b"" where nothing does."""

        async def one(data: bytes) -> Pipe:
            pipe = await open_stream(node_of(self.us).daemon.socket, self.asked.peer, FIND)
            await pipe.write(data)
            return pipe

        async def first(pipe: Pipe) -> bytes:
            try:
                return await pipe.read_exactly(1)
            except EOFError:
                return b""
            finally:
                pipe.close()

        async def all_of() -> list[bytes]:
            async with asyncio.timeout(seconds):
                pipes = [await one(data) for data in sent]
                return await asyncio.gather(*map(first, pipes))

        return self.us._portal.run(all_of())

    @property
    def is_answered(self) -> bool:
        find = dht_pb2.FindRequest(keys=[DHTID.generate(source="a key").to_bytes()])
        return self.run(question(find.SerializeToString())) != [b""]


def keep_a_long_answer(asker: Asker) -> bytes:
    """3 MB stand under a key of who is asked; the question for it."""
    key, host = DHTID.generate(source="long"), node_of(asker.asked)
    for number in range(1500):
        assert host.dht.protocol.storage.store_subkey(key, f"writer {number}", bytes(2000), get_dht_time() + 60)
    return question(dht_pb2.FindRequest(keys=[key.to_bytes()]).SerializeToString())


def test_a_question_is_answered_as_the_daemon_would(make_libp2p_swarms: MakeSwarms) -> None:
    asker = Asker(make_libp2p_swarms(2))
    assert asker.is_answered
    protocol = node_of(asker.us).dht.protocol
    found = asker.us._portal.run(protocol.call_ping(PeerID.from_base58(asker.asked.peer)))
    assert found == node_of(asker.asked).dht.node_id


@pytest.mark.parametrize(
    "sent",
    [
        pytest.param(b"\xff\xff\xff\x01" + b"x", id="4 MiB announced"),
        pytest.param(b"\xff" * 10, id="a length without end"),
        pytest.param(b"\x05\xff\xff\xff\xff\xff", id="no message"),
        pytest.param(question(b"\xff\xff"), id="no question"),
        pytest.param(question(dht_pb2.FindRequest(keys=[b"short"]).SerializeToString())[:-1], id="one byte less"),
        pytest.param(b"", id="nothing"),
    ],
)
def test_what_is_no_question_is_let_go(
    make_libp2p_swarms: MakeSwarms, monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    """The network daemon held 2 MiB for each stream on which a question was announced, for as long as it was open."""
    monkeypatch.setattr(questions, "QUESTION_SECONDS", 0.5)
    asker = Asker(make_libp2p_swarms(2))
    assert asker.run(sent) == [b""]
    assert asker.is_answered


def test_odd_places_and_keys_in_a_question_are_nothing_to_us(make_libp2p_swarms: MakeSwarms) -> None:
    asker = Asker(make_libp2p_swarms(2))
    odd = dht_pb2.NodeInfo(node_id=bytes(21))
    for find in (dht_pb2.FindRequest(peer=odd), dht_pb2.FindRequest(keys=[b"\xff" * 30], peer=odd)):
        assert asker.run(question(find.SerializeToString())) != [b""]
    assert node_of(asker.asked).border.bugs == 0


def test_who_takes_no_answers_has_few_of_them(make_libp2p_swarms: MakeSwarms, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(questions, "ANSWER_SECONDS", 1.0)
    asker = Asker(make_libp2p_swarms(2))
    large = keep_a_long_answer(asker)

    async def ask_and_hold() -> int:
        """How many of 40 streams are still answered after none was read from."""
        pipes = [await open_stream(node_of(asker.us).daemon.socket, asker.asked.peer, FIND) for _ in range(40)]
        for pipe in pipes:
            await pipe.write(large)
        began = 0
        for pipe in pipes:
            try:
                await pipe.read_exactly(1)
                began += 1
            except EOFError:
                pass
        for pipe in pipes:
            pipe.close()
        return began

    assert 1 <= asker.us._portal.run(ask_and_hold()) <= incoming.MAX_QUESTIONS_A_PEER
    assert asker.is_answered


def test_who_takes_an_answer_slowly_makes_room_for_who_comes_after_it(
    make_libp2p_swarms: MakeSwarms, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(questions, "MAX_BYTES_UNDER_WAY", 1 << 22)
    asker = Asker(make_libp2p_swarms(2))
    whole = keep_a_long_answer(asker)

    async def ask_and_hold() -> list[bool]:
        """Of four streams, each asked on after the one before was answered in part: which come to their end."""
        pipes = []
        for _ in range(4):
            pipes.append(await open_stream(node_of(asker.us).daemon.socket, asker.asked.peer, FIND))
            await pipes[-1].write(whole)
            await pipes[-1].read_exactly(1)
        return [await comes_whole(pipe) for pipe in pipes]

    async def comes_whole(pipe: Pipe) -> bool:
        try:
            await pipe.read_exactly(1500 * 2000)
        except EOFError:
            return False
        finally:
            pipe.close()
        return True

    assert asker.us._portal.run(ask_and_hold()) == [False, False, False, True]
    assert asker.is_answered
