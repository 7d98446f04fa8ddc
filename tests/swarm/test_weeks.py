"""What must not add up over weeks of rounds, heartbeats and newcomers, over real libp2p."""

import asyncio
import contextlib
import gc
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hivemind.dht.routing import DHTID
from hivemind.p2p import PeerID

from dipaco_swarm.swarm.libp2p.node import Node
from dipaco_swarm.swarm.libp2p.opening import open_swarm
from dipaco_swarm.swarm.networked import NetworkedSwarm
from dipaco_swarm.swarm.round.exchange import PieceExchange
from tests.hub import until

from .conftest import LOOPBACK
from .test_contract import MODULE, agreed, gather, group, part, reduce_together

pytestmark = pytest.mark.swarm

MakeSwarms = Callable[[int], list[NetworkedSwarm]]


@pytest.fixture
def no_collector() -> Iterator[None]:
    """Only what nobody refers to any more is freed, as between two passes of the collector, which are hours apart."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize("codec", ["fp32", "int8"])
def test_a_round_that_is_over_holds_no_vectors(
    make_libp2p_swarms: MakeSwarms, monkeypatch: pytest.MonkeyPatch, codec: str
) -> None:
    made: list[weakref.ref[PieceExchange]] = []
    begin = PieceExchange.__init__

    def noted(self: PieceExchange, *arguments: Any) -> None:
        begin(self, *arguments)
        made.append(weakref.ref(self))

    monkeypatch.setattr(PieceExchange, "__init__", noted)
    swarms = make_libp2p_swarms(3)
    weights = group(1 / 3, 1 / 3, 1 / 3)
    gather(swarms, {MODULE: weights}, range(3))
    for swarm in swarms:
        swarm.configure_rounds(codec, 4.0)
    for _ in range(2):
        for outcome in reduce_together(swarms, [[part(i, torch.ones(300_000), weights)] for i in range(3)]):
            agreed(outcome[MODULE])
    assert len(made) == 6
    until(lambda: not any(exchange() for exchange in made))


def test_a_peer_of_many_lives_is_one_place_in_the_tables_of_the_others(
    make_libp2p_swarms: MakeSwarms, tmp_path: Path
) -> None:
    (first,) = make_libp2p_swarms(1)
    table = node_of(first).dht.protocol.routing_table
    for _ in range(3):
        with open_swarm(first.address, tmp_path / "comes and goes", LOOPBACK) as peer:
            until(lambda name=peer.peer: name in {str(known) for known in table.peer_id_to_uid})  # type: ignore[misc]
    assert len(table.uid_to_peer_id) == 1


def test_requests_that_nobody_waits_for_are_let_go(make_libp2p_swarms: MakeSwarms) -> None:
    answering, asking = make_libp2p_swarms(2)
    kept = node_of(answering).p2p._client.control._handler_tasks

    async def slow(data: bytes, peer: object) -> bytes:
        await asyncio.sleep(60)
        return data

    async def ask() -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.2):
                await node_of(asking).p2p._client.call_unary_handler(node_of(answering).p2p.peer_id, "slow", b"?")

    async def ask_often() -> None:
        await asyncio.gather(*(ask() for _ in range(20)))

    answering._portal.run(node_of(answering).p2p._client.add_unary_handler("slow", slow))
    asking._portal.run(ask_often())
    until(lambda: sum(task.done() for task in list(kept.values())) == 20)
    let_go(answering)
    assert not any(task.done() for task in list(kept.values()))


def test_peers_and_keys_that_are_no_more_are_let_go(make_libp2p_swarms: MakeSwarms) -> None:
    (swarm,) = make_libp2p_swarms(1)
    dht = node_of(swarm).dht
    table, blacklist = dht.protocol.routing_table, dht.blacklist
    blacklist.base_time = 0.001
    far_away = (dht.node_id ^ 1 << 159) >> 10 << 10  # they are all of one bucket

    async def a_long_time() -> None:
        for number in range(300):
            await dht.get(f"key {number}")
        for number in range(300):
            passer_by = PeerID(f"peer number {number}".encode())
            table.add_or_update_node(DHTID(far_away + number), passer_by)
            blacklist.register_failure(passer_by)
        await asyncio.sleep(2 * blacklist.base_time)

    swarm._portal.run(a_long_time())
    assert min(len(table.uid_to_peer_id), len(blacklist.ban_counter), len(dht.pending_get_requests)) >= 300
    let_go(swarm)
    assert len(table.uid_to_peer_id) <= 2 * 20
    assert len(blacklist.ban_counter) < 30
    assert len(dht.pending_get_requests) < 30


def let_go(swarm: NetworkedSwarm) -> None:
    swarm._portal.run(node_of(swarm).tidy())


def node_of(swarm: NetworkedSwarm) -> Node:
    assert isinstance(swarm._transport, Node)
    return swarm._transport
