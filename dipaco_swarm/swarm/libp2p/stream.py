"""A libp2p stream: framed messages and raw runs of bytes over a pipe to our daemon."""

from dipaco_swarm.errors import RemoteDataError
from dipaco_swarm.swarm.fields import MAX_MASK_BYTES, Message
from dipaco_swarm.swarm.framing import LENGTH, MAX_MESSAGE_BYTES, PIECE, PieceHeader, decode, encode
from dipaco_swarm.swarm.libp2p.pipe import Pipe
from dipaco_swarm.swarm.libp2p.rate_limit import RateLimit
from dipaco_swarm.swarm.timing import Timing
from dipaco_swarm.swarm.traffic import Meter, Purpose

STEP_BYTES = 1 << 18
MESSAGE_STEP_BYTES = 1 << 16


class PipeStream:
    """`transport.Stream` over libp2p."""

    def __init__(
        self, peer: str, pipe: Pipe, meter: Meter, rate_limit: RateLimit, timing: Timing, address: str = ""
    ) -> None:
        self.peer = peer
        self.address = address
        self.purpose = Purpose.JOINING
        self._pipe = pipe
        self._meter = meter
        self._rate_limit = rate_limit
        self._stall = timing.stall
        self._sent = 0
        self._received = 0

    @property
    def sent(self) -> int:
        return self._sent

    @property
    def received(self) -> int:
        return self._received

    @property
    def arrived(self) -> int:
        return self._pipe.arrived

    async def send(self, message: Message) -> None:
        body = encode(message)
        await self._write(LENGTH.pack(len(body)) + body)
        self._meter.note_sent(Purpose.MESSAGES, LENGTH.size + len(body))

    async def receive(self) -> Message:
        (length,) = LENGTH.unpack(await self._pipe.read_exactly(LENGTH.size))
        if length > MAX_MESSAGE_BYTES:
            raise RemoteDataError(self.peer, f"announces a message of {length} bytes; {MAX_MESSAGE_BYTES} are allowed")
        body = b""
        while len(body) < length:  # memory is taken as bytes come in, and not when they are announced
            body += await self._pipe.read_exactly(min(MESSAGE_STEP_BYTES, length - len(body)), self._stall)
        self._meter.note_received(Purpose.MESSAGES, LENGTH.size + length)
        return decode(self.peer, body)

    async def send_piece(self, header: PieceHeader, data: memoryview) -> None:
        packed = PIECE.pack(header.index, header.generation, len(header.mask), header.size)
        await self._write(packed + header.mask)
        self._meter.note_sent(Purpose.MESSAGES, PIECE.size + len(header.mask))
        await self.send_raw(data)

    async def receive_piece_header(self) -> PieceHeader | None:
        try:
            index, generation, mask_bytes, size = PIECE.unpack(await self._pipe.read_exactly(PIECE.size))
        except EOFError:
            return None
        if mask_bytes > MAX_MASK_BYTES:
            raise RemoteDataError(self.peer, f"sends a mask of {mask_bytes} bytes")
        mask = await self._pipe.read_exactly(mask_bytes, self._stall)
        self._meter.note_received(Purpose.MESSAGES, PIECE.size + mask_bytes)
        return PieceHeader(index, generation, mask, size)

    async def send_raw(self, data: memoryview) -> None:
        # in steps, so that the transport never copies a whole vector into its buffer
        most = self._rate_limit.step(STEP_BYTES)
        with self._meter.sending():
            for start in range(0, len(data), most):
                step = data[start : start + most]
                await self._rate_limit.take(len(step))
                await self._write(step)
                self._sent += len(step)
                self._meter.note_sent(self.purpose, len(step))

    async def receive_into(self, data: memoryview) -> None:
        for start in range(0, len(data), STEP_BYTES):
            step = data[start : start + STEP_BYTES]
            await self._pipe.read_into(step, self._stall)
            self._received += len(step)
            self._meter.note_received(self.purpose, len(step))

    def close(self) -> None:
        self._pipe.close()

    async def _write(self, data: bytes | memoryview) -> None:
        await self._pipe.write(data, self._stall)
