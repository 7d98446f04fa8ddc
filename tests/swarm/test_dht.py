"""Records in the real DHT: where they are is remembered."""

import asyncio
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hivemind.dht.routing import DHTID
from hivemind.p2p import PeerID
from hivemind.proto import dht_pb2
from hivemind.utils.timed_storage import get_dht_time

from dipaco_swarm.swarm import records
from dipaco_swarm.swarm.interface import PeerName
from dipaco_swarm.swarm.libp2p.bounded_dht import _Asked, only_real_neighbours, place_of
from dipaco_swarm.swarm.libp2p.opening import open_swarm
from dipaco_swarm.swarm.libp2p.together import MAX_BYTES, MAX_QUESTIONS, Together
from dipaco_swarm.swarm.networked import NetworkedSwarm

from .conftest import LOOPBACK
from .test_weeks import node_of

pytestmark = pytest.mark.swarm

SOMEBODY, NOBODY = PeerID(b"somebody"), PeerID(b"nobody")

MakeSwarms = Callable[[int], list[NetworkedSwarm]]


def statement(words: bytes) -> bytes:
    return records.encode(records.Statement(statement=words))


class Diary:
    """One swarm's records, and how often it walked to find where they are."""

    def __init__(self, swarm: NetworkedSwarm, monkeypatch: pytest.MonkeyPatch) -> None:
        self.swarm = swarm
        self.walks = 0
        dht = node_of(swarm).dht
        walk = dht.find_nearest_nodes

        async def counted(*args: Any, **options: Any) -> Any:
            self.walks += 1
            return await walk(*args, **options)

        monkeypatch.setattr(dht, "find_nearest_nodes", counted)

    def store(self, payload: bytes) -> bool:
        return self.swarm._portal.run(node_of(self.swarm).records.store("a key", statement(payload), 60.0))

    def read(self, *, thorough: bool = False) -> dict[PeerName, bytes]:
        found = self.swarm._portal.run(node_of(self.swarm).records.read("a key", thorough=thorough))
        return {peer: records.decode(records.Statement, record.payload).statement for peer, record in found.items()}  # type: ignore[union-attr]


