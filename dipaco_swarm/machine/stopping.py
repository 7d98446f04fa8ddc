"""Ctrl+C and SIGTERM as an event that loops wait on. The second one ends the process at once."""

import math
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Protocol

from dipaco_swarm.events.event import Event
from dipaco_swarm.events.volunteer import DaemonRestarts
from dipaco_swarm.machine.clock import SYSTEM_CLOCK, Clock


class Stopped(Exception):
    """Asked to stop in the middle of something long. Whoever began that is where it ends, silently."""


class Flag(Protocol):
    """What one side sets and another waits for. `threading.Event` is one."""

    def is_set(self) -> bool: ...

    def set(self) -> None: ...

    def wait(self, timeout: float | None = None) -> bool:
        """Until it is set, or for so many seconds; whether it is set."""
        ...


class Pauses(Protocol):
    """How a program waits: handed in, so that the same program waits in real and in virtual time."""

    @property
    def clock(self) -> Clock: ...

    def event(self) -> Flag:
        """A new one, not set yet."""
        ...

    def sleep(self, seconds: float) -> None: ...


class ThreadPauses:
    """The thread that asks stands still."""

    @property
    def clock(self) -> Clock:
        return SYSTEM_CLOCK

    def event(self) -> Flag:
        return threading.Event()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


THREAD_PAUSES = ThreadPauses()


class Stopping:
    """Whether this program was asked to stop, and whom to tell."""

    def __init__(self, pauses: Pauses = THREAD_PAUSES) -> None:
        self._pauses = pauses
        self._event = pauses.event()
        self._listeners: list[Callable[[], None]] = []
        self._last: list[Callable[[], None]] = []
        self.asked_at = math.inf
        """When this program was first asked to, by the monotonic clock of `pauses`."""

    def __call__(self) -> bool:
        return self._event.is_set()

    def request(self) -> None:
        """Ask to stop; safe in a signal handler and from any thread."""
        self.asked_at = min(self.asked_at, self._pauses.clock.monotonic())
        self._event.set()
        for listener in self._listeners:
            listener()

    def tell(self, listener: Callable[[], None]) -> None:
        """Call `listener` when asked to stop."""
        self._listeners.append(listener)
        if self():
            listener()

    def before_a_sudden_end(self, last: Callable[[], None]) -> None:
        """Call `last` when somebody does not wait for the program to stop; nothing else is done any more then."""
        self._last.append(last)

    def end_at_once(self, code: int) -> None:
        for last in self._last:
            last()
        os._exit(code)

    def until_then(self, pauses: Pauses | None = None) -> "Stopping":
        """For a part of this program, which may have to stop before all of it does, and may wait in its own way."""
        part = Stopping(pauses or self._pauses)
        self.tell(part.request)
        return part

    def wait(self, seconds: float) -> bool:
        """Sleep, but wake up when asked to stop; True then."""
        return self._event.wait(seconds)

    def pause(self, seconds: float) -> None:
        """Sleep, also when asked to stop already: for the last things that a program does."""
        self._pauses.sleep(seconds)


def until_stopped(take_part: Callable[[Stopping], bool], stop: Stopping, report: Callable[[Event], None]) -> None:
    """Take part in a swarm, and again whenever this machine's network daemon has ended under it.

    `take_part`: from opening the swarm to leaving it, with a stop of its own; says whether the swarm was lost.
    """
    with suppress(Stopped):
        while take_part(stop.until_then()) and not stop():
            report(DaemonRestarts())


@contextmanager
def stopping_on_signals() -> Iterator[Stopping]:
    """Within the block SIGINT and SIGTERM ask politely the first time, and end the process the second time."""
    stopping = Stopping()

    def handle(number: int, frame: FrameType | None) -> None:
        if stopping():
            stopping.end_at_once(128 + number)
        stopping.request()

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stopping
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
