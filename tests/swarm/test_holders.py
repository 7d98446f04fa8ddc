"""Who is asked for a state, and who loses its place: names cost nothing, and a slow holder may be slow on purpose."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from random import Random

import pytest
import torch

from dipaco_swarm.algorithm.paths import ModuleId, PathIndex
from dipaco_swarm.algorithm.state import PIECE_BYTES, ModuleState
from dipaco_swarm.swarm.circle import Circle
from dipaco_swarm.swarm.interface import Announcement, Role
from dipaco_swarm.swarm.local import LocalNetwork, LocalTransport
from dipaco_swarm.swarm.networked import NetworkedSwarm
from dipaco_swarm.swarm.states import download
from dipaco_swarm.swarm.states.blobs import MemoryBlobs
from dipaco_swarm.swarm.states.download import STREAMS
from dipaco_swarm.swarm.states.store import Store, store_protocol
from dipaco_swarm.swarm.timing import Timing
from dipaco_swarm.swarm.transport import Stream
from dipaco_swarm.swarm.wire import AskPiece, AskState, StateIs
from dipaco_swarm.testing.virtual_time import Inline, VirtualClock, VirtualLoop
from tests.hub import BOOTSTRAP, Hub, hear

MODULE = ModuleId(0, 0)
PIECES = 12
QUICK = Timing(pulse=0.02)


def says(swarm: NetworkedSwarm, state: ModuleState, role: Role) -> None:
    path = PathIndex(0) if role is Role.TRAINS else None
    swarm.announce([Announcement(swarm.peer, 0, MODULE, path, state.version, state.digest, role=role)])


def test_nodes_and_known_holders_are_asked_before_strangers_that_say_they_keep_it() -> None:
    state = ModuleState.seed(torch.ones(4))
    circle = Circle()
    circle.meet(["us", "known"])
    with Hub() as hub, hub.open("us", circle=circle) as us:
        strangers = [hub.swarm(f"stranger {i}") for i in range(2 * STREAMS)]
        node, known = hub.swarm(BOOTSTRAP), hub.swarm("known")
        for swarm, role in [(known, Role.TRAINS), *((each, Role.KEEPS) for each in (node, *strangers))]:
            says(swarm, state, role)
        hear([us, node, known, *strangers], 0, [MODULE])
        assert us._fetches.holders(0, MODULE, state.digest)[:2] == [BOOTSTRAP, "known"]


def test_the_operators_node_is_asked_first_by_who_knows_nobody() -> None:
    state = ModuleState.seed(torch.ones(4))
    with Hub() as hub, hub.open("us") as us:
        others = [hub.swarm(name) for name in (*map(str, range(2 * STREAMS)), BOOTSTRAP)]
        for swarm in others:
            says(swarm, state, Role.KEEPS)
        hear([us, *others], 0, [MODULE])
        assert us._fetches.holders(0, MODULE, state.digest)[0] == BOOTSTRAP


def crawling(state: ModuleState) -> Callable[[Stream], Awaitable[None]]:
    """A holder that says the truth and sends as little as counts."""

    async def crawl(stream: Stream) -> None:
        ask = await stream.receive()
        assert isinstance(ask, AskState)
        said = state.outline
        await stream.send(StateIs(version=said.version, parameters=said.parameters, work=said.work, hashes=said.hashes))
        asked = await stream.receive()
        assert isinstance(asked, AskPiece)
        piece = state.piece(asked.piece)
        for at in range(0, len(piece), 1000):
            await stream.send_raw(piece[at : at + 1000])
            await asyncio.sleep(0.05)

    return crawl


@pytest.mark.parametrize("others", [0, 1])
def test_crawling_holders_lose_their_places_to_who_waits(monkeypatch: pytest.MonkeyPatch, others: int) -> None:
    """Four names, each sending a little, hold all places, or all but one, while there is more than enough to ask for.

    `others`: honest holders that have a place at first.
    """
    monkeypatch.setattr(download, "SLOW_LINE", 8 * PIECE_BYTES)
    parameters = PIECES // 2 * PIECE_BYTES // 4
    state = ModuleState(1, torch.arange(parameters, dtype=torch.float32), torch.ones(parameters))
    network = LocalNetwork(timing=QUICK)

    async def story() -> ModuleState | None:
        transports = {}

        async def store(name: str) -> Store:
            transports[name] = LocalTransport(network, name)
            transports[name].open()
            made = Store(transports[name], "run", MemoryBlobs())
            await made.serve()
            return made

        for name in ("honest 0", "honest 1"):
            (await store(name)).hold(0, MODULE, state)
        us, crawlers = await store("us"), [f"crawler {i}" for i in range(STREAMS - others)]
        for name in crawlers:
            await store(name)
            await transports[name].serve(store_protocol("run"), crawling(state))
        holders = [*["honest 0"][:others], *crawlers, "honest 1"]
        try:
            async with asyncio.timeout(20):
                return await us.fetch_state(holders, 0, MODULE, state.digest)
        finally:
            for transport in transports.values():
                await transport.close()

    began = time.monotonic()
    fetched = asyncio.run(story())
    assert fetched is not None
    assert torch.equal(fetched.params, state.params)
    assert time.monotonic() - began < 15


NEWCOMER = Timing()


@pytest.mark.parametrize("seed", range(3))
def test_fifty_names_that_send_as_little_as_counts_hold_up_a_newcomer_for_minutes(seed: int) -> None:
    """Each name that was slow doubled the patience with the next one: three honest holders were not reached in an hour.

    A newcomer knows nobody, so all stand in a drawn order.
    """
    parameters = PIECES // 4 * PIECE_BYTES // 4
    state = ModuleState(1, torch.arange(parameters, dtype=torch.float32), torch.ones(parameters))
    loop = VirtualLoop()  # type: ignore[abstract]  # no sockets, no processes
    chance = Random(seed)
    network = LocalNetwork(timing=NEWCOMER, clock=VirtualClock(loop), random=chance)

    async def crawl(stream: Stream) -> None:
        await stream.receive()
        said = state.outline
        await stream.send(StateIs(version=said.version, parameters=said.parameters, work=said.work, hashes=said.hashes))
        while True:
            asked = await stream.receive()
            assert isinstance(asked, AskPiece)
            piece = state.piece(asked.piece)
            for at in range(0, len(piece), 2500):
                await stream.send_raw(piece[at : at + 2500])
                await asyncio.sleep(1.0)

    async def store(name: str) -> Store:
        transport = LocalTransport(network, name, executor=Inline)
        transport.open()
        made = Store(transport, "run", MemoryBlobs())
        await made.serve()
        return made

    async def story() -> None:
        honest, crawlers = [f"honest {i}" for i in range(3)], [f"name {i}" for i in range(50)]
        for name in honest:
            (await store(name)).hold(0, MODULE, state)
        for name in crawlers:
            await store(name)
            await network.transports[name].serve(store_protocol("run"), crawl)
        us, holders = await store("us"), [*honest, *crawlers]
        chance.shuffle(holders)
        async with asyncio.timeout(300.0):
            assert await us.fetch_state(holders, 0, MODULE, state.digest) is not None
        asked_last = us._slow.last([*crawlers, *honest])[-1]  # the next time
        assert asked_last in crawlers

    try:
        loop.run_until_complete(story())
    finally:
        loop.end()


def test_a_file_is_asked_of_strangers_in_a_drawn_order_after_whom_we_know() -> None:
    """A name that comes first in the order of names is soon made up."""
    circle = Circle()
    circle.meet(["us", "known"])
    strangers = [f"stranger {i:02d}" for i in range(20)]
    with Hub() as hub, hub.open("us", circle=circle) as us:
        asked = us._fetches.senders([*strangers, "known"], "first")
    assert asked[:3] == ["first", BOOTSTRAP, "known"]
    assert asked[3:] != strangers
    assert sorted(asked[3:]) == strangers