def test_the_holders_of_a_key_are_looked_for_once_and_again_when_they_go(
    make_libp2p_swarms: MakeSwarms, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = make_libp2p_swarms(2)
    with open_swarm(first.address, tmp_path / "third", LOOPBACK) as third:
        diaries = [Diary(swarm, monkeypatch) for swarm in (first, second, third)]
        for number in range(4):
            for diary in diaries:
                assert diary.store(b"%d" % number)
            for diary in diaries:
                assert diary.read() == {other.swarm.peer: b"%d" % number for other in diaries}
        known = [diary.walks for diary in diaries]
        assert max(known) <= 2  # the second one when somebody else was met after the first
    for diary in diaries[:2]:
        assert diary.store(b"still here")
    for diary in diaries[:2]:
        expected = {first.peer: b"still here", second.peer: b"still here", third.peer: b"3"}
        assert diary.read() == diary.read(thorough=True) == expected
    assert max(diary.walks for diary in diaries[:2]) <= 3


def test_what_is_asked_in_the_same_moment_goes_in_one_request(
    make_libp2p_swarms: MakeSwarms, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, second = make_libp2p_swarms(2)
    directory, asked = node_of(second).records, list[int]()
    protocol = node_of(second).dht.protocol
    for name in ("call_store", "call_find"):
        call = getattr(protocol, name)

        async def counted(peer: Any, keys: Any, *rest: Any, call: Callable[..., Any] = call) -> Any:
            asked.append(len(keys))
            return await call(peer, keys, *rest)

        monkeypatch.setattr(protocol, name, counted)
    keys = [f"key {number}" for number in range(3)]

    async def write_and_read() -> list[Any]:
        for _ in range(2):  # the first time it is looked for who has them
            asked.clear()
            assert all(await asyncio.gather(*(directory.store(key, statement(key.encode()), 60.0) for key in keys)))
        for _ in range(2):  # how long the answers are is known the second time
            found = await asyncio.gather(*(directory.read(key) for key in keys))
        return found

    found = second._portal.run(write_and_read())
    assert [records.decode(records.Statement, each[second.peer].payload).statement for each in found] == [  # type: ignore[union-attr]
        key.encode() for key in keys
    ]
    assert asked == [3, 1, 1, 1, 3]


def test_who_gives_up_a_question_or_hears_no_answer_leaves_the_others_theirs() -> None:
    sent: list[list[str]] = []

    async def answer(peer: PeerID, questions: Sequence[str]) -> list[str] | None:
        sent.append(list(questions))
        await asyncio.sleep(0)
        return None if peer == NOBODY else [question.upper() for question in questions]

    async def ask() -> list[str | BaseException | None]:
        together = Together[str, str](answer)
        tasks = [asyncio.create_task(together.ask(SOMEBODY, word, 1)) for word in "abc"]
        tasks += [asyncio.create_task(together.ask(SOMEBODY, word, MAX_BYTES)) for word in "de"]
        tasks += [asyncio.create_task(together.ask(NOBODY, word, 1)) for word in "fg"]
        await asyncio.sleep(0)
        tasks[0].cancel()
        return await asyncio.gather(*tasks, return_exceptions=True)

    gave_up, *answers = asyncio.run(ask())
    assert isinstance(gave_up, asyncio.CancelledError)
    assert answers == ["B", "C", "D", "E", None, None]
    assert sorted(sent) == [["a", "b", "c"], ["d"], ["e"], ["f", "g"]]


def test_what_nobody_has_is_nothing(make_libp2p_swarms: MakeSwarms) -> None:
    (alone,) = make_libp2p_swarms(1)
    directory = node_of(alone).records
    assert alone._portal.run(directory.read("nothing")) == {}
    assert alone._portal.run(directory.store("something", statement(b"x"), 60.0))
    assert {peer for peer in alone._portal.run(directory.read("something", thorough=False))} == {alone.peer}


def test_after_a_break_of_our_own_line_the_holders_are_asked_again(
    make_libp2p_swarms: MakeSwarms, monkeypatch: pytest.MonkeyPatch
) -> None:
    diary, other = (Diary(swarm, monkeypatch) for swarm in make_libp2p_swarms(2))
    assert diary.store(b"before")
    assert other.store(b"too")
    directory = node_of(diary.swarm).records
    (near,) = directory._near.values()
    directory._silent = dict.fromkeys(near, directory._clock.monotonic())  # nobody has answered while it was broken
    assert diary.store(b"after")
    assert other.read(thorough=True) == {diary.swarm.peer: b"after", other.swarm.peer: b"too"}


def test_what_one_request_asks_of_a_node_is_bounded(make_libp2p_swarms: MakeSwarms) -> None:
    first, second = make_libp2p_swarms(2)
    host, guest = node_of(first), node_of(second)
    long = DHTID.generate(source="long")
    for number in range(800):
        assert host.dht.protocol.storage.store_subkey(long, f"writer {number}", bytes(2000), get_dht_time() + 60)
    peer, protocol = PeerID.from_base58(first.peer), guest.dht.protocol

    def find(keys: list[DHTID]) -> int | None:
        """Bytes of the answer; None: there was none."""

        async def ask() -> int | None:
            request = dht_pb2.FindRequest(keys=[key.to_bytes() for key in keys], peer=protocol.node_info)
            answer = await protocol.get_stub(peer).rpc_find(request, timeout=20)
            return answer.ByteSize() if len(answer.results) == len(keys) else None

        return second._portal.run(ask())

    def store(keys: int, subkey: bytes) -> int:
        """How many of so many records it said something about."""

        async def ask() -> int:
            name, number = DHTID.generate(source=1).to_bytes(), keys
            request = dht_pb2.StoreRequest(
                keys=[name] * number,
                subkeys=[subkey] * number,
                values=[b"x"] * number,
                expiration_time=[get_dht_time() + 60] * number,
                in_cache=[False] * number,
                peer=protocol.node_info,
            )
            return len((await protocol.get_stub(peer).rpc_store(request, timeout=20)).store_ok)

        return second._portal.run(ask())

    one = find([long])
    assert one is not None
    assert one > 800 * 2000
    assert find([DHTID.generate(source=number) for number in range(MAX_QUESTIONS)]) is not None
    assert find([DHTID.generate(source=number) for number in range(MAX_QUESTIONS + 1)]) is None
    many = find([long] * MAX_QUESTIONS)
    assert many is not None
    assert many < 2 * one
    assert store(MAX_QUESTIONS, b"a name") == MAX_QUESTIONS
    assert store(MAX_QUESTIONS + 1, b"a name") == store(1, protocol.IS_DICTIONARY) == 0


def neighbours(*named: tuple[bytes, bytes]) -> dht_pb2.FindResult:
    """Of each its name and its place, as a node says."""
    names, places = zip(*named, strict=True)
    return dht_pb2.FindResult(type=dht_pb2.NOT_FOUND, nearest_peer_ids=names, nearest_node_ids=places)


def named(number: int) -> bytes:
    return b"\x00\x24\x08\x01\x12\x20" + number.to_bytes(32, "big")


def test_neighbours_that_are_not_where_their_names_are_are_not_taken() -> None:
    found = neighbours((named(1), place_of(named(1))), (named(2), place_of(named(1))), (named(3), b"short"))
    only_real_neighbours(found, 20)
    assert list(found.nearest_peer_ids) == [named(1)]
    assert list(found.nearest_node_ids) == [place_of(named(1))]


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param([(bytes(200_000), bytes(20))], id="long name"),
        pytest.param([(named(number), bytes(20)) for number in range(40_000)], id="many"),
    ],
)
def test_an_answer_that_takes_long_to_look_at_is_none_at_once(answer: list[tuple[bytes, bytes]]) -> None:
    result = neighbours(*answer)
    asked = _Asked(SimpleNamespace(rpc_ping=None, rpc_store=None, rpc_find=lambda request: answered(result)), 20)

    async def answered(result: dht_pb2.FindResult) -> dht_pb2.FindResponse:
        return dht_pb2.FindResponse(results=[result])

    began = time.process_time()
    with pytest.raises(ValueError, match="neighbours"):
        asyncio.run(asked.rpc_find(dht_pb2.FindRequest(keys=[bytes(20)])))
    assert time.process_time() - began < 1.0, "it took a minute, and no thread of the loop's did anything else"


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        pytest.param(7, b"", id="of no type that there is"),
        pytest.param(dht_pb2.FOUND_REGULAR, b"", id="a value by itself"),
        pytest.param(dht_pb2.FOUND_DICTIONARY, b"\xc7\x00\x40", id="a tuple"),
        pytest.param(dht_pb2.FOUND_DICTIONARY, b"\xa1x", id="a name"),
        pytest.param(dht_pb2.FOUND_DICTIONARY, b"\x01\x02", id="two numbers"),
    ],
)
def test_an_answer_that_is_no_dictionary_of_records_is_none(
    make_libp2p_swarms: MakeSwarms, monkeypatch: pytest.MonkeyPatch, kind: int, value: bytes
) -> None:
    (swarm,) = make_libp2p_swarms(1)
    protocol, key = node_of(swarm).dht.protocol, DHTID.generate(source="a key")

    async def rpc_find(request: dht_pb2.FindRequest, **how: Any) -> dht_pb2.FindResponse:
        result = dht_pb2.FindResult(expiration_time=get_dht_time() + 60, value=value)
        result.type = kind
        return dht_pb2.FindResponse(results=[result])

    stub = SimpleNamespace(rpc_ping=None, rpc_store=None, rpc_find=rpc_find)
    monkeypatch.setattr(protocol, "get_stub", lambda peer: _Asked(stub, 20))
    assert swarm._portal.run(protocol.call_find(PeerID(named(1)), [key])) in (None, {key: (None, {})})


