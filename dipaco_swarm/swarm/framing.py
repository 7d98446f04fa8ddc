"""How messages are put on a stream: a 4-byte length and a msgpack map; and the headers of raw runs of bytes.

What does not fit raises RemoteDataError, which names the peer. No pickle, nothing is executed. The work that one
message can cause is bounded by its length and by what the parser takes: keys are texts, arrays of MAX_PIECES at most.
"""

import struct
from dataclasses import dataclass

import msgpack
from pydantic import ValidationError

from dipaco_swarm.errors import RemoteDataError
from dipaco_swarm.swarm import checks, greetings, parts, proofs, questions, wire
from dipaco_swarm.swarm.fields import MAX_PIECES, Message

MAX_MESSAGE_BYTES = 1 << 20
"""Large enough for a roster of MAX_MEMBERS who name all whom they may, and MAX_PIECES; a longer message is refused."""

MAX_FIELDS = 64
"""Of a message."""

LENGTH = struct.Struct("<I")
PIECE = struct.Struct("<IIII")
SEAL = (1 << 32) - 1
"""The index of what is no piece, but a reducer's signature under all pieces that it made in that generation."""
SIGNATURE_BYTES = 64

KINDS: dict[str, type[Message]] = {
    kind.model_fields["kind"].default: kind
    for words in (wire, proofs, checks, greetings, parts, questions)
    for kind in vars(words).values()
    if isinstance(kind, type) and issubclass(kind, Message) and "kind" in kind.model_fields
}
"""Every message that there is, by its kind."""


@dataclass(frozen=True)
class PieceHeader:
    """Comes before a run of bytes on an exchange stream: a contribution to a piece, or its average."""

    index: int
    generation: int
    mask: bytes
    """Little-endian bits: which roster members are in this average. In a contribution its member's signature."""
    size: int
    """Bytes that follow."""


def encode(message: Message) -> bytes:
    """A message as the bytes that follow its length."""
    return bytes(msgpack.packb(message.model_dump(), use_bin_type=True))


def decode(peer: str, body: bytes) -> Message:
    """The message in these bytes. Raises RemoteDataError, which names the peer, when they are not one."""
    try:
        fields = msgpack.unpackb(
            body, raw=False, use_list=False, strict_map_key=True, max_map_len=MAX_FIELDS, max_array_len=MAX_PIECES
        )
    except (ValueError, TypeError, RecursionError, msgpack.exceptions.UnpackException) as error:
        raise RemoteDataError(peer, f"sends bytes that are not a message: {error}") from None
    named = fields.get("kind") if isinstance(fields, dict) else None
    kind = KINDS.get(named) if isinstance(named, str) else None
    if kind is None:
        raise RemoteDataError(peer, f"sends a message of a kind that does not exist: {named!r}")
    try:
        return kind.model_validate(fields)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise RemoteDataError(peer, f"sends a malformed message: {named}.{where}: {first['msg']}") from None
