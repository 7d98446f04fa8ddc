"""The transport among peers of one process: the protocol's own code, without a network.

A `LocalNetwork` is what they share. A `Link` says how things travel on it: `Direct` hands them over at once, which is
what `simulate` and the reference runs use; `dipaco_swarm.testing` has one with delays, lines and faults.
"""

import asyncio
import contextlib
import contextvars
import threading
import weakref
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from random import Random, SystemRandom
from typing import Protocol

from dipaco_swarm.errors import RemoteDataError
from dipaco_swarm.machine.clock import SYSTEM_CLOCK, Clock
from dipaco_swarm.run.address import RunAddress
from dipaco_swarm.swarm.addresses import address_of
from dipaco_swarm.swarm.border import Border
from dipaco_swarm.swarm.circle import Circle
from dipaco_swarm.swarm.fields import Message
from dipaco_swarm.swarm.framing import PieceHeader
from dipaco_swarm.swarm.interface import PeerName
from dipaco_swarm.swarm.networked import NetworkedSwarm, networked_swarm
from dipaco_swarm.swarm.states.blobs import Blobs
from dipaco_swarm.swarm.tasks import Tasks
from dipaco_swarm.swarm.threads import LoopPortal, Threads
from dipaco_swarm.swarm.timing import Timing
from dipaco_swarm.swarm.traffic import Meter, Purpose
from dipaco_swarm.swarm.transport import (
    Executor,
    NotAnswering,
    NotOfThisRun,
    Portal,
    Record,
    Records,
    Stream,
    StreamHandler,
)


class TimingWithin(Timing):
    """Within a process nobody vanishes without a goodbye: who is silent waits for the processor, and is not gone."""

    @property
    def lifetime(self) -> float:
        return 30.0


QUICK = TimingWithin(heartbeat=0.5)
"""Within a process a record is read in no time: peers hear of each other ten times as often as over a network."""


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


class Direct:
    """A link without a line: everything is there at once."""

    async def dial(self, caller: str, peer: str) -> None:
        """Whoever is there can be dialled."""

    async def carry(self, stream: "LocalStream", item: object, size: int) -> None:
        stream.other.arrive(item, size)
        if size:
            await asyncio.sleep(0)  # others have their turn between two pieces

    def end(self, stream: "LocalStream") -> None:
        stream.other.arrive(END, 0)


END = object()
"""What arrives last on a stream."""
_PLACE = "/ip4/127.0.0.1/tcp/1"
"""Where all peers of a process are, in the form of an address."""


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
    def pair(cls, caller: "LocalTransport", callee: "LocalTransport", link: Link) -> "tuple[LocalStream, LocalStream]":
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


class LocalNetwork:
    """What the peers of one process share. Make it once, and a `LocalTransport` for each peer."""

    def __init__(
        self,
        link: Link | None = None,
        timing: Timing = QUICK,
        clock: Clock = SYSTEM_CLOCK,
        random: Random | None = None,
    ) -> None:
        self.link: Link = link or Direct()
        self.timing = timing
        self.clock = clock
        self.random = random or SystemRandom()
        self.transports: dict[str, LocalTransport] = {}
        self.directory: dict[str, dict[PeerName, Record]] = {}

    def live(self, key: str) -> Mapping[PeerName, Record]:
        """The records under a key that have not expired; the others are dropped."""
        now = self.clock.wall()
        found = self.directory.get(key, {})
        for peer in [peer for peer, record in found.items() if record.expiration <= now]:
            del found[peer]
        return found


class LocalRecords:
    """`transport.Records` in a dictionary."""

    def __init__(self, network: LocalNetwork, peer: PeerName) -> None:
        self._network = network
        self._peer = peer

    async def store(self, key: str, payload: bytes, lifetime: float) -> bool:
        record = Record(payload, self._network.clock.wall() + lifetime)
        self._network.directory.setdefault(key, {})[self._peer] = record
        return True

    async def read(self, key: str, *, thorough: bool = True) -> dict[PeerName, Record]:
        return dict(self._network.live(key))


