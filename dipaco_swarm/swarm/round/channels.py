"""Control streams as a round sees them: over libp2p, or local between a leader and itself; and hearing silence."""

import asyncio
import logging
import math
import time
from collections.abc import Coroutine
from typing import Any, Protocol

from dipaco_swarm.swarm.wire import Message

log = logging.getLogger(__name__)

PULSE_SECONDS = 0.5
"""How often both ends of a quiet control stream say that they are alive."""
SILENCE_SECONDS = 8.0
"""Floor of the silence after which a frozen peer counts as gone; gaps seen on the stream raise it."""
MAX_SILENCE_SECONDS = 30.0
"""However slowly a peer has been talking, it counts as gone after this."""
ASK_SECONDS = 4.0
"""A peer with a live loop on a line of today answers a question in much less."""
MAX_ASK_SECONDS = 20.0
FORGET_SILENCE_SECONDS = 30.0
"""About as long as what a peer announces holds: one that is announced again is asked again."""


class Channel(Protocol):
    """Messages to and from one peer."""

    peer: str

    async def send(self, message: Message) -> None: ...
    async def receive(self) -> Message: ...
    def close(self) -> None: ...


class LocalChannel:
    """One end of a pair of queues, for the member that leads."""

    def __init__(
        self, peer: str, inbox: "asyncio.Queue[Message | None]", outbox: "asyncio.Queue[Message | None]"
    ) -> None:
        self.peer = peer
        self._inbox = inbox
        self._outbox = outbox

    @classmethod
    def pair(cls, peer: str) -> "tuple[LocalChannel, LocalChannel]":
        one: asyncio.Queue[Message | None] = asyncio.Queue()
        two: asyncio.Queue[Message | None] = asyncio.Queue()
        return cls(peer, one, two), cls(peer, two, one)

    async def send(self, message: Message) -> None:
        self._outbox.put_nowait(message)

    async def receive(self) -> Message:
        message = await self._inbox.get()
        if message is None:
            raise EOFError("the local channel is closed")
        return message

    def close(self) -> None:
        self._outbox.put_nowait(None)


class Ears:
    """Hears messages on a control stream, and notices silence.

    The allowed silence starts at SILENCE_SECONDS and grows with the longest gap that turned out not to be the end.
    """

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._longest_gap = 0.0

    async def hear(self) -> Message:
        """The next message. Raises EOFError when the other side is gone, TimeoutError when it is silent too long."""
        asked = time.monotonic()
        allowed = min(max(SILENCE_SECONDS, 3 * self._longest_gap), MAX_SILENCE_SECONDS)
        async with asyncio.timeout(allowed):
            message = await self._channel.receive()
        self._longest_gap = max(self._longest_gap, time.monotonic() - asked)
        return message


class Promptness:
    """How long to wait for the answer to a question: as the answers of late say, and twice that the second time.

    So a slow line, ours or theirs, costs a question and not the round. Who stays silent is not given more each time.
    """

    def __init__(self) -> None:
        self._slowest = 0.0
        self._silences: dict[str, tuple[int, float]] = {}
        """Of a peer: how many in a row, and when the last one was noticed."""

    @property
    def usual(self) -> float:
        """Seconds in which somebody who is there answers."""
        return min(max(ASK_SECONDS, 3 * self._slowest), MAX_ASK_SECONDS)

    def allowed(self, peer: str) -> float:
        """Seconds that the next question to this peer may take."""
        return min(2 * self.usual if self._silences_of(peer) == 1 else self.usual, MAX_ASK_SECONDS)

    def doubts(self, peer: str) -> bool:
        """Whether it has left our last question without an answer: somebody else is the better leader."""
        return self._silences_of(peer) > 0

    def misses(self, peer: str) -> bool:
        """Whether it has left several questions without an answer: asleep, or gone. Nobody waits for it just now."""
        return self._silences_of(peer) > 1

    def answered(self, peer: str, seconds: float) -> None:
        self.heard(peer)
        self._slowest = max(seconds, 0.9 * self._slowest)

    def heard(self, peer: str) -> None:
        self._silences.pop(peer, None)

    def silent(self, peer: str, asked: float) -> None:
        """A question of that time was not answered; several that were asked before one silence are the same one."""
        _, noticed = self._silences.get(peer, (0, -math.inf))
        if asked > noticed:
            self._silences[peer] = (self._silences_of(peer) + 1, time.monotonic())

    def _silences_of(self, peer: str) -> int:
        """Forgotten after a while: two that were parted would not speak to each other any more."""
        count, noticed = self._silences.get(peer, (0, -math.inf))
        return count if time.monotonic() - noticed < FORGET_SILENCE_SECONDS else 0


def supervise(tasks: set[asyncio.Task[None]], work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    """Run in the background, remembered in `tasks` until it ends; a bug in it is logged, not lost."""

    def ended(task: asyncio.Task[None]) -> None:
        tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            log.error("a background task ended with an error", exc_info=task.exception())

    task = asyncio.create_task(work)
    tasks.add(task)
    task.add_done_callback(ended)
    return task


async def end_all(tasks: set[asyncio.Task[None]]) -> None:
    """Cancel and wait."""
    running = list(tasks)
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)
