"""A stream between two peers of one process, and how things travel on it."""

import asyncio
import weakref
from collections import deque
from typing import Protocol

from dipaco_swarm.errors import RemoteDataError
from dipaco_swarm.swarm.fields import Message
from dipaco_swarm.swarm.framing import PieceHeader
from dipaco_swarm.swarm.interface import PeerName
from dipaco_swarm.swarm.traffic import Meter, Purpose

END = object()
"""What arrives last on a stream."""


class Link(Protocol):
    """How things travel between two peers of a process."""

    async def dial(self, caller: str, peer: str) -> None:
        """Return once a stream could be open. Raises ConnectionError when the peer cannot be reached."""
        ...

    async def carry(self, stream: "LocalStream", item: object, size: int) -> None:
        """Have `item` arrive at the other end of a stream, after all that was sent before. `size`: in bytes.

        Returns once the sender's line has taken it. `size` is 0 for a message and a header.
        """
        ...

    def end(self, stream: "LocalStream") -> None:
        """Have the end of a stream arrive at its other end, after all that was sent on it."""
        ...


class End(Protocol):
    """Who has an end of a stream."""

    @property
    def peer(self) -> PeerName: ...

    @property
    def meter(self) -> Meter: ...

    @property
    def streams(self) -> "weakref.WeakSet[LocalStream]": ...


class LocalStream:
    """One end of a stream within a process."""

    def __init__(self, me: str, peer: str, link: Link, meter: Meter) -> None:
        self.peer = peer
        self.address = ""
        self.purpose = Purpose.JOINING
        self.me = me
        self._link = link
        self._meter = meter
        self.other: LocalStream = self
        """The other end."""
        self._inbox: deque[object] = deque()
        self._news = asyncio.Event()
        self._rest = memoryview(b"")
        """Bytes of a raw run that nobody has read yet."""
        self._closed = False
        self._ended = False
        self._sent = self._received = self._arrived = 0

    @classmethod
    def pair(cls, caller: End, callee: End, link: Link) -> "tuple[LocalStream, LocalStream]":
        one = cls(caller.peer, callee.peer, link, caller.meter)
        two = cls(callee.peer, caller.peer, link, callee.meter)
        one.other, two.other = two, one
        caller.streams.add(one)
        callee.streams.add(two)
        return one, two

    @property
    def sent(self) -> int:
        return self._sent

    @property
    def received(self) -> int:
        return self._received

    @property
    def arrived(self) -> int:
        return self._arrived

    async def send(self, message: Message) -> None:
        await self._put(message, 0)

    async def receive(self) -> Message:
        item = await self._next()
        if not isinstance(item, Message):
            raise RemoteDataError(self.peer, "sends bytes that are not a message")
        return item

    async def send_piece(self, header: PieceHeader, data: memoryview) -> None:
        await self._put(header, 0)
        await self.send_raw(data)

    async def receive_piece_header(self) -> PieceHeader | None:
        try:
            item = await self._next()
        except EOFError:
            return None
        if not isinstance(item, PieceHeader):
            raise RemoteDataError(self.peer, "sends something else where a piece begins")
        return item

    async def send_raw(self, data: memoryview) -> None:
        with self._meter.sending():
            await self._put(bytes(data), len(data))  # a copy: the sender may go on with its buffer
        self._sent += len(data)
        self._meter.note_sent(self.purpose, len(data))

    async def receive_into(self, data: memoryview) -> None:
        at = 0
        while at < len(data):
            if not self._rest:
                item = await self._next()
                if not isinstance(item, bytes):
                    raise RemoteDataError(self.peer, "sends a message in the middle of a run of bytes")
                self._rest = memoryview(item)
            ready = min(len(self._rest), len(data) - at)
            data[at : at + ready] = self._rest[:ready]
            self._rest = self._rest[ready:]
            at += ready
        self._received += len(data)
        self._meter.note_received(self.purpose, len(data))

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._link.end(self)
            self._news.set()

    def abandon(self) -> None:
        """Its process is gone, and closes nothing: whoever clears up what is left of it must not be heard."""
        self._closed = True

    async def _put(self, item: object, size: int) -> None:
        if self._closed or self._ended:
            raise ConnectionResetError("the stream is closed")
        await self._link.carry(self, item, size)

    def arrive(self, item: object, size: int) -> None:
        """Something has come from the other end; after the END nothing more does."""
        if self._ended:
            return
        self._ended = item is END
        self._arrived += size or 1
        self._inbox.append(item)
        self._news.set()

    async def _next(self) -> object:
        while not self._inbox:
            if self._closed:
                raise EOFError("the stream is closed")
            self._news.clear()
            await self._news.wait()
        if self._inbox[0] is END:
            raise EOFError("the other side went away")
        return self._inbox.popleft()
