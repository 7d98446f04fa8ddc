"""Relaying for peers that nobody can dial, as libp2p's daemon does it (circuit v2).

The daemon opens two relays at its start, one with the limits that it is given and one with libp2p's, which breaks a
connection after 128 KiB; whichever is ready last answers. The first is opened by a goroutine of its own. With one
processor that goroutine runs only when the main one waits, so its relay is the last.

A node that relays also asks itself, as anybody would, how much it gives away, and starts its daemon again when that is
not what it was told.

Who cannot be dialled makes its reservations itself (`reservations.py`). The daemon could (`-autoRelay`), and wants to
take part in IPFS's Kademlia for that, in which half an answer of anybody who connects costs 3 MiB.
"""

import asyncio
from collections.abc import Sequence

from hivemind.p2p.p2p_daemon_bindings.utils import read_unsigned_varint

from dipaco_swarm.swarm.addresses import is_on_this_machine, name_in
from dipaco_swarm.swarm.libp2p.pipe import open_stream
from dipaco_swarm.swarm.libp2p.protobuf import fields

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
ENVIRONMENT = {"GOMAXPROCS": "1"}
"""For a bootstrap node's daemon. With two processors up to 11 of 12 starts had libp2p's limits; with one, none."""
ANSWER_SECONDS = 5.0
MAX_ANSWER_BYTES = 1 << 12

_PROTOCOL = "/libp2p/circuit/relay/0.2.0/hop"
_RESERVE = b"\x02\x08\x00"
"""A message of two bytes: field 1, the type, is 0, "reserve"."""
_LIMIT, _STATUS, _DATA = 4, 5, 2
"""Fields of the answer: the limit of a connection, and what is answered; in the limit, the bytes."""
_OK = 100


def one_each(bootstraps: Sequence[str]) -> list[str]:
    """One address of each node, from elsewhere if it has one. libp2p waits for as many relays as it is told of."""
    chosen: dict[str, str] = {}
    for address in sorted(bootstraps, key=is_on_this_machine):
        chosen.setdefault(name_in(address), address)
    return list(chosen.values())


async def reserve(daemon: str, peer: str) -> int | None:
    """Ask a relay to let others come to us, for an hour, through our daemon at this socket, which takes them in.

    Returns the bytes that it lets through in a connection; None: no limit. Raises TimeoutError, OSError, EOFError,
    ValueError or ControlFailure when it does not.
    """
    async with asyncio.timeout(ANSWER_SECONDS):
        pipe = await open_stream(daemon, peer, _PROTOCOL)
        try:
            await pipe.write(_RESERVE)
            length = await read_unsigned_varint(pipe)
            if length > MAX_ANSWER_BYTES:
                raise ValueError(f"the relay announces an answer of {length} bytes")
            answer = fields(await pipe.read_exactly(length))
        finally:
            pipe.close()
    if answer.get(_STATUS) != _OK:
        raise ValueError(f"the relay says no: status {answer.get(_STATUS)!r}")
    limit = answer.get(_LIMIT)
    if limit is None:
        return None
    if isinstance(limit, int):
        raise ValueError("the relay's limit is not a message")
    data = fields(limit).get(_DATA, 0)
    if not isinstance(data, int):
        raise ValueError("the relay's limit of bytes is not a number")
    return data or None
