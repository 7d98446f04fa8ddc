"""Strangers who say anything: every kind of message and record, whole and bent, to every protocol and as every part.

What they say is drawn from the classes of the messages themselves, so a new kind is among it. More of it:
`python -m benchmarks.fuzz`.
"""

import contextlib
from random import Random

import msgpack
import pytest

from benchmarks.fuzz import play
from dipaco_swarm.algorithm.paths import ModuleId
from dipaco_swarm.errors import RemoteDataError
from dipaco_swarm.swarm import records
from dipaco_swarm.swarm.fields import Message
from dipaco_swarm.swarm.framing import KINDS, decode, encode
from dipaco_swarm.testing.stranger import body, fields_of


def test_every_kind_of_message_is_said_and_what_is_read_can_be_written() -> None:
    random, said = Random(1), set()
    refused: list[str] = []
    for _ in range(20_000):
        try:
            message = decode("stranger", body(random))
        except RemoteDataError as refusal:
            refused.append(str(refusal))
            continue
        said.add(type(message))
        assert decode("stranger", encode(message)) == message
    assert said == set(KINDS.values())
    assert all(line.isprintable() for line in refused)


@pytest.mark.parametrize("kind", records.KINDS)
def test_any_record_is_read_or_refused(kind: type[Message]) -> None:
    random, read = Random(kind.__name__), 0
    values = {"role": ("trains", "keeps"), "path": (0, None), "places": ((), ("/ip4/1.2.3.4/tcp/1",))}
    for _ in range(2000):
        payload = msgpack.packb(list(fields_of(kind, random, values).values()))
        payload = payload[: random.choice((len(payload), random.randrange(len(payload) + 1)))]
        read += records.is_a_record(payload)
        with contextlib.suppress(RemoteDataError):
            records.decode_announcement("stranger", payload, 0, ModuleId(0, 0))
    assert read


def test_whatever_strangers_say_nobody_has_made_a_mistake_and_honest_peers_agree() -> None:
    played = play(seed=1, seconds=4.0)
    assert played.said > 200
    assert played.mistakes == 0
    assert played.agreed
