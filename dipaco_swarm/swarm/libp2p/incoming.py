"""Streams that other peers open to us: handed over by the daemon, each to the handler of its protocol."""

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from dipaco_swarm.swarm.border import Border, counted
from dipaco_swarm.swarm.libp2p.pipe import Pipe, hand_streams_to, read_stream_info
from dipaco_swarm.swarm.libp2p.questions import Answer, Answering
from dipaco_swarm.swarm.tasks import Tasks
from dipaco_swarm.swarm.transport import Stream, StreamHandler

log = logging.getLogger(__name__)

MAX_STREAMS = 4096
"""Streams that others may have open to us at once; more are closed unheard."""

MAX_QUESTIONS_A_PEER = 8
"""Of the DHT, that one peer may have open to us: an answer may be large, and ours ask few at once."""

StreamOver = Callable[[str, Pipe, str], contextlib.AbstractContextManager[Stream]]
"""Peer, pipe and the address that the peer comes from -> a stream."""


class Incoming:
    """Everything that others open to us."""

    def __init__(self, daemon: str, stream_over: StreamOver, border: Border) -> None:
        """`daemon`: path of the socket at which it listens to us; we listen for its streams next to it."""
        self._daemon = daemon
        self._border = border
        self._stream_over = stream_over
        self._socket = f"{daemon}.in"
        self._handlers: dict[str, StreamHandler] = {}
        self._answers: dict[str, Answer] = {}
        self._answering = Answering()
        self._asking = Counter[str]()
        """Questions of each peer that are being answered."""
        self._server: asyncio.Server | None = None
        self._tasks = Tasks()

    async def serve(self, protocol: str, handler: StreamHandler) -> None:
        """Call `handler` with each stream that a peer opens for `protocol`; the stream closes when it returns."""
        known = protocol in self._handlers
        self._handlers[protocol] = handler
        if not known:
            await self._have_streams_of(protocol)

    async def answer(self, protocol: str, answer: Answer) -> None:
        """The same for questions of the DHT: each stream is one, and its answer."""
        self._answers[protocol] = answer
        await self._have_streams_of(protocol)

    async def _have_streams_of(self, protocol: str) -> None:
        if self._server is None:
            loop = asyncio.get_running_loop()
            self._server = await loop.create_unix_server(lambda: Pipe(self._accepted), self._socket)
        await hand_streams_to(self._daemon, self._socket, protocol)

    async def close(self) -> None:
        """Listen no more, and end the handlers that still run."""
        if self._server is not None:
            self._server.close()
            Path(self._socket).unlink(missing_ok=True)
        await self._tasks.end()

    def _accepted(self, pipe: Pipe) -> None:
        if len(self._tasks) < MAX_STREAMS:
            self._tasks.start(self._handle(pipe))
        else:
            pipe.close()

    async def _handle(self, pipe: Pipe) -> None:
        try:
            peer, address, protocol = await read_stream_info(pipe)
            if (answer := self._answers.get(protocol)) is not None:
                await self._border.hear(peer, lambda: self._answer(pipe, peer, answer), address)
                return
            with self._stream_over(peer, pipe, address) as stream:
                await self._border.hear(peer, lambda: self._handlers[protocol](stream), address)
        except (EOFError, ConnectionError) as error:
            log.debug("a stream ended before it began: %s", error)
        finally:
            pipe.close()

    async def _answer(self, pipe: Pipe, peer: str, answer: Answer) -> None:
        if self._asking[peer] >= MAX_QUESTIONS_A_PEER:
            log.debug("closed a question of peer %s unheard", peer[-8:])
            return
        with counted(self._asking, peer):
            await self._answering.answer(pipe, peer, answer)
