"""Nodes that know each other by name alone find each other, without libp2p's own search."""

import asyncio
import contextlib
from collections.abc import Sequence
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hivemind.dht.routing import RoutingTable
from hivemind.p2p import PeerID

from dipaco_swarm.errors import RemoteDataError
from dipaco_swarm.run.address import RunAddress
from dipaco_swarm.run.signature import fingerprint_of
from dipaco_swarm.swarm.greetings import AskPlaces, Hello, PlacesAre
from dipaco_swarm.swarm.libp2p.address_book import AddressBook
from dipaco_swarm.swarm.libp2p.bounded_dht import node_id_of
from dipaco_swarm.swarm.libp2p.connections import Place
from dipaco_swarm.swarm.libp2p.node import Node
from dipaco_swarm.swarm.libp2p.opening import open_swarm
from dipaco_swarm.swarm.libp2p.pipe import open_stream
from dipaco_swarm.swarm.libp2p.settings import NodeSettings
from dipaco_swarm.swarm.libp2p.whereabouts import FRESH_SECONDS, MAX_ASKED, MAX_REMEMBERED, MISSED_SECONDS, Whereabouts
from dipaco_swarm.swarm.networked import NetworkedSwarm
from dipaco_swarm.swarm.wire import NotHere
from tests.clocks import HandClock
from tests.hub import until

from .conftest import LOOPBACK
from .test_contract import MODULE, announcement, group
from .test_opening import named

US, OTHER, THIRD = named(1), named(2), named(3)
PLACE = "/ip4/88.1.2.3/tcp/4001"
TO_BE_FOUND_OUT, HIDDEN = (NodeSettings(listen="/ip4/127.0.0.1/tcp/0", reachable=said) for said in (None, False))


def node_of(swarm: NetworkedSwarm) -> Node:
    node = swarm._transport
    assert isinstance(node, Node)
    return node


def pings(swarm: NetworkedSwarm, other: NetworkedSwarm) -> bool:
    """Whether its node of the DHT hears that of another."""
    protocol = node_of(swarm).dht.protocol
    return swarm._portal.run(protocol.call_ping(PeerID.from_base58(other.peer))) is not None


@pytest.mark.swarm
def test_no_daemon_takes_part_in_libp2p_s_own_search(tmp_path: Path, operator_key: Ed25519PrivateKey) -> None:
    address = RunAddress("test", fingerprint_of(operator_key.public_key()), ())
    with contextlib.ExitStack() as stack:
        bootstrap = stack.enter_context(open_swarm(address, tmp_path / "first", LOOPBACK, leads_in=True))
        address = bootstrap.address
        peer, other, hidden = (
            stack.enter_context(open_swarm(address, tmp_path / f"{settings.reachable}", settings))
            for settings in (LOOPBACK, TO_BE_FOUND_OUT, HIDDEN)
        )
        for swarm in (bootstrap, peer, other, hidden):
            assert b"dht" not in Path(f"/proc/{node_of(swarm).daemon.process.pid}/cmdline").read_bytes(), "nor asks"
        for asking, asked in ((peer, bootstrap), (peer, other), (other, peer), (hidden, peer)):
            assert pings(asking, asked)
            for search in ("/ipfs/kad/1.0.0", "/ipfs/lan/kad/1.0.0"):
                with pytest.raises(Exception, match="protocols not supported"):
                    asking._portal.run(open_stream(node_of(asking).daemon.socket, asked.peer, search))


@pytest.mark.swarm
def test_peers_that_never_met_find_each_other_also_when_the_bootstrap_node_is_gone(
    tmp_path: Path, operator_key: Ed25519PrivateKey
) -> None:
    address = RunAddress("test", fingerprint_of(operator_key.public_key()), ())
    with contextlib.ExitStack() as stack, contextlib.ExitStack() as first:
        bootstrap = first.enter_context(open_swarm(address, tmp_path / "bootstrap", LOOPBACK, leads_in=True))
        address = bootstrap.address
        peers = [stack.enter_context(open_swarm(address, tmp_path / f"{n}", LOOPBACK)) for n in range(3)]
        for peer in peers:
            assert all(pings(peer, other) for other in peers if other is not peer)
        acquaintance = peers[0]._portal.run(node_of(peers[0]).addresses())[0]
        first.close()
        AddressBook(tmp_path / "late").remember([acquaintance])
        late = stack.enter_context(open_swarm(address, tmp_path / "late", LOOPBACK))
        assert all(pings(late, other) and pings(other, late) for other in peers)
        late.announce([announcement(late, 0)], [group(1.0)])
        for peer in peers:
            until(lambda p=peer: late.peer in _heard_by(p))  # type: ignore[misc]


def _heard_by(swarm: NetworkedSwarm) -> set[str]:
    swarm.look_up(0, [MODULE], timeout=10)
    return {said.peer for said in swarm.members(0, MODULE)}


# one who knows, without a network -----------------------------------------------------------------------------------


