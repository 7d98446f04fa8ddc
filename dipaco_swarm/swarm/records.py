"""Records in the directory: small, short-lived, checked when they are read. What they say, and under which key.

Nobody can write in another's name (`transport.Records`). What a stranger can still do is add entries of its own;
readers take at most `limits.max_members` of them and depend on no single one.
"""

from collections.abc import Sequence
from typing import Annotated, Literal

import msgpack
from pydantic import Field, ValidationError

from dipaco_swarm.algorithm.paths import ModuleId, PathIndex
from dipaco_swarm.swarm.interface import Announcement, PeerName, Role
from dipaco_swarm.swarm.wire import Count, Digest, Message, ModuleName, Peer

MAX_RECORD_BYTES = 2048
MAX_LIFETIME_SECONDS = 120.0
"""A record may not claim to live longer: an old statement must not outlive its peer."""
CLOCK_TOLERANCE_SECONDS = 30.0
"""... but for this much, by which its writer's clock may be ahead."""


MAX_ADDRESSES = 4
_PLACE = r"(/[a-z0-9]+/[^/,\s]{1,64})"
Address = Annotated[str, Field(pattern=rf"^{_PLACE}{{2,6}}(/p2p-circuit{_PLACE}{{1}})?$", max_length=300)]


class AnnouncementRecord(Message):
    """An `Announcement` as it is stored."""

    peer: Peer
    stage: Count
    module: ModuleName
    path: Count | None
    version: Count
    digest: Digest
    work: Count = 0
    tokens: Count
    tokens_per_second: float = Field(ge=0)
    loss: float | None
    reduces: bool
    moves: bool
    catching_up: bool = False
    role: Literal["trains", "holds", "keeps"]
    addresses: tuple[Address, ...] = Field(default=(), max_length=MAX_ADDRESSES)
    """Where the peer can be dialled. libp2p's own search for a peer forgets and fails; this does not."""


class ManifestRecord(Message):
    """Where the newest manifest is: the operator's node says so."""

    revision: Count
    digest: str = Field(pattern=r"^[0-9a-f]{64}$")


class Statement(Message):
    """What a peer has to say about a topic; the topic's readers know what it means."""

    statement: bytes = Field(max_length=512)


class Goodbye(Message):
    """I am not there any more."""

    goodbye: bool = True


def is_goodbye(payload: bytes) -> bool:
    return payload == _GOODBYE


def group_key(run: str, stage: int, module: ModuleId) -> str:
    return f"{run}/group/{stage}/{module}"


def topic_key(run: str, topic: str) -> str:
    return f"{run}/topic/{topic}"


def decode_statement(payload: bytes) -> bytes | None:
    """The statement in a record, or None when it is malformed."""
    try:
        return Statement.model_validate(msgpack.unpackb(payload, raw=False)).statement
    except (ValueError, TypeError, ValidationError, msgpack.exceptions.UnpackException):
        return None


def manifest_key(run: str) -> str:
    return f"{run}/manifest"


def encode(payload: Message) -> bytes:
    """What is stored of a payload."""
    return bytes(msgpack.packb(payload.model_dump(), use_bin_type=True))


def encode_announcement(said: Announcement, addresses: Sequence[str]) -> AnnouncementRecord:
    return AnnouncementRecord(
        peer=said.peer,
        stage=said.stage,
        module=str(said.module),
        path=said.path,
        version=said.version,
        digest=said.digest,
        work=said.work,
        tokens=said.tokens,
        tokens_per_second=said.tokens_per_second,
        loss=said.loss,
        reduces=said.reduces,
        moves=said.moves,
        catching_up=said.catching_up,
        role=said.role.value,
        addresses=tuple(addresses[:MAX_ADDRESSES]),
    )


_GOODBYE = encode(Goodbye())


def decode_announcement(
    signer: str, payload: bytes, stage: int, module: ModuleId
) -> tuple[Announcement, tuple[str, ...]] | None:
    """A stored announcement and the peer's addresses; None when it is malformed, or in another's name or place."""
    try:
        fields = msgpack.unpackb(payload, raw=False, use_list=False)
        record = AnnouncementRecord.model_validate(fields)
    except (ValueError, TypeError, ValidationError, msgpack.exceptions.UnpackException):
        return None
    if record.peer != signer or record.stage != stage or record.module != str(module):
        return None
    if (record.role == "trains") == (record.path is None):
        return None
    said = Announcement(
        peer=PeerName(record.peer),
        stage=record.stage,
        module=module,
        path=None if record.path is None else PathIndex(record.path),
        version=record.version,
        digest=record.digest,
        work=record.work,
        tokens=record.tokens,
        tokens_per_second=record.tokens_per_second,
        loss=record.loss,
        reduces=record.reduces,
        moves=record.moves,
        catching_up=record.catching_up,
        role=Role(record.role),
    )
    return said, record.addresses
