"""HTTP as uvicorn speaks it, but for who connects and does not ask: those are let go, and there are only so many.

uvicorn waits for a request without end, and refuses requests where there are many, not connections: one client that
sends half of a header on each of some hundred keeps everybody else out, and the program from opening files.
"""

from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

REQUEST_SECONDS = 10.0
"""From the first byte of a request, or from the beginning, to the end of its headers."""
MOST_OPEN = 8000
"""Connections; a program may open far more files than that (`machine/open_files.py`)."""


class ImpatientProtocol(H11Protocol):
    """One connection."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._giving_up: Any = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._await_request()
        if len(self.connections) > MOST_OPEN:
            transport.abort()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.conn.their_state is h11.IDLE:
            self._await_request()
        else:
            self._end_waiting()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_waiting()
        super().connection_lost(exc)

    def _await_request(self) -> None:
        if self._giving_up is None:
            self._giving_up = self.loop.call_later(REQUEST_SECONDS, self.transport.close)

    def _end_waiting(self) -> None:
        if self._giving_up is not None:
            self._giving_up.cancel()
            self._giving_up = None