class Others:
    """What other nodes answer, and who was asked about whom."""

    def __init__(self) -> None:
        self.say: dict[tuple[str, str], Sequence[str]] = {}
        self.asked: list[tuple[str, str]] = []
        self.clock = HandClock()
        self.knows = Whereabouts(US, self.clock, self._ask, self._own)

    async def _ask(self, other: str, peer: str) -> Sequence[str]:
        self.asked.append((other, peer))
        return self.say.get((other, peer), ())

    async def _own(self) -> Sequence[str]:
        return (f"{PLACE}/p2p/{US}",)

    def find(self, peer: str) -> tuple[str, ...]:
        return asyncio.run(self.knows.find(peer))

    def is_there(self, peer: str) -> None:
        """It is in the table of our node of the DHT."""
        self.knows.table = RoutingTable(node_id_of(US), bucket_size=20, depth_modulo=5)
        self.knows.table.add_or_update_node(node_id_of(peer), PeerID.from_base58(peer))


class Told:
    """A stream on which a question comes in."""

    peer = address = OTHER

    def __init__(self, question: object) -> None:
        self.question, self.said = question, list[object]()

    async def receive(self) -> object:
        return self.question

    async def send(self, message: object) -> None:
        self.said.append(message)


def answer(others: Others, peer: str) -> tuple[str, ...]:
    stream = Told(AskPlaces(peer=peer))
    asyncio.run(others.knows.answer(stream))  # type: ignore[arg-type]
    (said,) = stream.said
    assert isinstance(said, PlacesAre)
    return said.places


def test_who_has_named_a_peer_is_asked_where_it_is_and_only_what_can_be_dialled_is_believed() -> None:
    others = Others()
    others.knows.note_named(OTHER, [THIRD])
    others.say[OTHER, THIRD] = ("/unix/etc/passwd", PLACE, "/ip4/88.1.2.3/tcp/70000", "", "nowhere")
    assert others.find(THIRD) == (PLACE,)
    assert others.asked == [(OTHER, THIRD)]


def test_the_bootstrap_nodes_and_who_is_near_it_are_asked_too_but_never_itself_or_we() -> None:
    others = Others()
    others.is_there(OTHER)
    others.knows.roots = (named(9), US, THIRD)
    assert others.find(THIRD) == ()
    assert others.asked == [(named(9), THIRD), (OTHER, THIRD)]


def test_who_was_not_found_is_not_looked_for_at_once_again() -> None:
    others = Others()
    others.knows.roots = (OTHER,)
    assert others.find(THIRD) == others.find(THIRD) == ()
    assert len(others.asked) == 1
    others.clock.now += MISSED_SECONDS
    others.say[OTHER, THIRD] = (PLACE,)
    assert others.find(THIRD) == (PLACE,)


def test_however_many_are_named_few_are_asked_and_few_are_remembered() -> None:
    others = Others()
    for number in range(10, 40):
        others.knows.note_named(named(number), [THIRD])
    others.find(THIRD)
    assert [other for other, _ in others.asked] == [named(number) for number in (39, 38, 37, 36)]
    assert len(others.asked) == MAX_ASKED
    others.knows.note_named(OTHER, (f"{number}" for number in range(2 * MAX_REMEMBERED)))
    assert len(others.knows._namers) == MAX_REMEMBERED


def test_a_node_says_where_it_is_and_where_those_are_whom_it_names_as_they_say_themselves() -> None:
    others = Others()
    assert answer(others, US) == (PLACE,)
    others.say[THIRD, THIRD] = (PLACE,)
    assert answer(others, THIRD) == ()  # whom it does not know it asks nothing
    assert not others.asked
    others.is_there(THIRD)
    assert answer(others, THIRD) == answer(others, THIRD) == (PLACE,)
    assert others.asked == [(THIRD, THIRD)]
    others.clock.now += FRESH_SECONDS
    others.say.clear()
    others.knows.told = lambda peer: (f"/ip4/88.1.2.4/tcp/4001/p2p/{peer}",)
    assert answer(others, THIRD) == ("/ip4/88.1.2.4/tcp/4001",)  # what it has announced, where it does not answer


@pytest.mark.parametrize("peer", ["x", "!" * 80, OTHER + "1"])
def test_a_name_that_is_none_is_nowhere(peer: str) -> None:
    others = Others()
    others.is_there(OTHER)
    assert answer(others, peer) == ()


def test_who_asks_something_else_there_breaks_the_protocol() -> None:
    stream = Told(Hello())
    with pytest.raises(RemoteDataError, match="Hello instead of asking where"):
        asyncio.run(Others().knows.answer(stream))  # type: ignore[arg-type]
    assert stream.said == [NotHere()]


def test_a_relay_s_address_is_written_as_the_daemon_reads_it() -> None:
    """Its name as a multihash, and not as a CID: hivemind's own writing of it was refused."""
    assert Place("/ip4/1.2.3.4/tcp/1").to_bytes() == bytes.fromhex("0401020304060001")
    relayed = Place(f"/ip4/1.2.3.4/tcp/1/p2p/{OTHER}/p2p-circuit").to_bytes()
    name = PeerID.from_base58(OTHER).to_bytes()
    assert relayed == bytes.fromhex("0401020304060001a503") + bytes([len(name)]) + name + bytes.fromhex("a202")
