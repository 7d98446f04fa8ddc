"""A connection to our libp2p daemon: bytes straight from the socket into the buffer where they are wanted.

Everything that we receive passes here twice a round, so this is where Python's own streams cost too much: they copy
three times and wake up for every 64 KiB. A `Pipe` has a small box for headers, and while a large read is going on
the event loop writes into the reader's own buffer. One reader and one writer at a time.
"""

import asyncio
from collections.abc import Callable

from hivemind.p2p.p2p_daemon_bindings.datastructures import PeerID, StreamInfo
from hivemind.p2p.p2p_daemon_bindings.utils import raise_if_failed, read_pbmsg_safe
from hivemind.proto import p2pd_pb2
from hivemind.utils.multiaddr import Multiaddr

from dipaco_swarm.swarm.libp2p.protobuf import framed

BOX_BYTES = 1 << 14
"""Read ahead at most this much; what a large read finds in here is copied."""
WRITE_AHEAD_BYTES = 1 << 18
CLOSE_SECONDS = 10.0


class Pipe(asyncio.BufferedProtocol):
    """One end of a stream. `accepted` is called when somebody else opened it."""

    def __init__(self, accepted: "Callable[[Pipe], None] | None" = None) -> None:
        self._accepted = accepted
        self._transport: asyncio.Transport | None = None
        self._box = memoryview(bytearray(BOX_BYTES))
        self._start = 0
        self._stop = 0
        self._wanted: memoryview | None = None
        """The rest of the buffer of a large read that is going on."""
        self._moved = asyncio.Event()
        """Something arrived, or the other side is gone."""
        self._may_write = asyncio.Event()
        self._may_write.set()
        self._ended = False
        self._paused = False
        self.arrived = 0
        """Bytes so far, also those of a read that is still going on."""

    # called by the event loop ----------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.set_write_buffer_limits(high=WRITE_AHEAD_BYTES)
        if self._accepted is not None:
            self._accepted(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._wanted if self._wanted is not None else self._box[self._stop :]

    def buffer_updated(self, nbytes: int) -> None:
        self.arrived += nbytes
        if self._wanted is not None:
            self._wanted = self._wanted[nbytes:]
            if not self._wanted:
                self._pause(True)  # until the next read says where to
                self._wanted = None
                self._moved.set()
        else:
            self._stop += nbytes
            if self._stop == BOX_BYTES:
                self._pause(True)
            self._moved.set()

    def eof_received(self) -> bool:
        self._ended = True
        self._moved.set()
        return True  # we may still have something to say

    def connection_lost(self, exc: Exception | None) -> None:
        self._ended = True
        self._moved.set()
        self._may_write.set()
        self._transport = None

    def pause_writing(self) -> None:
        self._may_write.clear()

    def resume_writing(self) -> None:
        self._may_write.set()

    # called by us ----------------------------------------------------------------------------------------------------

    async def read_exactly(self, length: int, stall: float | None = None) -> bytes:
        data = bytearray(length)
        await self.read_into(memoryview(data), stall)
        return bytes(data)

    async def read_into(self, data: memoryview, stall: float | None = None) -> None:
        """Fill `data`. Raises EOFError when the other side goes away first, or sends nothing for `stall` seconds."""
        while data:
            if self._start < self._stop:
                ready = min(len(data), self._stop - self._start)
                data[:ready] = self._box[self._start : self._start + ready]
                self._start += ready
                data = data[ready:]
                if self._start == self._stop:
                    self._start = self._stop = 0
            elif self._ended:
                raise EOFError("the other side went away")
            else:
                data = await self._more(data, stall)

    async def _more(self, data: memoryview, stall: float | None) -> memoryview:
        """Wait for bytes, for a large read in its own buffer; returns what is still to fill."""
        self._moved.clear()
        large = len(data) >= BOX_BYTES
        if large:
            self._wanted = data
        self._pause(False)
        try:
            while not self._moved.is_set():
                before = self.arrived
                try:
                    async with asyncio.timeout(stall):
                        await self._moved.wait()
                except TimeoutError:
                    if self.arrived == before:  # slow is fine
                        raise EOFError("the other side stopped in the middle") from None
        finally:
            left, self._wanted = self._wanted, None
        if not large:
            return data
        return data[:0] if left is None else left

    async def write(self, data: bytes | memoryview, stall: float | None = None) -> None:
        """Hand over `data`, and wait until there is room for more.

        Raises ConnectionError when the other side goes away, or takes nothing for `stall` seconds.
        """
        if self._transport is None or self._transport.is_closing():
            raise ConnectionResetError("the stream is closed")
        self._transport.write(data)
        while not self._may_write.is_set():
            before = self._transport.get_write_buffer_size() if self._transport else 0
            try:
                async with asyncio.timeout(stall):
                    await self._may_write.wait()
            except TimeoutError:
                if self._transport is not None and self._transport.get_write_buffer_size() >= before:
                    raise ConnectionResetError("the other side takes nothing any more") from None
        if self._transport is None:
            raise ConnectionResetError("the other side went away")

    async def readexactly(self, length: int) -> bytes:
        """The same, by the name that hivemind's reader of protobuf messages expects."""
        return await self.read_exactly(length)

    def close(self) -> None:
        """What was written is still sent, as long as the other side takes it within a while."""
        if self._transport is not None:
            self._transport.close()
            asyncio.get_running_loop().call_later(CLOSE_SECONDS, self.abort)

    def abort(self) -> None:
        """Close at once: what was not sent yet is forgotten."""
        if self._transport is not None:
            self._transport.abort()

    def _pause(self, pause: bool) -> None:
        if self._transport is not None and pause != self._paused and not self._transport.is_closing():
            self._paused = pause
            if pause:
                self._transport.pause_reading()
            else:
                self._transport.resume_reading()


async def open_stream(daemon: str, peer: str, protocol: str) -> Pipe:
    """Ask the daemon at this socket for a stream to a peer. Raises ControlFailure, OSError or EOFError."""
    request = p2pd_pb2.Request(
        type=p2pd_pb2.Request.STREAM_OPEN,
        streamOpen=p2pd_pb2.StreamOpenRequest(peer=PeerID.from_base58(peer).to_bytes(), proto=[protocol]),
    )
    return await _ask(daemon, request)


async def hand_streams_to(daemon: str, socket: str, protocol: str) -> None:
    """Have the daemon pass every stream that others open for `protocol` to whoever listens at `socket`."""
    address = Multiaddr(f"/unix{socket}").to_bytes()
    handler = p2pd_pb2.StreamHandlerRequest(addr=address, proto=[protocol], balanced=False)
    (await _ask(daemon, p2pd_pb2.Request(type=p2pd_pb2.Request.STREAM_HANDLER, streamHandler=handler))).close()


async def is_answering(daemon: str) -> None:
    """Ask the daemon at this socket who it is. Raises ControlFailure, OSError or EOFError when it does not say."""
    (await _ask(daemon, p2pd_pb2.Request(type=p2pd_pb2.Request.IDENTIFY))).close()


async def weigh(daemon: str, peer: str, weight: int) -> None:
    """Where the daemon has too many connections, it ends those first that weigh less; until there is none to this peer.

    Raises ControlFailure, OSError or EOFError.
    """
    tag = p2pd_pb2.ConnManagerRequest(
        type=p2pd_pb2.ConnManagerRequest.TAG_PEER, peer=PeerID.from_base58(peer).to_bytes(), tag="ours", weight=weight
    )
    (await _ask(daemon, p2pd_pb2.Request(type=p2pd_pb2.Request.CONNMANAGER, connManager=tag))).close()


async def connected(daemon: str) -> list[tuple[str, bytes]]:
    """To whom the daemon is connected, and where that is: a multiaddr. Raises as `weigh`."""
    response = p2pd_pb2.Response()
    (await _ask(daemon, p2pd_pb2.Request(type=p2pd_pb2.Request.LIST_PEERS), response)).close()
    return [(PeerID(each.id).to_base58(), next(iter(each.addrs), b"")) for each in response.peers]


async def _ask(daemon: str, request: p2pd_pb2.Request, response: p2pd_pb2.Response | None = None) -> Pipe:
    """`response`: where the answer is written to."""
    response = p2pd_pb2.Response() if response is None else response
    _, pipe = await asyncio.get_running_loop().create_unix_connection(Pipe, daemon)
    try:
        await pipe.write(framed(request))
        await read_pbmsg_safe(pipe, response)
        raise_if_failed(response)
    except BaseException:
        pipe.close()
        raise
    return pipe


async def read_stream_info(pipe: Pipe) -> tuple[str, str, str]:
    """Peer, its address and the protocol of a stream that the daemon handed to us."""
    message = p2pd_pb2.StreamInfo()
    await read_pbmsg_safe(pipe, message)
    info = StreamInfo.from_protobuf(message)
    return info.peer_id.to_base58(), str(info.addr), info.proto
