"""A blob from one peer after the other; what has arrived is kept, and the next one goes on there.

Any peer will do as a source, as the whole is checked against the digest that it was asked by. When bytes of several
peers do not fit together, somebody of them lied: whoever sent the last of them sends all of it, alone, and that tells.

How long a blob is nobody knows before it is whole, so one that is slow on purpose could send for months. Who is slow
makes room for the next one while others wait, and gets a longer turn when all have been: then the line is ours. While
nothing comes, one more is asked every few seconds, a few at a time; who sends something first is gone on with alone.
Who was slow is asked last the next time: names cost nothing.
"""

import asyncio
import hashlib
import logging
import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dipaco_swarm.algorithm.forgetting import put_last
from dipaco_swarm.errors import RemoteDataError
from dipaco_swarm.swarm.states.slow import SlowPeers
from dipaco_swarm.swarm.tasks import end_all
from dipaco_swarm.swarm.traffic import Purpose
from dipaco_swarm.swarm.transport import Executor, Stream, Transport
from dipaco_swarm.swarm.wire import AskBlob, BlobFollows

log = logging.getLogger(__name__)

CHUNK = 1 << 18
"""Bytes; what is lost of a transfer that breaks off, and what has to arrive to count as progress."""
TURN_SECONDS = 20.0
"""That a peer may be slow for while others wait."""
SLOW_LINE = 50_000.0
"""Bytes a second: who sends more is not slow."""
HEDGE_SECONDS = 5.0
"""Nothing has come for so long: somebody else is asked at the same time."""
AT_ONCE = 4
"""Peers that are asked while nothing comes."""
MAX_UNFINISHED = 2
"""Blobs that could not be fetched whole; what has arrived of the last ones is kept for the next time."""


class _SlowError(Exception):
    """A peer has been slow for as long as it may be while others wait."""

    def __init__(self, pace: float) -> None:
        """`pace`: seconds that a byte took."""
        super().__init__()
        self.pace = pace


class _OvertakenError(Exception):
    """Somebody else has sent what was asked for, sooner."""


@dataclass(frozen=True)
class _Turn:
    """Of one peer."""

    peer: str
    seconds: float
    """That it may be slow for while others wait."""


