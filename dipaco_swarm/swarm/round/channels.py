"""Control streams as a round sees them: over libp2p, or local between a leader and itself; and hearing silence."""

import asyncio
import math
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from dipaco_swarm.machine.clock import Clock
from dipaco_swarm.swarm.tasks import end_all
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
    In a round that waits for everybody, silence is a reason to ask: `is_there` says whether the other side is only
    slow, and then it may be silent for `patience` seconds.
    """

    def __init__(
        self,
        channel: Channel,
        clock: Clock,
        timing: Timing,
        is_there: Callable[[], Coroutine[Any, Any, bool]] | None = None,
        patience: float = 0.0,
    ) -> None:
        self._channel = channel
        self._clock = clock
        self._timing = timing
        self._is_there = is_there
        self.patience = patience
        self._longest_gap = 0.0

    async def hear(self) -> Message:
        """The next message. Raises EOFError when the other side is gone, TimeoutError when it is silent too long."""
        asked = self._clock.monotonic()
        if self._is_there is None:
            async with asyncio.timeout(self._allowed):
                message = await self._channel.receive()
        else:
            async with asyncio.timeout(self.patience):
                message = await self._hear_or_ask(self._is_there)
        self._longest_gap = max(self._longest_gap, self._clock.monotonic() - asked)
        return message

    @property
    def _allowed(self) -> float:
        """Seconds of silence that mean nothing."""
        return min(max(self._timing.silence, 3 * self._longest_gap), self._timing.max_silence)

    async def _hear_or_ask(self, is_there: Callable[[], Coroutine[Any, Any, bool]]) -> Message:
        """The next message; whenever there was none for too long, ask. Raises TimeoutError when nobody is there."""
        hearing = asyncio.create_task(self._channel.receive())
        try:
            while not hearing.done():
                await asyncio.wait({hearing}, timeout=self._allowed)
                if hearing.done():
                    break
                asking = asyncio.create_task(is_there())
                try:
                    await asyncio.wait({hearing, asking}, return_when=asyncio.FIRST_COMPLETED)
                    if not hearing.done() and not asking.result():
                        raise TimeoutError
                finally:
                    await end_all(asking)
            return hearing.result()
        finally:
            await end_all(hearing)


GONE_DIALS = 3
"""Dials that fail in a row, over `timing.silence` at least, before an announced peer is gone."""


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
        self._refused: dict[str, tuple[int, float]] = {}
        """Of a peer that cannot be dialled: how many dials failed in a row, and when the first one did."""
        self._lost: set[str] = set()

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
        self._refused.pop(peer, None)
        self._lost.discard(peer)

    def refused(self, peer: str) -> None:
        """It could not be dialled, and that was not for want of time."""
        count, since = self._refused.get(peer, (0, self._clock.monotonic()))
        self._refused[peer] = count + 1, since

    def is_gone(self, peer: str, *, announced: bool) -> bool:
        """Whether a peer that has just left us without an answer is gone, for a round that waits for everybody.

        Whose announcement counts still is gone when it cannot be dialled for a while; who is only silent is slow.
        """
        count, since = self._refused.get(peer, (0, math.inf))
        cut_off = count >= GONE_DIALS and self._clock.monotonic() - since >= self._timing.silence
        if cut_off or (not announced and self.doubts(peer)):
            self._lost.add(peer)
            return True
        return False

    def has_lost(self, peer: str) -> bool:
        """Whether it was found to be gone, and nothing was heard of it since."""
        return peer in self._lost

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