class LocalTransport:
    """One peer's door to a `LocalNetwork`."""

    def __init__(
        self,
        network: LocalNetwork,
        name: str,
        *,
        clock: Clock | None = None,
        records: Records | None = None,
        executor: Callable[[], Executor] = Threads,
        reachable: bool = True,
        random: Random | None = None,
    ) -> None:
        self._network = network
        self.peer = PeerName(name)
        self.clock = clock or network.clock
        self.timing = network.timing
        self.random = random or network.random
        self.records: Records = records or LocalRecords(network, self.peer)
        self.meter = Meter(self.clock)
        self.border = Border(self.clock)
        self.reachable = reachable
        self.lost = False
        self.executor = executor
        self.streams: weakref.WeakSet[LocalStream] = weakref.WeakSet()
        self._handlers: dict[str, StreamHandler] = {}
        self._tasks = Tasks()
        self._context: contextvars.Context | None = None

    def open(self) -> None:
        """From now on we can be dialled; what others have us do belongs to who calls this."""
        self._context = contextvars.copy_context()
        self._network.transports[self.peer] = self

    async def close(self) -> None:
        """Nobody reaches us any more."""
        if self._network.transports.get(self.peer) is self:
            del self._network.transports[self.peer]
        await self._tasks.end()

    async def serve(self, protocol: str, handler: StreamHandler) -> None:
        self._handlers[protocol] = handler

    @contextlib.asynccontextmanager
    async def dial(self, peer: str, protocol: str, *, timeout: float | None = None) -> AsyncIterator[Stream]:
        try:
            async with asyncio.timeout(timeout or self.timing.dial):
                await self._network.link.dial(self.peer, peer)
        except TimeoutError:
            raise NotAnswering(f"peer {peer[-8:]} does not answer just now") from None
        there = self._network.transports.get(peer)
        if there is None:
            raise ConnectionError(f"peer {peer[-8:]} cannot be reached just now")
        handler = there._handlers.get(protocol)
        if handler is None:
            raise NotOfThisRun(f"peer {peer[-8:]} is there and takes no part in this run")
        ours, theirs = LocalStream.pair(self, there, self._network.link)
        there._accept(theirs, handler)
        try:
            yield ours
        finally:
            ours.close()

    def _accept(self, stream: LocalStream, handler: StreamHandler) -> None:
        self._tasks.start(self._handle(stream, handler), self._context.copy() if self._context else None)

    async def _handle(self, stream: LocalStream, handler: StreamHandler) -> None:
        try:
            await self.border.hear(stream.peer, lambda: handler(stream))
        finally:
            stream.close()

    async def addresses(self) -> tuple[str, ...]:
        """None: names are addresses here."""
        return ()

    def remember(self, peer: str, addresses: Sequence[str], *, reachable: bool) -> None:
        """Names are addresses here."""


class LocalSwarms:
    """The event loop of the swarms of one process, in a thread of its own."""

    def __init__(self, network: LocalNetwork | None = None) -> None:
        self.network = network or LocalNetwork()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="swarms", daemon=True)
        self.portal: Portal = LoopPortal(self._loop)

    def __enter__(self) -> "LocalSwarms":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    @contextlib.contextmanager
    def open(
        self,
        name: str,
        address: RunAddress,
        blobs: Blobs,
        portal: Portal | None = None,
        *,
        records: Records | None = None,
        met_before: Sequence[str] = (),
        patience: float = 1.0,
        circle: Circle | None = None,
    ) -> Iterator[NetworkedSwarm]:
        """A swarm of the peer `name`; goodbye is said when the block ends.

        `portal`: through which its program's thread comes in; by default one that just waits. `records`: its
        directory; by default a dictionary. `met_before`, `patience` and `circle`: see `networked_swarm`.
        """
        opened = contextlib.AsyncExitStack()

        async def come() -> NetworkedSwarm:
            transport = LocalTransport(self.network, name, records=records)
            transport.open()
            opened.push_async_callback(transport.close)
            door = portal or self.portal
            swarm = networked_swarm(door, transport, address, blobs, met_before, patience=patience, circle=circle)
            return await opened.enter_async_context(swarm)

        swarm = self.portal.run(come())
        try:
            yield swarm
        finally:
            self.portal.run(opened.aclose())


def local_address(name: str, fingerprint: str, bootstrap: str) -> RunAddress:
    """The address of a run among the peers of this process, whose bootstrap node has the name `bootstrap`."""
    return RunAddress(name, fingerprint, (address_of(_PLACE, bootstrap),))
