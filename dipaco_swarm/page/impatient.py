"""HTTP as uvicorn speaks it, but for who does not ask or does not listen: those are let go, and there are only so many.

uvicorn waits without end for a request, for the rest of one that was answered before its end, and until an answer is
taken; and refuses requests where there are many, not connections. One client that does any of these on some hundred
keeps everybody else out, and the program from opening files.
"""

from collections import Counter
from typing import Any, ClassVar

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from dipaco_swarm.page.sites import site_of

REQUEST_SECONDS = 10.0
"""From the first byte of a request, or from the beginning, to the end of its headers; and from the end of an answer to
the end of what it answers."""
TAKE_SECONDS = 30.0
"""In which some of an answer has to be taken."""
MOST_OPEN = 8000
"""Connections; a program may open far more files than that (`machine/open_files.py`)."""
MOST_OF_ONE = 128
"""Connections of one client (`site_of`): a browser opens six, and a household or a school may be one."""


class ImpatientProtocol(H11Protocol):
    """One connection."""

    _of_site: ClassVar[Counter[str]] = Counter()

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._giving_up: Any = None
        self._taking: Any = None
        self._site: str | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._await_request()
        self._site = site_of(self.client[0]) if self.client else None
        if self._site is not None:
            self._of_site[self._site] += 1
        if len(self.connections) > MOST_OPEN or self._of_site[self._site or ""] > MOST_OF_ONE:
            transport.abort()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.conn.their_state is h11.IDLE or self._is_answered_early():
            self._await_request()
        else:
            self._end_waiting()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._is_answered_early():
            self._await_request()
        if self.transport.get_write_buffer_size():
            self._await_taking()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._await_taking()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._end_taking()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_waiting()
        self._end_taking()
        if self._site is not None:
            self._of_site[self._site] -= 1
            if not self._of_site[self._site]:
                del self._of_site[self._site]
        super().connection_lost(exc)

    def _is_answered_early(self) -> bool:
        """Whether the rest of a request still comes, which nobody waits for any more."""
        return self.conn.their_state is h11.SEND_BODY and self.conn.our_state is h11.DONE

    def _await_request(self) -> None:
        if self._giving_up is None:
            self._giving_up = self.loop.call_later(REQUEST_SECONDS, self.transport.close)

    def _end_waiting(self) -> None:
        if self._giving_up is not None:
            self._giving_up.cancel()
            self._giving_up = None

    def _await_taking(self) -> None:
        """Until what is to be sent now is taken, without an end as long as it becomes less."""
        self._end_taking()
        left = self.transport.get_write_buffer_size()
        self._taking = self.loop.call_later(TAKE_SECONDS, self._look_what_is_taken, left)

    def _look_what_is_taken(self, before: int) -> None:
        left = self.transport.get_write_buffer_size()
        if left >= before > 0:
            self.transport.abort()
        elif left:
            self._await_taking()

    def _end_taking(self) -> None:
        if self._taking is not None:
            self._taking.cancel()
            self._taking = None
