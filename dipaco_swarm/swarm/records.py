"""Records in the directory: small, short-lived, checked when they are read. What they say, and under which key.

Nobody can write in another's name, nor move a record to another key (`transport.Records`): so a record says neither
who wrote it nor what it is about. It is the bare values of its fields, in their order: it is read far more often than
anything else in the swarm. What a stranger can still do is add entries of its own; readers take at most
`limits.max_members` of them and depend on no single one.
"""

from collections.abc import Sequence
from typing import Annotated, Literal, TypeVar

import msgpack
from pydantic import Field, ValidationError

from dipaco_swarm.algorithm.paths import ModuleId, PathIndex
from dipaco_swarm.errors import RemoteDataError
from dipaco_swarm.swarm.cards import Card
from dipaco_swarm.swarm.fields import (
    MAX_SPEED,
    MAX_TOKENS,
    Digest,
    Hash,
    Index,
    Loss,
    Message,
    Nickname,
    Percent,
    Speed,
    Tokens,
    Version,
    Work,
    at_most,
)
from dipaco_swarm.swarm.interface import Announcement, PeerName, Role

MAX_RECORD_BYTES = 2048
OVERHEAD_BYTES = 130
"""Of a record, besides its payload: its writer, its signature, its expiration."""
MAX_LIFETIME_SECONDS = 120.0
"""A record may not claim to live longer: an old statement must not outlive its peer."""
CLOCK_TOLERANCE_SECONDS = 30.0
"""... but for this much, by which its writer's clock may be ahead."""


MAX_ADDRESSES = 4
_PLACE = r"(/[a-z0-9]+/[A-Za-z0-9._:%-]{1,64})"
Place = Annotated[str, Field(pattern=rf"^{_PLACE}{{2,6}}(/p2p-circuit)?$", max_length=300)]
"""Of the peer that writes, without its name at the end."""


class AnnouncementRecord(Message):
    """An `Announcement` as it is stored, under the key of its module group."""

    path: Index | None
    version: Version
    digest: Hash
    work: Work
    tokens: Tokens
    tokens_per_second: Speed
    loss: Loss | None
    reduces: bool
    moves: bool
    catching_up: bool
    role: Literal["trains", "holds", "keeps"]
    nickname: Nickname
    """That the peer has chosen, for people; with one of its modules, else empty."""
    trained: Percent | None
    """Of the time lately; with the nickname."""
    places: tuple[Place, ...] = Field(max_length=MAX_ADDRESSES)
    """Where the peer can be dialled. libp2p's own search for a peer forgets and fails; this does not."""


class ManifestRecord(Message):
    """Where the newest manifest is: the operator's node says so."""

    revision: Index
    digest: Digest


class Statement(Message):
    """What a peer has to say about a topic; the topic's readers know what it means."""

    statement: bytes = Field(max_length=512)


class Goodbye(Message):
    """I am not there any more."""

    goodbye: Literal[True] = True


KINDS: tuple[type[Message], ...] = (AnnouncementRecord, Statement, ManifestRecord, Goodbye)
"""Every record that there is, the most frequent first."""

R = TypeVar("R", bound=Message)


def encode(payload: Message) -> bytes:
    """What is stored of a payload."""
    return bytes(msgpack.packb(list(payload.model_dump().values()), use_bin_type=True))


def decode(kind: type[R], payload: bytes) -> R | None:
    """The payload in a record; None when it is malformed, or another kind."""
    try:
        values = msgpack.unpackb(payload, raw=False, use_list=False, strict_map_key=True)
        if not isinstance(values, tuple) or len(values) != len(kind.model_fields):
            return None
        return kind.model_validate(dict(zip(kind.model_fields, values, strict=True)))
    except (ValueError, TypeError, ValidationError, msgpack.exceptions.UnpackException):
        return None


def is_a_record(payload: bytes) -> bool:
    """Whether it is a record of any kind; what is none is kept by nobody, so that nobody has to read it."""
    return any(decode(kind, payload) is not None for kind in KINDS)


def is_goodbye(payload: bytes) -> bool:
    return payload == _GOODBYE


def group_key(run: str, stage: int, module: ModuleId) -> str:
    return f"{run}/group/{stage}/{module}"


def topic_key(run: str, topic: str) -> str:
    return f"{run}/topic/{topic}"


def manifest_key(run: str) -> str:
    return f"{run}/manifest"


def encode_announcement(said: Announcement, addresses: Sequence[str]) -> bytes:
    """`addresses`: where its peer can be dialled, each with its name at the end."""
    record = AnnouncementRecord(
        path=said.path,
        version=said.version,
        digest=bytes.fromhex(said.digest),
        work=said.work,
        tokens=at_most(MAX_TOKENS, said.tokens),
        tokens_per_second=at_most(MAX_SPEED, said.tokens_per_second),
        loss=said.loss,
        reduces=said.reduces,
        moves=said.moves,
        catching_up=said.catching_up,
        role=said.role.value,
        nickname=said.card.nickname,
        trained=None if said.card.trained is None else round(100 * min(1.0, max(0.0, said.card.trained))),
        places=tuple(address.removesuffix(_ending(said.peer)) for address in addresses[:MAX_ADDRESSES]),
    )
    return encode(record)


def decode_announcement(
    signer: str, payload: bytes, stage: int, module: ModuleId
) -> tuple[Announcement, tuple[str, ...]]:
    """What a peer has stored about a module, and its addresses. Raises RemoteDataError when it is malformed."""
    record = decode(AnnouncementRecord, payload)
    if record is None or (record.role == "trains") == (record.path is None):
        raise RemoteDataError(signer, f"says something malformed about {module}")
    said = Announcement(
        peer=PeerName(signer),
        stage=stage,
        module=module,
        path=None if record.path is None else PathIndex(record.path),
        version=record.version,
        digest=record.digest.hex(),
        work=record.work,
        tokens=record.tokens,
        tokens_per_second=record.tokens_per_second,
        loss=record.loss,
        reduces=record.reduces,
        moves=record.moves,
        catching_up=record.catching_up,
        role=Role(record.role),
        card=Card(record.nickname, None if record.trained is None else record.trained / 100),
    )
    return said, tuple(place + _ending(signer) for place in record.places)


def _ending(peer: str) -> str:
    """Of the addresses of a peer."""
    return f"/p2p/{peer}"


_GOODBYE = encode(Goodbye())