def test_one_record_that_is_none_costs_nobody_else_his(make_libp2p_swarms: MakeSwarms) -> None:
    """hivemind refuses the whole key: one stranger's record made a group, or a topic, unreadable for everybody."""
    (swarm,) = make_libp2p_swarms(1)
    node = node_of(swarm)
    assert swarm._portal.run(node.records.store("a key", statement(b"x"), 60.0))
    key = DHTID.generate(source="a key")
    there = node.dht.protocol.storage.get(key).value
    for writer, expiration in (("a stranger", 60.0), (named(7).hex(), 150.0)):
        there.store(writer, b"no record", get_dht_time() + expiration)
    sent = node.dht.protocol.serializer.loads(node.dht.protocol.serializer.dumps(there))
    assert len(sent) == 3
    assert node.dht.protocol._validate_dictionary(key.to_bytes(), sent)
    assert [name for name, _ in sent.items()] == [swarm.peer]


def test_a_key_is_as_long_as_a_key(make_libp2p_swarms: MakeSwarms) -> None:
    first, second = make_libp2p_swarms(2)
    protocol = node_of(second).dht.protocol

    async def store(key: bytes) -> int:
        request = dht_pb2.StoreRequest(
            keys=[key],
            subkeys=[b"a name"],
            values=[b"x"],
            expiration_time=[get_dht_time() + 60],
            in_cache=[False],
            peer=protocol.node_info,
        )
        stub = protocol.get_stub(PeerID.from_base58(first.peer))
        return len((await stub.rpc_store(request, timeout=20)).store_ok)

    key = DHTID.generate(source="a key").to_bytes()
    assert second._portal.run(store(key)) == 1
    assert second._portal.run(store(b"\0" + key)) == second._portal.run(store(key[1:])) == 0


