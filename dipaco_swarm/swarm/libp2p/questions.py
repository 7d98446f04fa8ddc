"""The questions of the DHT's nodes, answered over streams of ours.

hivemind has its daemon answer them, which keeps what is sent to it until it is whole, however long that takes, and
whatever is not fetched: some bytes on each of some thousand streams, and it has taken all memory. So the daemon hands
these streams to us like all others. Whoever asks sees no difference: the framing is the daemon's.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator

from google.protobuf.message import DecodeError
from hivemind.proto import p2pd_pb2

from dipaco_swarm.errors import RemoteDataError
from dipaco_swarm.swarm.libp2p.pipe import Pipe
from dipaco_swarm.swarm.libp2p.protobuf import framed

Answer = Callable[[str, bytes], Awaitable[bytes]]
"""Peer and its question -> the answer."""

MAX_BYTES = 1 << 19
"""Of a question: what is stored together is less."""
QUESTION_SECONDS = 20.0
"""In which it has to be here..."""
ANSWER_SECONDS = 20.0
"""... and the answer has to be taken: who asks waits for a quarter of that."""
MAX_BYTES_UNDER_WAY = 1 << 26
"""Of answers that are not taken yet: twenty of the largest ones. Whoever takes its own at 10 Mbit/s has it in 3 s."""
AT_ONCE = 1 << 16
"""Bytes of it that are handed on: the rest is held once, and not in the buffers of a line that is full."""
MAX_LENGTH_BYTES = 4
"""Of the number before it, seven bits in each."""


class Answering:
    """Of all questions that are put to us at once."""

    def __init__(self) -> None:
        self._under_way: dict[Pipe, int] = {}
        """Bytes of each answer that is not taken yet, the oldest first."""

    async def answer(self, pipe: Pipe, peer: str, answer: Answer) -> None:
        """Read a question, and send what there is to say. Raises RemoteDataError, EOFError, ConnectionError or
        TimeoutError where the peer does not keep to that, or is too slow for those who came after it."""
        async with asyncio.timeout(QUESTION_SECONDS):
            asked = await _question(pipe, peer)
        whole = memoryview(_framed(asked.callId, await answer(peer, asked.callUnary.data)))
        with self._making_room(pipe, len(whole)):
            async with asyncio.timeout(ANSWER_SECONDS):
                for start in range(0, len(whole), AT_ONCE):
                    await pipe.write(whole[start : start + AT_ONCE])

    @contextlib.contextmanager
    def _making_room(self, pipe: Pipe, size: int) -> Iterator[None]:
        """Meanwhile there is an answer more. Where all are too much, those that take longest are given up."""
        while self._under_way and sum(self._under_way.values()) + size > MAX_BYTES_UNDER_WAY:
            oldest = next(iter(self._under_way))
            del self._under_way[oldest]
            oldest.abort()
        self._under_way[pipe] = size
        try:
            yield
        finally:
            self._under_way.pop(pipe, None)


def _framed(call: bytes, said: bytes) -> bytes:
    response = p2pd_pb2.CallUnaryResponse(response=said)
    return framed(p2pd_pb2.PersistentConnectionRequest(callId=call, unaryResponse=response))


async def _question(pipe: Pipe, peer: str) -> p2pd_pb2.PersistentConnectionRequest:
    length = 0
    for place in range(MAX_LENGTH_BYTES):
        (byte,) = await pipe.read_exactly(1)
        length |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            break
    else:
        raise RemoteDataError(peer, "asks the directory something without end")
    if length > MAX_BYTES:
        raise RemoteDataError(peer, f"asks the directory something of {length} bytes")
    asked = p2pd_pb2.PersistentConnectionRequest()
    try:
        asked.ParseFromString(await pipe.read_exactly(length))
    except DecodeError:
        raise RemoteDataError(peer, "asks the directory something malformed") from None
    return asked
