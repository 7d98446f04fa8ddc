"""What the protocol needs of a network and of a machine, handed in. The same code runs over three of them.

    libp2p/      hivemind's libp2p daemon: the real thing
    local.py     the peers of one process, in real time: `simulate`, reference runs
    dipaco_swarm/testing/   a simulated network in virtual time

Everything here is used from one event loop.
"""

import contextlib
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Protocol, TypeVar

from dipaco_swarm.machine.clock import Clock
from dipaco_swarm.swarm.border import Border
from dipaco_swarm.swarm.fields import Message
from dipaco_swarm.swarm.framing import PieceHeader
from dipaco_swarm.swarm.interface import PeerName
from dipaco_swarm.swarm.timing import Timing
from dipaco_swarm.swarm.traffic import Meter, Purpose

T = TypeVar("T")


class Stream(Protocol):
    """Messages, pieces and raw bytes to and from one peer. Closing it is how either side says that it is done.

    Sending raises ConnectionError and receiving EOFError when the other side is gone, or when nothing moves any more
    in the middle of something. Receiving raises RemoteDataError when a message is malformed.
    """

    peer: str
    address: str
    """Where the peer's connection comes from, when it opened the stream; else empty."""
    purpose: Purpose
    """What its pieces and raw bytes are for; `Purpose.JOINING` until somebody says otherwise."""

    @property
    def sent(self) -> int:
        """Bytes of pieces and raw runs, without messages."""
        ...

    @property
    def received(self) -> int: ...

    @property
    def arrived(self) -> int:
        """Bytes of any kind, also of a read that is still going on: that it grows shows that the peer is alive."""
        ...

    async def send(self, message: Message) -> None: ...

    async def receive(self) -> Message:
        """The next message, however long it takes to come."""
        ...

    async def send_piece(self, header: PieceHeader, data: memoryview) -> None: ...

    async def receive_piece_header(self) -> PieceHeader | None:
        """What comes next, however long it takes to come; None at the end of the stream."""
        ...

    async def send_raw(self, data: memoryview) -> None: ...

    async def receive_into(self, data: memoryview) -> None:
        """Fill `data`."""
        ...

    def close(self) -> None: ...


StreamHandler = Callable[[Stream], Awaitable[None]]


@dataclass(frozen=True)
class Record:
    """What a peer wrote under a key, and until when it counts, by that peer's wall clock."""

    payload: bytes
    expiration: float


class Records(Protocol):
    """A directory of small short-lived records; each key is a dictionary with one entry a writer.

    Nobody can write in another's name. Both raise ConnectionError when this machine's network cannot be used.
    """

    async def store(self, key: str, payload: bytes, lifetime: float) -> bool:
        """Write under our own name, displacing what we wrote before; False when nobody took it."""
        ...

    async def read(self, key: str, *, thorough: bool = True) -> Mapping[PeerName, Record]:
        """All live records under a key, by writer. May be some seconds old, and may miss some.

        `thorough`: asked of everybody who has them, so that it misses fewer; otherwise of one of those.
        """
        ...


class Executor(Protocol):
    """Work that would hold up the event loop."""

    async def in_order(self, work: Callable[..., T], *args: Any) -> T:
        """One piece of work after the other, in the order of asking."""
        ...

    async def aside(self, work: Callable[..., T], *args: Any) -> T:
        """Beside all other work."""
        ...

    def close(self) -> None:
        """Nothing more is to be done; what has not begun is dropped."""
        ...


class Transport(Protocol):
    """One peer's door to the network, and what it runs on."""

    @property
    def peer(self) -> PeerName:
        """Our own name."""
        ...

    @property
    def clock(self) -> Clock: ...

    @property
    def timing(self) -> Timing: ...

    @property
    def random(self) -> Random: ...

    @property
    def records(self) -> Records: ...

    @property
    def meter(self) -> Meter: ...

    @property
    def border(self) -> Border:
        """Where errors in what others send end."""
        ...

    @property
    def reachable(self) -> bool:
        """Whether others can dial us, as far as we know."""
        ...

    @property
    def lost(self) -> bool:
        """Whether the network of this machine ended under us; nobody is to be reached any more."""
        ...

    def executor(self) -> Executor:
        """A new executor."""
        ...

    def sign(self, message: bytes) -> bytes:
        """Our signature of a message, 64 bytes."""
        ...

    def is_signed_by(self, peer: str, message: bytes, signature: bytes) -> bool:
        """Whether a signature is that of the peer with this name."""
        ...

    async def serve(self, protocol: str, handler: StreamHandler) -> None:
        """Call `handler` with each stream that a peer opens for `protocol`; the stream closes when it returns."""
        ...

    def dial(
        self, peer: str, protocol: str, *, timeout: float | None = None
    ) -> contextlib.AbstractAsyncContextManager[Stream]:
        """A stream to a peer, closed with the block.

        Raises NotAnswering when it did not open within `timeout` (by default `timing.dial`), another ConnectionError
        when the peer cannot be reached, and NotOfThisRun when it is there and does not speak the protocol.
        """
        ...

    async def addresses(self) -> tuple[str, ...]:
        """Where others can dial us, best first."""
        ...

    def addresses_of(self, peer: str) -> tuple[str, ...]:
        """Where a peer said that it can be dialled, best first."""
        ...

    def remember(self, peer: str, addresses: Sequence[str], *, reachable: bool) -> None:
        """Where a peer says that it can be dialled; `reachable`: also without a relay."""
        ...


class NotAnswering(ConnectionError):
    """Nothing refused the stream, and it did not open in time: the peer or the line may be slow, or gone."""


class NotOfThisRun(ConnectionError):
    """A peer that can be reached and does not speak the protocol, whose name has the run's fingerprint in it."""


class Portal(Protocol):
    """How the thread of a program reaches the event loop."""

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run in the loop, and wait for the result. Raises what `work` raises; CancelledError when it is cancelled."""
        ...

    def soon(self, work: Callable[..., object], *args: Any) -> None:
        """Call in the loop, soon; returns at once. Nothing happens when the loop has ended."""
        ...
