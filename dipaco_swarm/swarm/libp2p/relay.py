"""Relaying for peers that nobody can dial, as libp2p's daemon does it (circuit v2).

The daemon opens two relays at its start, one with the limits that it is given and one with libp2p's, which breaks a
connection after 128 KiB; whichever is ready last answers. So a node that relays asks itself, as anybody would, how much
it gives away, and starts its daemon again when that is not what it was told.
"""

import asyncio
from collections.abc import Sequence

from dipaco_swarm.swarm.libp2p.pipe import Pipe, open_stream

DATA_LIMIT = 1 << 40
"""Bytes through one relayed connection: rounds and rounds of a swarm. What is given away is bounded by the line."""
SERVICE = (
    "-relayService=1", "-relayTimeLimit=24h", f"-relayDataLimit={DATA_LIMIT}",
    # how many peers may wait behind us, and to how many others each may talk
    "-relayMaxReservations=1024", "-relayMaxCircuits=256", f"-relayBufferSize={1 << 16}",
    # libp2p relays only where it is sure that others can dial it
    "-forceReachabilityPublic=1",
)  # fmt: skip
"""What a bootstrap node's daemon is told."""
ANSWER_SECONDS = 5.0

_PROTOCOL = "/libp2p/circuit/relay/0.2.0/hop"
_RESERVE = b"\x02\x08\x00"
"""A message of two bytes: field 1, the type, is 0, "reserve"."""
_LIMIT, _DATA = 4, 2
"""Fields of the answer: the limit of a connection; in it, the bytes."""


def one_each(bootstraps: Sequence[str]) -> list[str]:
    """One address of each node, from elsewhere if it has one. libp2p waits for as many relays as it is told of."""
    chosen: dict[str, str] = {}
    for address in sorted(bootstraps, key=lambda address: address.startswith("/ip4/127.")):
        chosen.setdefault(address.rpartition("/p2p/")[2], address)
    return list(chosen.values())


async def data_limit(daemon: str, peer: str) -> int | None:
    """Bytes that a relay lets through in a connection; None: no limit. Asked through our daemon, at this socket.

    Raises TimeoutError, OSError, EOFError, ValueError or ControlFailure when it does not say.
    """
    async with asyncio.timeout(ANSWER_SECONDS):
        pipe = await open_stream(daemon, peer, _PROTOCOL)
        try:
            await pipe.write(_RESERVE)
            answer = fields(await pipe.read_exactly(await _length(pipe)))
        finally:
            pipe.close()
    limit = answer.get(_LIMIT)
    if limit is None:
        return None
    if isinstance(limit, int):
        raise ValueError("the relay's limit is not a message")
    data = fields(limit).get(_DATA, 0)
    if not isinstance(data, int):
        raise ValueError("the relay's limit of bytes is not a number")
    return data or None


async def _length(pipe: Pipe) -> int:
    number = await pipe.read_exactly(1)
    while number[-1] & 0x80:
        number += await pipe.read_exactly(1)
    return _number(number, 0)[0]


def fields(message: bytes) -> dict[int, int | bytes]:
    """The fields of a protobuf message of numbers and strings. Raises ValueError when it is something else."""
    found: dict[int, int | bytes] = {}
    at = 0
    while at < len(message):
        tag, at = _number(message, at)
        value, at = _number(message, at)
        if tag & 7 == 0:
            found[tag >> 3] = value
        elif tag & 7 == 2 and at + value <= len(message):
            found[tag >> 3] = message[at : at + value]
            at += value
        else:
            raise ValueError(f"not a message of numbers and strings: {message.hex()}")
    return found


def _number(message: bytes, at: int) -> tuple[int, int]:
    """A varint and where it ends."""
    number, shift = 0, 0
    for end in range(at, len(message)):
        number |= (message[end] & 0x7F) << shift
        shift += 7
        if not message[end] & 0x80:
            return number, end + 1
    raise ValueError("a message ends in the middle of a number")