class BlobDownload:
    """One blob on its way. What came stays here when `run` ends too early, and another `run` goes on."""

    def __init__(
        self,
        transport: Transport,
        compute: Executor,
        protocol: str,
        digest: str,
        slow: SlowPeers,
        purpose: Purpose = Purpose.JOINING,
    ) -> None:
        """`slow`: who is asked last, and noted when it was slow. `purpose`: what the blob is for."""
        self.digest = digest
        self._slow = slow
        self._purpose = purpose
        self._transport = transport
        self._compute = compute
        self._protocol = protocol
        self._received = bytearray()
        self._senders: set[str] = set()
        """Whom these bytes are of."""
        self._sender: str | None = None
        """Who sends at the moment; while somebody does, nobody else is asked."""
        self._liars: set[str] = set()

    @property
    def is_begun(self) -> bool:
        return bool(self._received)

    async def run(self, peers: Sequence[str], limit: int, on_progress: Callable[[], None]) -> bytes | None:
        """The blob from the first of `peers` that sends the rest of it; None when none does.

        `limit`: a blob of more bytes counts as missing. `on_progress` is called with every chunk.
        """
        waiting = deque(_Turn(peer, TURN_SECONDS) for peer in self._slow.last(peers))
        asked: dict[asyncio.Task[bytes | None], _Turn] = {}
        try:
            while waiting or asked:
                if waiting and self._sender is None and len(asked) < AT_ONCE:
                    turn = waiting.popleft()
                    if turn.peer in self._liars:
                        continue
                    seconds = turn.seconds if waiting or asked else None
                    asked[asyncio.create_task(self._take_from(turn.peer, limit, on_progress, seconds))] = turn
                await asyncio.wait(asked, timeout=HEDGE_SECONDS, return_when=asyncio.FIRST_COMPLETED)
                for task in [task for task in asked if task.done()]:
                    data = self._came(task, asked.pop(task), waiting)
                    if data is not None:
                        return data
        finally:
            await end_all(*asked)
        return None

    def _came(self, task: asyncio.Task[bytes | None], turn: _Turn, waiting: deque[_Turn]) -> bytes | None:
        """What came of a peer's turn; it may wait for another one."""
        peer = turn.peer
        try:
            data = task.result()
        except _OvertakenError:
            waiting.appendleft(turn)
        except _SlowError as error:
            log.info("fetching blob %s from another than peer %s, which is slow", self.digest[:8], peer[-8:])
            self._slow.note(peer, error.pace)
            waiting.append(_Turn(peer, 2 * turn.seconds))
        except RemoteDataError as error:
            self._transport.border.note(error, "takes a file from somebody else")
        except (ConnectionError, EOFError, TimeoutError) as error:
            log.info("fetching blob %s without peer %s: %s", self.digest[:8], peer[-8:], str(error) or "no answer")
            self._slow.note(peer, math.inf)
        else:
            if data is not None:
                self._slow.forget(peer)
            return data
        return None

    async def _take_from(
        self, peer: str, limit: int, on_progress: Callable[[], None], turn: float | None
    ) -> bytes | None:
        """Go on with this peer; None when it does not have the blob. `turn`: see `_receive`."""
        try:
            while await self._receive(peer, limit, on_progress, turn):
                whole = await self._compute.aside(_checked, self._received, self.digest)
                if whole is not None:
                    return whole
                alone = self._senders == {peer}
                self._received.clear()
                self._senders.clear()
                if alone:
                    self._liars.add(peer)
                    raise RemoteDataError(peer, f"sends a blob that is not {self.digest[:8]}, which it was asked for")
            return None
        finally:
            if self._sender == peer:
                self._sender = None

    async def _receive(self, peer: str, limit: int, on_progress: Callable[[], None], turn: float | None) -> bool:
        """Append what is missing; False when the peer does not have the blob.

        `turn`: seconds that it may be slow for; None: any. Raises _SlowError when it was.
        """
        now, came = asyncio.get_running_loop().time, 0
        begun = now()

        def goes_on(chunk: bytearray) -> None:
            nonlocal came
            came += len(chunk)
            on_progress()
            if turn is not None:
                deadline.reschedule(begun + turn + came / SLOW_LINE)

        try:
            async with asyncio.timeout(turn) as deadline, self._transport.dial(peer, self._protocol) as stream:
                stream.purpose = self._purpose
                return await self._append(stream, limit, goes_on)
        except TimeoutError as error:
            if deadline.expired():
                raise _SlowError((now() - begun) / max(1, came)) from error
            raise

    async def _append(self, stream: Stream, limit: int, goes_on: Callable[[bytearray], None]) -> bool:
        peer, received = stream.peer, self._received
        at = len(received)
        await stream.send(AskBlob(digest=self.digest, offset=at))
        async with asyncio.timeout(self._transport.timing.dial):
            answer = await stream.receive()
        if not isinstance(answer, BlobFollows):
            return False
        if answer.size > limit:
            raise RemoteDataError(peer, f"offers a blob of {answer.size} bytes where {limit} are the most")
        if len(received) != at:
            raise _OvertakenError
        if at == answer.size:
            self._senders.add(peer)  # it says that this is all
        while at < answer.size:  # else somebody has sent too much: what is here is no part of the blob
            chunk = bytearray(min(CHUNK, answer.size - at))
            await stream.receive_into(memoryview(chunk))
            if len(received) != at:
                raise _OvertakenError
            received += chunk
            at += len(chunk)
            self._senders.add(peer)
            self._sender = peer
            goes_on(chunk)
        return True


class BlobFetches:
    """Blobs from others. What has arrived of the last ones that did not come whole is gone on with."""

    def __init__(self, transport: Transport, compute: Executor, protocol: str, slow: SlowPeers) -> None:
        self._transport = transport
        self._slow = slow
        self._compute = compute
        self._protocol = protocol
        self._unfinished: dict[str, BlobDownload] = {}

    async def fetch(
        self,
        peers: Sequence[str],
        digest: str,
        limit: int,
        patience: float | None,
        purpose: Purpose = Purpose.JOINING,
    ) -> bytes | None:
        """A blob from others, going on where it was left the last time. Arguments as those of `Store.fetch_blob`."""
        download = self._unfinished.pop(digest, None)
        if download is None:
            download = BlobDownload(self._transport, self._compute, self._protocol, digest, self._slow, purpose)
        data = None
        try:
            data = await _while_it_comes(download, peers, limit, patience)
        finally:
            if data is None and download.is_begun:
                put_last(self._unfinished, digest, download, MAX_UNFINISHED)
        return data


async def _while_it_comes(
    download: BlobDownload, peers: Sequence[str], limit: int, patience: float | None
) -> bytes | None:
    """A blob, however long it takes, as long as something of it arrives within each `patience` seconds."""
    now = asyncio.get_running_loop().time
    try:
        async with asyncio.timeout(patience) as deadline:
            on_progress = lambda: None if patience is None else deadline.reschedule(now() + patience)  # noqa: E731
            return await download.run(peers, limit, on_progress)
    except TimeoutError:
        return None


def _checked(received: bytearray, digest: str) -> bytes | None:
    data = bytes(received)
    return data if hashlib.sha256(data).hexdigest() == digest else None
