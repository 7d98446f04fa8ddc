"""All that a stranger may send to a peer, drawn by a seed: whole messages, bent ones, and bytes that are none."""

import asyncio
import contextlib
from random import Random
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import msgpack
from pydantic.fields import FieldInfo

from dipaco_swarm.errors import RemoteDataError
from dipaco_swarm.swarm.fields import Message
from dipaco_swarm.swarm.framing import KINDS, PieceHeader, decode
from dipaco_swarm.swarm.local import LocalNetwork, LocalTransport
from dipaco_swarm.swarm.transport import Stream

EDGES = (0, 1, 2, 255, 2**31 - 1, 2**31, 2**48, 2**62 - 1, 2**63 - 1, -1)
FLOATS = (0.0, 1e-300, 1.0, 1e6, 1e12, 1e18, 1e19, 1e30, 1e31, 1e308, float("inf"), float("-inf"), float("nan"), -1.0)
WORDS = ("", "0" * 64, "a" * 64, "L0M0", "L9999M999999", "stranger", "\x1b[2J", "x" * 300)
"""Values at the borders of ranges; a field that they do not fit is what is tried."""

SIMPLE: dict[Any, tuple[Any, ...]] = {
    bool: (True, False),
    int: EDGES,
    float: FLOATS,
    str: WORDS,
    bytes: (b"", bytes(16), bytes(32)),
    type(None): (None,),
}


def message(random: Random, values: dict[str, tuple[Any, ...]] | None = None) -> dict[str, Any]:
    """The fields of a message of some kind, each within or near its range.

    `values`: what fields of these names may have besides, so that a message is about something that there is.
    """
    return fields_of(KINDS[random.choice(sorted(KINDS))], random, values or {})


def fields_of(kind: type[Message], random: Random, values: dict[str, tuple[Any, ...]]) -> dict[str, Any]:
    """The same of one kind; a new kind of message needs nothing here."""

    def value(name: str, field: FieldInfo) -> Any:
        if name in values and random.random() < 0.9:
            return random.choice(values[name])
        return drawn(Annotated[(field.annotation, *field.metadata)] if field.metadata else field.annotation, random)

    return {name: value(name, field) for name, field in kind.model_fields.items()}


def drawn(annotation: Any, random: Random) -> Any:
    """A value of a type; of one with bounds often one that is within them."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _bounded(arguments[0], arguments[1:], random)
    if origin is Literal:
        return random.choice(arguments)
    if origin in (Union, UnionType):
        return drawn(random.choice(arguments), random)
    if origin is tuple and arguments[-1] is Ellipsis:
        return [drawn(arguments[0], random) for _ in range(random.choice((0, 1, 1, 2, 3)))]
    if origin is tuple:
        return [drawn(argument, random) for argument in arguments]
    if isinstance(annotation, type) and issubclass(annotation, Message):
        return fields_of(annotation, random, {})
    return random.choice(SIMPLE[annotation])


def _bounded(annotation: Any, bounds: tuple[Any, ...], random: Random) -> Any:
    known = {
        name: getattr(part, name)
        for bound in bounds
        for part in (bound, *getattr(bound, "metadata", ()))
        for name in ("ge", "gt", "le", "lt", "min_length", "max_length", "pattern")
        if getattr(part, name, None) is not None
    }
    if random.random() < 0.1:
        return drawn(annotation, random)
    if annotation is int:
        low, high = known.get("ge", known.get("gt", -1) + 1), known.get("le", known.get("lt", 2**62) - 1)
        return random.choice((low, high, min(high, low + random.randrange(10))))
    if annotation is float:
        return random.choice((known.get("ge", known.get("gt", 0) + 1e-9), known.get("le", 1.0), 0.5))
    if annotation is bytes:
        return random.randbytes(known.get("min_length", random.randrange(min(64, known.get("max_length", 64)) + 1)))
    if annotation is str and "pattern" in known:
        return random.choice(("0" * 64, "L0M0", "L1M0", "a" * 64, "a" * 24))
    return drawn(annotation, random)


def body(random: Random, values: dict[str, tuple[Any, ...]] | None = None) -> bytes:
    """What a stranger sends as one message: mostly one that is well formed; now and then with something broken."""
    fields = message(random, values)
    if random.random() < 0.1:
        fields.pop(random.choice(sorted(fields)))
    if random.random() < 0.05:
        fields[random.choice(WORDS)] = random.choice(EDGES)
    data = bytes(msgpack.packb(fields))
    if random.random() < 0.1:
        at = random.randrange(len(data))
        data = data[:at] + random.randbytes(random.randrange(4)) + data[at + random.randrange(4) :]
    return data


class Visitor:
    """A stranger within a process who says anything, to whom he comes and to who comes to him. Used in the loop."""

    def __init__(self, network: LocalNetwork, seed: int, values: dict[str, tuple[Any, ...]]) -> None:
        """`values`: see `message`."""
        self._network = network
        self._random = Random(seed)
        self._values = values
        self.said = 0
        """Messages that were well formed."""
        self.refused = 0
        """Bodies that were not, and were refused as such."""

    async def visit(self, peer: str, protocol: str, name: str) -> None:
        """Open a stream under this name, say some things, and hang up."""
        transport = LocalTransport(self._network, name)
        with contextlib.suppress(ConnectionError):
            async with transport.dial(peer, protocol) as stream:
                await self.babble(stream)

    async def babble(self, stream: Stream) -> None:
        """Say some things on a stream. A peer that has hung up meanwhile is no error."""
        with contextlib.suppress(ConnectionError):
            for _ in range(self._random.randrange(1, 6)):
                if self._random.random() < 0.1:
                    await stream.send_piece(self._header(), memoryview(self._random.randbytes(64)))
                    continue
                try:
                    said = decode("stranger", body(self._random, self._values))
                except RemoteDataError:
                    self.refused += 1
                    continue
                await stream.send(said)
                self.said += 1
                await asyncio.sleep(0)

    def _header(self) -> PieceHeader:
        index, generation, size = self._random.choices((0, 1, 2, 2**31, 2**32 - 1), k=3)
        return PieceHeader(index, generation, self._random.randbytes(self._random.randrange(4)), size)
