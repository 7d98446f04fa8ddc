"""Control streams as a round sees them: over libp2p, or local between a leader and itself; and hearing silence."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from dipaco_swarm.machine.clock import Clock
from dipaco_swarm.swarm.fields import Message
from dipaco_swarm.swarm.tasks import end_all
from dipaco_swarm.swarm.timing import Timing


class Channel(Protocol):
    """Messages to and from one peer."""

    peer: str
    address: str
    """Where the peer's connection comes from; empty where that is not known."""

    async def send(self, message: Message) -> None: ...
    async def receive(self) -> Message: ...
    def close(self) -> None: ...


class LocalChannel:
    """One end of a pair of queues, for the member that leads."""

    def __init__(
        self, peer: str, inbox: "asyncio.Queue[Message | None]", outbox: "asyncio.Queue[Message | None]"
    ) -> None:
        self.peer = peer
        self.address = ""
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
