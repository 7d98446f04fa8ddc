"""Streams that other peers open to us: handed over by the daemon, each to the handler of its protocol."""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from pathlib import Path

from dipaco_swarm.swarm.border import Border
from dipaco_swarm.swarm.libp2p.pipe import Pipe, hand_streams_to, read_stream_info
from dipaco_swarm.swarm.tasks import Tasks
from dipaco_swarm.swarm.transport import Stream, StreamHandler

log = logging.getLogger(__name__)

MAX_STREAMS = 4096
"""Streams that others may have open to us at once; more are closed unheard."""

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
        self._server: asyncio.Server | None = None
        self._tasks = Tasks()

    async def serve(self, protocol: str, handler: StreamHandler) -> None:
        """Call `handler` with each stream that a peer opens for `protocol`; the stream closes when it returns."""
        if self._server is None:
            loop = asyncio.get_running_loop()
            self._server = await loop.create_unix_server(lambda: Pipe(self._accepted), self._socket)
        known = protocol in self._handlers
        self._handlers[protocol] = handler
        if not known:
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
            with self._stream_over(peer, pipe, address) as stream:
                await self._border.hear(peer, lambda: self._handlers[protocol](stream), address)
        except (EOFError, ConnectionError) as error:
            log.debug("a stream ended before it began: %s", error)
        finally:
            pipe.close()
