"""The transport among peers of one process: the protocol's own code, without a network.

A `LocalNetwork` is what they share. A `Link` says how things travel on it: `Direct` hands them over at once, which is
what `simulate` and the reference runs use; `dipaco_swarm.testing` has one with delays, lines and faults.
"""

import asyncio
import contextlib
import contextvars
import hashlib
import threading
import weakref
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from random import Random, SystemRandom

from dipaco_swarm.machine.clock import SYSTEM_CLOCK, Clock
from dipaco_swarm.run.address import RunAddress
from dipaco_swarm.swarm.addresses import address_of
from dipaco_swarm.swarm.border import Border
from dipaco_swarm.swarm.circle import Circle
from dipaco_swarm.swarm.interface import PeerName
from dipaco_swarm.swarm.local_stream import END, Link, LocalStream
from dipaco_swarm.swarm.networked import NetworkedSwarm, networked_swarm
from dipaco_swarm.swarm.states.blobs import Blobs
from dipaco_swarm.swarm.tasks import Tasks
from dipaco_swarm.swarm.threads import LoopPortal, Threads
from dipaco_swarm.swarm.timing import Timing
from dipaco_swarm.swarm.traffic import Meter
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


_PLACE = "/ip4/127.0.0.1/tcp/1"
"""Where all peers of a process are, in the form of an address."""


def _signature(peer: str, message: bytes) -> bytes:
    """As long as a real one; who is in this process forges none."""
    return hashlib.sha512(f"{peer}: ".encode() + message).digest()


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
        self.place = ""
        """The address that others see our streams come from."""
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
        theirs.address = self.place
        there._accept(theirs, handler)
        try:
            yield ours
        finally:
            ours.close()

    def _accept(self, stream: LocalStream, handler: StreamHandler) -> None:
        self._tasks.start(self._handle(stream, handler), self._context.copy() if self._context else None)

    async def _handle(self, stream: LocalStream, handler: StreamHandler) -> None:
        try:
            await self.border.hear(stream.peer, lambda: handler(stream), stream.address)
        finally:
            stream.close()

    def sign(self, message: bytes) -> bytes:
        return _signature(self.peer, message)

    def is_signed_by(self, peer: str, message: bytes, signature: bytes) -> bool:
        return signature == _signature(peer, message)

    async def addresses(self) -> tuple[str, ...]:
        """None: names are addresses here."""
        return ()

    def addresses_of(self, peer: str) -> tuple[str, ...]:
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
