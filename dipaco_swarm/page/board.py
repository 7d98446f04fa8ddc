"""The newest picture, as bytes that were made once for everybody who looks; and whoever waits for what comes next.

The thread that looks writes (`put`), coroutines of the server read. A viewer that has missed a few changes gets them
all, and one that has missed more the whole picture.
"""

import asyncio
import json
import threading
from collections import deque

from dipaco_swarm.page.picture import Picture, change

REMEMBERED = 30
"""Changes; one comes each second at most."""


def to_bytes(value: object) -> bytes:
    """Compact JSON. `<` is written so that it means nothing anywhere, should a browser take it for a page."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False, ensure_ascii=False)
    return text.replace("<", "\\u003c").encode("utf-8", "replace")


def message(event: str, number: int, data: bytes) -> bytes:
    """A server-sent event."""
    return b"event: %b\nid: %d\ndata: %b\n\n" % (event.encode(), number, data)


class Board:
    """Between the thread that looks and the server's loop."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._picture: Picture = {}
        self._number = 0
        self._changes: deque[tuple[int, bytes]] = deque(maxlen=REMEMBERED)
        self._whole: bytes | None = None
        """The picture as a message; None: not made since it changed."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._news = asyncio.Event()
        """Another one after each change."""
        self.closed = False
        self.viewers = 0
        """That wait for news just now."""

    @property
    def picture(self) -> Picture:
        return self._picture

    def put(self, picture: Picture) -> None:
        """This is how the run is now. From the thread that looks."""
        changed = change(self._picture, picture)
        if not changed:
            return
        with self._lock:
            self._picture = picture
            self._number += 1
            self._changes.append((self._number, message("change", self._number, to_bytes(changed))))
            self._whole = None
        self._wake()

    def close(self) -> None:
        """Let every viewer go."""
        self.closed = True
        self._wake()

    def _wake(self) -> None:
        loop = self._loop
        if loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(self._tell)

    def _tell(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()

    async def after(self, number: int, timeout: float) -> tuple[int, bytes]:
        """What has come since a number, once there is something, with the number now; nothing when time is over.

        `number`: 0 for the whole picture. In the server's loop.
        """
        self._loop, news = asyncio.get_running_loop(), self._news
        if self._number == number and not self.closed:
            try:
                async with asyncio.timeout(timeout):
                    await news.wait()
            except TimeoutError:
                return number, b""
        with self._lock:
            missed = [data for each, data in self._changes if each > number]
            if 0 < number <= self._number and len(missed) == self._number - number:
                return self._number, b"".join(missed)
            if self._whole is None:
                self._whole = message("all", self._number, to_bytes(self._picture))
            return self._number, self._whole
