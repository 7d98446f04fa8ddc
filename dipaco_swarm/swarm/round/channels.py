"""Control streams as a round sees them: over libp2p, or local between a leader and itself; and hearing silence."""

import asyncio
import math
from typing import Protocol

from dipaco_swarm.machine.clock import Clock
from dipaco_swarm.swarm.timing import Timing
from dipaco_swarm.swarm.wire import Message


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


class HeartbeatReader:
    """Hears messages on a control stream, and notices silence.

    The allowed silence starts at `timing.silence` and grows with the longest gap that turned out not to be the end.
    """

    def __init__(self, channel: Channel, clock: Clock, timing: Timing) -> None:
        self._channel = channel
        self._clock = clock
        self._timing = timing
        self._longest_gap = 0.0

    async def hear(self) -> Message:
        """The next message. Raises EOFError when the other side is gone, TimeoutError when it is silent too long."""
        asked = self._clock.monotonic()
        allowed = min(max(self._timing.silence, 3 * self._longest_gap), self._timing.max_silence)
        async with asyncio.timeout(allowed):
            message = await self._channel.receive()
        self._longest_gap = max(self._longest_gap, self._clock.monotonic() - asked)
        return message


class FailureDetector:
    """How long to wait for the answer to a question: as the answers of late say, and twice that the second time.

    So a slow line, ours or theirs, costs a question and not the round. Who stays silent is not given more each time.
    """

    def __init__(self, clock: Clock, timing: Timing) -> None:
        self._clock = clock
        self._timing = timing
        self._slowest = 0.0
        self._silences: dict[str, tuple[int, float]] = {}
        """Of a peer: how many in a row, and when the last one was noticed."""

    @property
    def usual(self) -> float:
        """Seconds in which somebody who is there answers."""
        return min(max(self._timing.answer, 3 * self._slowest), self._timing.max_answer)

    def allowed(self, peer: str) -> float:
        """Seconds that the next question to this peer may take."""
        return min(2 * self.usual if self._silences_of(peer) == 1 else self.usual, self._timing.max_answer)

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
            self._silences[peer] = (self._silences_of(peer) + 1, self._clock.monotonic())
            # most of those who leave do not say so
            self._silences = {name: said for name, said in self._silences.items() if self._silences_of(name)}

    def _silences_of(self, peer: str) -> int:
        """Forgotten after a while: two that were parted would not speak to each other any more."""
        count, noticed = self._silences.get(peer, (0, -math.inf))
        return count if self._clock.monotonic() - noticed < self._timing.forget_silence else 0
