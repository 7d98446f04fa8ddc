"""Connections of the network daemon: whom it parts from where too many have come."""

import asyncio
import contextlib
from pathlib import Path

import pytest

from dipaco_swarm.swarm.addresses import site_of
from dipaco_swarm.swarm.libp2p import daemon
from dipaco_swarm.swarm.libp2p.connections import _written
from dipaco_swarm.swarm.libp2p.identity import load_identity
from dipaco_swarm.swarm.libp2p.node import Node
from dipaco_swarm.swarm.libp2p.reachability import ports_of
from dipaco_swarm.swarm.libp2p.starting import open_node
from dipaco_swarm.swarm.transport import Stream
from dipaco_swarm.swarm.wire import NotHere

from .conftest import LOOPBACK
from .crowd import crowd

MOST = 24


@pytest.mark.swarm
def test_a_crowd_of_strangers_cuts_nobody_off_who_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Seen before: 900 names of one program ended all streams of all others at once, every two minutes."""
    monkeypatch.setattr(daemon, "CONNECTIONS_OF_A_BOOTSTRAP_NODE", MOST)

    async def answer(stream: Stream) -> None:
        while True:
            await stream.send(await stream.receive())

    async def talks(stream: Stream) -> bool:
        try:
            await stream.send(NotHere())
            return isinstance(await stream.receive(), NotHere)
        except (ConnectionError, EOFError):
            return False

    async def check() -> None:
        async with contextlib.AsyncExitStack() as opened:

            async def node(name: str, *doors: str) -> Node:
                return await opened.enter_async_context(open_node(load_identity(tmp_path / name), doors, LOOPBACK))

            first = await node("first")
            places = await first.addresses()
            await first.serve("test/1/ask", answer)
            others = [await node(name, *places) for name in ("known", "also known", "strange")]
            strange = others[-1]
            first.border.is_strange = lambda peer: peer not in {other.peer for other in others[:-1]}
            streams = [await opened.enter_async_context(other.dial(first.peer, "test/1/ask")) for other in others]
            await first.tidy()
            assert all([await talks(stream) for stream in streams])
            async with crowd(ports_of(places)[0], 3 * MOST, tmp_path):
                async with asyncio.timeout(60):  # the daemon looks now and then
                    while len(await first.p2p.list_peers()) > MOST:
                        await asyncio.sleep(0.2)
                assert all([await talks(stream) for stream in streams[:-1]])
            assert strange.daemon.most == daemon.CONNECTIONS

    asyncio.run(check())


@pytest.mark.parametrize(
    ("address", "site"),
    [
        ("040b000102060fa1", "11.0.1.0/24"),
        ("2920010db8000100000000000000000009060fa1", "2001:db8:1::/48"),
        ("040b000102060fa1a50326" + "00" * 38 + "a202", "behind 11.0.1.0/24"),
        ("040b0001", ""),
        ("", ""),
        ("3603616263060fa1", ""),
    ],
)
def test_of_a_connection_its_site_is_read(address: str, site: str) -> None:
    assert site_of(_written(bytes.fromhex(address))) == site
