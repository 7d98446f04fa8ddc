"""Blobs over slow and broken lines, and from liars: what has arrived once is never sent again."""

import asyncio
import hashlib
import time
from collections.abc import Coroutine
from random import Random
from typing import Any

import pytest

from dipaco_swarm.swarm.local import LocalNetwork, LocalTransport
from dipaco_swarm.swarm.local_stream import END, LocalStream
from dipaco_swarm.swarm.states import blob_download
from dipaco_swarm.swarm.states.blob_download import CHUNK, MAX_UNFINISHED
from dipaco_swarm.swarm.states.blobs import MemoryBlobs
from dipaco_swarm.swarm.states.store import Store
from dipaco_swarm.swarm.timing import Timing
from dipaco_swarm.swarm.transport import Stream
from dipaco_swarm.swarm.wire import AskBlob, BlobFollows
from dipaco_swarm.testing.virtual_time import Inline, VirtualClock, VirtualLoop

CHUNKS = 40
BLOB = Random(1).randbytes(CHUNKS * CHUNK)
DIGEST = hashlib.sha256(BLOB).hexdigest()
PROTOCOL = "dipaco/1/run/store"


class Line:
    """A link on which each chunk takes a while, and which stands still after some."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.left = 1_000_000
        """Chunks that it still takes."""
        self.carried = 0

    async def dial(self, caller: str, peer: str) -> None:
        """Whoever is there can be dialled."""

    async def carry(self, stream: LocalStream, item: object, size: int) -> None:
        if size and not self.left:
            await asyncio.Event().wait()
        if size:
            self.left, self.carried = self.left - 1, self.carried + 1
            await asyncio.sleep(self.seconds)
        stream.other.arrive(item, size)

    def end(self, stream: LocalStream) -> None:
        stream.other.arrive(END, 0)


class World:
    """Peers of one process, on one line."""

    def __init__(self) -> None:
        self.line = Line()
        self.network = LocalNetwork(self.line)
        self.transports: list[LocalTransport] = []
        self.asked: list[tuple[str, int]] = []
        """Which liar was asked for a blob, and from which byte on."""

    def transport(self, name: str) -> LocalTransport:
        transport = LocalTransport(self.network, name)
        transport.open()
        self.transports.append(transport)
        return transport

    async def store(self, name: str, *blobs: bytes) -> Store:
        store = Store(self.transport(name), "run", MemoryBlobs())
        for blob in blobs:
            store.blobs.put(blob)
        await store.serve()
        return store

    async def liar(self, name: str, data: bytes, *, says: int, send: int) -> None:
        """A peer that says that the blob has `says` bytes, sends `send` of `data`, and goes away."""

        async def serve(stream: Stream) -> None:
            ask = await stream.receive()
            assert isinstance(ask, AskBlob)
            self.asked.append((name, ask.offset))
            await stream.send(BlobFollows(size=says))
            await stream.send_raw(memoryview(data[ask.offset : ask.offset + send]))

        await self.transport(name).serve(PROTOCOL, serve)

    def run(self, story: Coroutine[Any, Any, None]) -> None:
        async def whole() -> None:
            try:
                await story
            finally:
                for transport in self.transports:
                    await transport.close()

        asyncio.run(whole())


@pytest.fixture
def world() -> World:
    return World()


def received(store: Store) -> int:
    return store._transport.meter.traffic().received


def test_a_blob_that_needs_several_calls_arrives_without_anything_sent_twice(world: World) -> None:
    async def story() -> None:
        await world.store("holder", BLOB)
        us = await world.store("us")
        calls = 0
        data = None
        while data is None:
            calls += 1
            world.line.left = 7  # and then it stands still
            data = await us.fetch_blob(["holder"], DIGEST, patience=0.5)
        assert data == BLOB
        assert us.blobs.has(DIGEST)
        assert calls == 6  # 40 chunks, seven a call
        assert (received(us), world.line.carried) == (len(BLOB), CHUNKS)

    world.run(story())


def test_a_slow_line_has_the_time_that_it_needs(world: World) -> None:
    async def story() -> None:
        world.line.seconds = 0.06
        await world.store("holder", BLOB)
        us = await world.store("us")
        started = time.monotonic()
        assert await us.fetch_blob(["holder"], DIGEST, patience=1.0) == BLOB
        assert time.monotonic() - started > 2.0

    world.run(story())


def test_who_is_interrupted_goes_on_where_it_was(world: World) -> None:
    """A deadline for all of it, as for the blob of a stranger; or Ctrl+C."""

    async def story() -> None:
        world.line.left = 15
        await world.store("holder", BLOB)
        us = await world.store("us")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await us.fetch_blob(["holder"], DIGEST)
        world.line.left = CHUNKS - 15
        assert await us.fetch_blob(["holder"], DIGEST) == BLOB
        assert received(us) == len(BLOB)

    world.run(story())


def test_the_next_peer_goes_on_where_the_one_that_left_was(world: World) -> None:
    async def story() -> None:
        await world.liar("leaver", BLOB, says=len(BLOB), send=15 * CHUNK)
        await world.store("holder", BLOB)
        us = await world.store("us")
        assert await us.fetch_blob(["nobody", "leaver", "holder"], DIGEST) == BLOB
        assert received(us) == len(BLOB)

    world.run(story())


def test_a_liar_costs_one_more_download_and_is_not_asked_again(world: World) -> None:
    """It sends the beginning of something else; the honest peer after it is not blamed."""

    async def story() -> None:
        await world.liar("liar", bytes(len(BLOB)), says=len(BLOB), send=15 * CHUNK)
        await world.store("holder", BLOB)
        us = await world.store("us")
        assert await us.fetch_blob(["liar", "holder"], DIGEST) == BLOB
        assert received(us) == 2 * len(BLOB)

        await world.liar("whole", bytes(len(BLOB)), says=len(BLOB), send=len(BLOB))
        await world.liar("short", b"", says=0, send=0)
        other = await world.store("other")
        assert await other.fetch_blob(["whole", "short", "whole"], DIGEST) is None
        assert world.asked == [("liar", 0), ("whole", 0), ("short", 0)]
        assert await other.fetch_blob(["whole", "short", "holder"], DIGEST) == BLOB

    world.run(story())


def test_a_blob_that_is_longer_than_it_may_be_is_not_taken(world: World) -> None:
    async def story() -> None:
        await world.store("holder", BLOB)
        us = await world.store("us")
        assert await us.fetch_blob(["holder"], DIGEST, limit=len(BLOB) - 1) is None
        assert received(us) == 0

    world.run(story())


def test_a_stranger_that_is_slow_on_purpose_holds_up_nobody_for_long(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a chunk now and then, of a blob of any length, it kept everybody else from being asked for months."""
    monkeypatch.setattr(blob_download, "TURN_SECONDS", 0.2)
    chunks = 0

    async def drip(stream: Stream) -> None:
        nonlocal chunks
        assert isinstance(await stream.receive(), AskBlob)
        await stream.send(BlobFollows(size=1 << 32))
        while True:
            await asyncio.sleep(0.15)
            await stream.send_raw(memoryview(bytes(CHUNK)))
            chunks += 1

    async def story() -> None:
        monkeypatch.setattr(blob_download, "SLOW_LINE", 1e9)
        for name in ("one", "two"):
            await world.transport(name).serve(PROTOCOL, drip)
        await world.store("holder", BLOB)
        us = await world.store("us")
        async with asyncio.timeout(20):
            assert await us.fetch_blob(["one", "two", "holder"], DIGEST, patience=1.0) == BLOB
        assert chunks < 6

    world.run(story())


