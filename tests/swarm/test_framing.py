"""Messages at the border: what fits is read as it was written, and what does not ends as one short printable line."""

import math
import time
import typing

import msgpack
import pytest

from dipaco_swarm.algorithm.state import MAX_WORK
from dipaco_swarm.errors import RemoteDataError
from dipaco_swarm.swarm import fields, records
from dipaco_swarm.swarm.fields import MAX_INDEX, MAX_MEMBERS, MAX_NORM, MAX_SECONDS, MAX_SPEED, MAX_TOKENS, Message
from dipaco_swarm.swarm.framing import KINDS, MAX_MESSAGE_BYTES, PIECE, decode, encode
from dipaco_swarm.swarm.wire import Abort, Join, Reassign

JOIN = Join(
    stage=0,
    module="L0M0",
    version=3,
    digest="0" * 64,
    work=5,
    path=0,
    tokens=7,
    norm=1.0,
    parameters=10,
    reduces=True,
    nonce=bytes(16),
    patience=1.0,
)


def refusal(body: bytes) -> str:
    with pytest.raises(RemoteDataError) as refused:
        decode("stranger", body)
    return str(refused.value)


def changed(message: Message, **values: object) -> bytes:
    return bytes(msgpack.packb({**message.model_dump(), **values}))


def test_what_fits_is_read_as_it_was_written() -> None:
    moved = Reassign(gone=("a",), generation=MAX_INDEX, pieces=((0, 1), (5, 2)))
    assert [decode("peer", encode(message)) for message in (JOIN, moved)] == [JOIN, moved]


@pytest.mark.parametrize(
    ("name", "most"),
    [
        ("norm", MAX_NORM),
        ("uplink", MAX_SPEED),
        ("patience", MAX_SECONDS),
        ("tokens", MAX_TOKENS),
        ("work", MAX_WORK),
        ("version", MAX_INDEX),
        ("stage", MAX_INDEX),
        ("path", MAX_INDEX),
    ],
)
def test_a_number_has_a_range(name: str, most: float) -> None:
    decode("peer", changed(JOIN, **{name: most}))
    beyond = most * 1.01 if isinstance(most, float) else most + 1
    for value in (beyond, -1, math.nan, math.inf, "1", None):
        assert name in refusal(changed(JOIN, **{name: value}))


@pytest.mark.parametrize(
    ("said", "read"), [(0.0, 0.0), (5e-324, 0.0), (9e-4, 0.0), (1e-3, 1e-3), (MAX_SPEED, MAX_SPEED)]
)
def test_at_no_speed_that_is_read_something_takes_for_ever(said: float, read: float) -> None:
    """What divides by the speed of others ended the operator's node with an OverflowError, and a volunteer's screen."""
    join = decode("peer", changed(JOIN, uplink=said))
    assert isinstance(join, Join)
    assert join.uplink == read
    assert not read or round(MAX_WORK / read) > 0


def test_the_largest_generation_fits_the_header_of_a_piece() -> None:
    PIECE.pack(MAX_INDEX, MAX_INDEX, MAX_MEMBERS // 8, MAX_INDEX)
    assert "generation" in refusal(changed(Reassign(gone=(), generation=1, pieces=()), generation=2**40))


def test_the_work_of_a_round_of_the_most_tokens_fits() -> None:
    assert MAX_MEMBERS * MAX_TOKENS <= MAX_WORK < 1 << 63


def test_a_text_from_others_is_printable_wherever_it_is_shown() -> None:
    assert "printed" in refusal(changed(Abort(reason="no"), reason="gone\x1b[2J\nroot@home:~# "))
    for body in (
        msgpack.packb({"kind": "abort\x1b[2J"}),
        changed(Abort(reason="no"), **{"\x1b]0;title\x07\n": 1}),
        changed(Abort(reason="no"), **{"x" * 100_000: 1}),
    ):
        shown = refusal(body)
        assert shown.isprintable()
        assert len(shown) < 300


def nested(depth: int) -> bytes:
    return b"\x91" * depth + b"\xc0"


@pytest.mark.parametrize(
    "body",
    [
        # tuples of -1 and -2 have one hash: a map of them takes time squared
        pytest.param(
            msgpack.Packer().pack_map_pairs(
                [(tuple(-1 - (i >> bit & 1) for bit in range(15)), None) for i in range(1 << 15)]
            ),
            id="collide",
        ),
        pytest.param(msgpack.packb({"kind": "alive", "awaits_averages": [None] * 1_000_000}), id="long array"),
        pytest.param(msgpack.packb({"kind": "reassign", "gone": [[]] * 16_000}), id="wrong entries"),
        pytest.param(msgpack.packb({str(i): None for i in range(100_000)}), id="many fields"),
        pytest.param(nested(MAX_MESSAGE_BYTES - 1), id="deep"),
        pytest.param(b"\xdd\xff\xff\xff\xff", id="long promise"),
        pytest.param(b"", id="nothing"),
        pytest.param(b"\xc1" * 100, id="no msgpack"),
        pytest.param(msgpack.packb([1, 2]), id="no map"),
        pytest.param(msgpack.packb({"kind": ["alive"]}), id="kind of a list"),
        pytest.param(msgpack.packb({"kind": 10**18}), id="kind of a number"),
    ],
)
def test_no_message_takes_long_to_refuse(body: bytes) -> None:
    began = time.process_time()
    assert refusal(body).isprintable()
    assert time.process_time() - began < 0.5


def test_every_message_has_a_kind_of_its_own_and_only_bounded_fields() -> None:
    assert len(KINDS) == len(set(KINDS.values())) > 20
    for message in (*KINDS.values(), *(kind for kind in vars(records).values() if is_message(kind))):
        for name, field in message.model_fields.items():
            bare = {int, float, str, bytes} & set(parts_of(field.annotation))
            assert not bare or field.metadata, f"{message.__name__}.{name}: use a type of {fields.__name__}"


def is_message(kind: object) -> typing.TypeGuard[type[Message]]:
    return isinstance(kind, type) and issubclass(kind, Message)


def parts_of(annotation: object) -> list[object]:
    """All types in an annotation that have no bounds of their own."""
    if typing.get_origin(annotation) is typing.Annotated:
        return []
    arguments = typing.get_args(annotation)
    return [part for argument in arguments for part in parts_of(argument)] if arguments else [annotation]
