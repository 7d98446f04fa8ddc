"""What travels on a stream between two peers: framed messages, checked at the border, and raw runs of bytes.

A message is a 4-byte length and a msgpack map with a `kind`; every kind is a frozen, strictly typed value below.
Anything that does not fit raises RemoteDataError, which names the peer. No pickle, nothing is executed.
"""

import asyncio
import struct
from dataclasses import dataclass
from typing import Annotated, Literal

import msgpack
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from dipaco_swarm.errors import RemoteDataError

MAX_MESSAGE_BYTES = 1 << 20
"""Large enough for a roster of 256 members and a decision about 10,000 pieces; a longer message is refused."""

READ_BYTES = 1 << 18
_LENGTH = struct.Struct("<I")
_PIECE = struct.Struct("<III")


class Message(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


Peer = Annotated[str, Field(max_length=80)]
ModuleName = Annotated[str, Field(pattern=r"^L\d{1,4}M\d{1,6}$")]
Count = Annotated[int, Field(ge=0, lt=1 << 62)]
Hash = Annotated[bytes, Field(min_length=32, max_length=32)]


# rounds: a member and the leader -------------------------------------------------------------------------------------


class Join(Message):
    """Member -> leader: count me in."""

    kind: Literal["join"] = "join"
    stage: Count
    module: ModuleName
    version: Count
    path: Count
    tokens: Count
    norm: float = Field(ge=0)
    """Length of the whole outer gradient; reducers hold us to it."""
    parameters: Count
    reduces: bool
    patience: float = Field(ge=0)
    """Seconds this member is willing to wait for others who are alive but not there yet."""


class Refuse(Message):
    """Leader -> member: not this time. `version` is where the leader stands."""

    kind: Literal["refuse"] = "refuse"
    reason: Annotated[str, Field(max_length=200)]
    version: Count


class RosterEntry(Message):
    peer: Peer
    path: Count
    tokens: Count
    norm: float = Field(ge=0)
    scale: float = Field(gt=0, le=1)
    """Norm clipping: what this contribution is multiplied with."""
    reduces: bool


class Roster(Message):
    """Leader -> members: who takes part, in which order, and who reduces which piece."""

    kind: Literal["roster"] = "roster"
    round_id: Annotated[bytes, Field(min_length=16, max_length=16)]
    members: tuple[RosterEntry, ...] = Field(min_length=1)
    piece_parameters: int = Field(gt=0)
    owners: tuple[Count, ...] = Field(min_length=1)
    """For each piece of the vector, the index in `members` of its reducer."""


class Reassign(Message):
    """Leader -> members: these members are gone; their pieces have new owners, in a new generation."""

    kind: Literal["reassign"] = "reassign"
    gone: tuple[Peer, ...]
    generation: int = Field(gt=0)
    pieces: dict[int, int]
    """piece -> index in `members` of its new owner"""


class Ready(Message):
    """Member -> leader: I hold every piece of the average; these are their digests."""

    kind: Literal["ready"] = "ready"
    generation: Count
    digest: Hash
    """Over all pieces in order: their bytes and the masks of who is in them."""


class Commit(Message):
    """Leader -> members: everybody who is alive holds the same bytes; take the outer step."""

    kind: Literal["commit"] = "commit"
    round_id: Annotated[bytes, Field(min_length=16, max_length=16)]
    generation: Count
    digest: Hash


class Abort(Message):
    """Leader -> members: this round is off; nothing changes."""

    kind: Literal["abort"] = "abort"
    reason: Annotated[str, Field(max_length=200)]


class Alive(Message):
    """Either way on a quiet control stream, a few times a second. Members add whose pieces they still wait for."""

    kind: Literal["alive"] = "alive"
    waiting_for: tuple[Peer, ...] = ()


class AskOutcome(Message):
    """Member -> member, when the leader is lost: did you commit this round? Asking also forbids it from now on."""

    kind: Literal["ask-outcome"] = "ask-outcome"
    round_id: Annotated[bytes, Field(min_length=16, max_length=16)]


class OutcomeIs(Message):
    kind: Literal["outcome"] = "outcome"
    commit: Commit | None


# a contributor and a reducer -----------------------------------------------------------------------------------------


class Exchange(Message):
    """Contributor -> reducer: pieces follow; send me the averages of yours on this stream."""

    kind: Literal["exchange"] = "exchange"
    round_id: Annotated[bytes, Field(min_length=16, max_length=16)]


# states, blobs, and who is where -------------------------------------------------------------------------------------


class Where(Message):
    """Are you there, and where do you stand with this module? The round that makes `version + 1` is gathering."""

    kind: Literal["where"] = "where"
    stage: Count
    module: ModuleName
    version: Count


class Here(Message):
    kind: Literal["here"] = "here"
    version: int | None
    """None: we do not train this module in this stage."""


class AskState(Message):
    kind: Literal["ask-state"] = "ask-state"
    stage: Count
    module: ModuleName
    digest: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class StateFollows(Message):
    """`parameters` fp32 of parameters, then as many of momentum."""

    kind: Literal["state"] = "state"
    version: Count
    parameters: Count


class AskBlob(Message):
    kind: Literal["ask-blob"] = "ask-blob"
    digest: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    offset: Count = 0


class BlobFollows(Message):
    kind: Literal["blob"] = "blob"
    size: Count


class AskManifest(Message):
    kind: Literal["ask-manifest"] = "ask-manifest"


class ManifestIs(Message):
    kind: Literal["manifest"] = "manifest"
    signed: bytes | None


class NotHere(Message):
    """We do not have what was asked for."""

    kind: Literal["not-here"] = "not-here"


AnyMessage = Annotated[
    Join | Refuse | Roster | Reassign | Ready | Commit | Abort | Alive | AskOutcome | OutcomeIs | Exchange
    | Where | Here | AskState | StateFollows | AskBlob | BlobFollows | AskManifest | ManifestIs | NotHere,
    Field(discriminator="kind"),
]  # fmt: skip
_MESSAGES: TypeAdapter[AnyMessage] = TypeAdapter(AnyMessage)


@dataclass(frozen=True)
class Piece:
    """A run of bytes on an exchange stream: a contribution to a piece, or its average (then with the mask)."""

    index: int
    generation: int
    mask: bytes
    """Little-endian bits: which roster members are in this average. Empty in a contribution."""
    data: bytearray | memoryview


class Stream:
    """One libp2p stream: messages, pieces and raw bytes. Closing it is how either side says it is done."""

    def __init__(self, peer: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, meter: "Meter") -> None:
        self.peer = peer
        self._reader = reader
        self._writer = writer
        self._meter = meter

    async def send(self, message: Message) -> None:
        body = msgpack.packb(message.model_dump(), use_bin_type=True)
        self._writer.write(_LENGTH.pack(len(body)) + body)
        await self._writer.drain()

    async def receive(self) -> Message:
        """The next message. Raises RemoteDataError when it is malformed, EOFError when the other side is gone."""
        (length,) = _LENGTH.unpack(await self._read_exactly(_LENGTH.size))
        if length > MAX_MESSAGE_BYTES:
            raise RemoteDataError(self.peer, f"announces a message of {length} bytes; {MAX_MESSAGE_BYTES} are allowed")
        body = await self._read_exactly(length)
        try:
            fields = msgpack.unpackb(body, raw=False, use_list=False, strict_map_key=False)
            return _MESSAGES.validate_python(fields)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"])
            raise RemoteDataError(self.peer, f"sends a malformed message: {where}: {first['msg']}") from None
        except (ValueError, TypeError, RecursionError) as error:
            raise RemoteDataError(self.peer, f"sends bytes that are not a message: {error}") from None

    async def send_piece(self, index: int, generation: int, mask: bytes, data: memoryview) -> None:
        self._writer.write(_PIECE.pack(index, generation, len(mask)) + _LENGTH.pack(len(data)) + mask)
        await self.send_raw(data)

    async def receive_piece(self, max_bytes: int) -> Piece | None:
        """The next piece, or None at the end of the stream."""
        try:
            header = await self._reader.readexactly(_PIECE.size + _LENGTH.size)
        except (asyncio.IncompleteReadError, OSError):
            return None
        index, generation, mask_bytes = _PIECE.unpack(header[: _PIECE.size])
        (length,) = _LENGTH.unpack(header[_PIECE.size :])
        if length > max_bytes or mask_bytes > 1024:
            raise RemoteDataError(self.peer, f"sends a piece of {length} bytes; at most {max_bytes} are possible")
        try:
            mask = await self._read_exactly(mask_bytes)
            return Piece(index, generation, mask, await self.receive_raw(length))
        except EOFError:
            return None

    async def send_raw(self, data: memoryview) -> None:
        # in steps, so that the transport never copies a whole vector into its buffer
        for start in range(0, len(data), READ_BYTES):
            self._writer.write(data[start : start + READ_BYTES])
            await self._writer.drain()
        self._meter.sent += len(data)

    async def receive_raw(self, length: int) -> bytearray:
        """Exactly `length` bytes into one buffer. Raises EOFError when the other side goes away first."""
        buffer = bytearray(length)
        view, filled = memoryview(buffer), 0
        while filled < length:
            try:
                chunk = await self._reader.read(min(READ_BYTES, length - filled))
            except OSError as error:
                raise EOFError(str(error)) from None
            if not chunk:
                raise EOFError(f"peer {self.peer[-8:]} went away")
            view[filled : filled + len(chunk)] = chunk
            filled += len(chunk)
        self._meter.received += length
        return buffer

    async def _read_exactly(self, length: int) -> bytes:
        try:
            return await self._reader.readexactly(length)
        except (asyncio.IncompleteReadError, OSError):
            raise EOFError(f"peer {self.peer[-8:]} went away") from None

    def close(self) -> None:
        self._writer.close()


@dataclass
class Meter:
    """Bytes of payload so far; messages are not counted."""

    sent: int = 0
    received: int = 0