def test_fifty_names_that_send_next_to_nothing_hold_up_nobody_for_long() -> None:
    """They took turns, one after the other, until the time for all was over; and the next try began with them again."""
    loop = VirtualLoop()  # type: ignore[abstract]  # no sockets, no processes
    network = LocalNetwork(timing=Timing(), clock=VirtualClock(loop), random=Random(1))
    names, blob = [f"name {i}" for i in range(50)], BLOB[: 2 * CHUNK]
    digest = hashlib.sha256(blob).hexdigest()

    def open_(name: str) -> LocalTransport:
        transport = LocalTransport(network, name, executor=Inline)
        transport.open()
        return transport

    async def crawl(stream: Stream) -> None:
        await stream.receive()
        await stream.send(BlobFollows(size=len(blob)))
        while True:
            await stream.send_raw(memoryview(bytes(10)))
            await asyncio.sleep(1.0)

    async def story() -> None:
        for name in names:
            await open_(name).serve(PROTOCOL, crawl)
        holder, us = (Store(open_(name), "run", MemoryBlobs()) for name in ("holder", "us"))
        holder.blobs.put(blob)
        await holder.serve()
        assert await us.fetch_blob(names[:20], digest, patience=100.0) is None
        before = loop.time()
        assert await us.fetch_blob([*names, "holder"], digest, patience=600.0) == blob
        assert loop.time() - before < 200.0  # who had a turn the last time comes last

    try:
        loop.run_until_complete(story())
    finally:
        loop.end()


def test_where_all_are_slow_each_gets_a_longer_turn_and_what_has_come_is_kept(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blob_download, "TURN_SECONDS", 0.03)
    monkeypatch.setattr(blob_download, "SLOW_LINE", 1e9)

    async def story() -> None:
        world.line.seconds = 0.05
        for name in ("one", "two"):
            await world.store(name, BLOB)
        us = await world.store("us")
        async with asyncio.timeout(30):
            assert await us.fetch_blob(["one", "two"], DIGEST, patience=2.0) == BLOB

    world.run(story())


def test_who_sends_more_than_the_blob_has_does_not_make_others_liars(world: World) -> None:
    async def story() -> None:
        await world.liar("liar", BLOB + BLOB, says=len(BLOB) + 10 * CHUNK, send=len(BLOB) + 5 * CHUNK)
        await world.store("holder", BLOB)
        us = await world.store("us")
        assert await us.fetch_blob(["liar", "holder"], DIGEST) == BLOB

    world.run(story())


def test_few_unfinished_blobs_are_kept(world: World) -> None:
    async def story() -> None:
        blobs = [bytes([i]) * 10 * CHUNK for i in range(MAX_UNFINISHED + 2)]
        digests = [hashlib.sha256(blob).hexdigest() for blob in blobs]
        await world.store("holder", *blobs)
        us = await world.store("us")
        for digest in digests:
            world.line.left = 4
            assert await us.fetch_blob(["holder"], digest, patience=0.2) is None
        assert len(us._coming._unfinished) == MAX_UNFINISHED
        world.line.left = 6 + 10
        assert await us.fetch_blob(["holder"], digests[-1]) == blobs[-1]
        assert await us.fetch_blob(["holder"], digests[0]) == blobs[0]  # of which nothing was kept
        assert world.line.left == 0

    world.run(story())
