"""Ctrl+C and SIGTERM as an event that loops wait on. The second one ends the process at once."""

import math
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType


class Stopped(Exception):
    """Asked to stop in the middle of something long. Whoever began that is where it ends, silently."""


class Stopping:
    """Whether this program was asked to stop, and whom to tell."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self._listeners: list[Callable[[], None]] = []
        self.asked_at = math.inf
        """When this program was first asked to, by `time.monotonic`."""

    def __call__(self) -> bool:
        return self._event.is_set()

    def request(self) -> None:
        """Ask to stop; safe in a signal handler and from any thread."""
        self.asked_at = min(self.asked_at, time.monotonic())
        self._event.set()
        for listener in self._listeners:
            listener()

    def tell(self, listener: Callable[[], None]) -> None:
        """Call `listener` when asked to stop."""
        self._listeners.append(listener)
        if self():
            listener()

    def until_then(self) -> "Stopping":
        """For a part of this program, which may have to stop before all of it does."""
        part = Stopping()
        self.tell(part.request)
        return part

    def wait(self, seconds: float) -> bool:
        """Sleep, but wake up when asked to stop; True then."""
        return self._event.wait(seconds)


def until_stopped(take_part: Callable[[Stopping], bool], stop: Stopping, say: Callable[[str], None]) -> None:
    """Take part in a swarm, and again whenever this machine's network daemon has ended under it.

    `take_part`: from opening the swarm to leaving it, with a stop of its own; says whether the swarm was lost.
    """
    with suppress(Stopped):
        while take_part(stop.until_then()) and not stop():
            say("the network daemon of this machine ended; starting it again")


@contextmanager
def stopping_on_signals() -> Iterator[Stopping]:
    """Within the block SIGINT and SIGTERM ask politely the first time, and end the process the second time."""
    stopping = Stopping()

    def handle(number: int, frame: FrameType | None) -> None:
        if stopping():
            os._exit(128 + number)
        stopping.request()

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stopping
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