def test_a_door_that_names_a_place_that_is_none_has_not_answered(
    make_libp2p_swarms: MakeSwarms, monkeypatch: pytest.MonkeyPatch
) -> None:
    (swarm,) = make_libp2p_swarms(1)
    protocol = node_of(swarm).dht.protocol

    async def rpc_ping(request: dht_pb2.PingRequest, **how: Any) -> dht_pb2.PingResponse:
        return dht_pb2.PingResponse(peer=dht_pb2.NodeInfo(node_id=bytes(21)), available=True)

    stub = SimpleNamespace(rpc_ping=rpc_ping, rpc_store=None, rpc_find=None)
    monkeypatch.setattr(protocol, "get_stub", lambda peer: _Asked(stub, 20))
    assert swarm._portal.run(protocol.call_ping(PeerID(named(1)))) is None


def test_who_asks_for_many_keys_at_once_is_answered_for_each(make_libp2p_swarms: MakeSwarms) -> None:
    """More questions of one peer than a node hears at once are closed unheard, and whoever does so counts as gone."""
    first, second = make_libp2p_swarms(2)
    keys = [f"key {number}" for number in range(40)]

    async def store() -> list[bool]:
        return await asyncio.gather(*(node_of(first).records.store(key, statement(b"x"), 60.0) for key in keys))

    async def read() -> list[int]:
        return [len(found) for found in await asyncio.gather(*map(node_of(second).records.read, keys))]

    assert all(first._portal.run(store()))
    assert second._portal.run(read()) == [1] * len(keys)
    for node in map(node_of, (first, second)):
        assert not node.records._silent


def test_a_name_is_one_node_and_those_without_a_place_are_forgotten(make_libp2p_swarms: MakeSwarms) -> None:
    (swarm,) = make_libp2p_swarms(1)
    protocol = node_of(swarm).dht.protocol
    table, stranger = protocol.routing_table, PeerID(named(1))

    async def meet() -> None:
        for number in range(50):
            await protocol.update_routing_table(DHTID.generate(source=number), stranger)
        assert stranger not in table
        await protocol.update_routing_table(DHTID.from_bytes(place_of(named(1))), stranger)
        assert table[stranger].to_bytes() == place_of(named(1))
        protocol.call_ping = answers
        for number in range(2, 2000):
            await protocol.update_routing_table(DHTID.from_bytes(place_of(named(number))), PeerID(named(number)))

    async def answers(peer: PeerID) -> None:
        """Who is asked whether it is still there is there."""

    swarm._portal.run(meet())
    assert all(len(bucket.replacement_nodes) <= bucket.size for bucket in table.buckets)
    assert len(table.uid_to_peer_id) <= sum(2 * bucket.size for bucket in table.buckets)
