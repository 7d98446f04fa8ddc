"""Detection of sleep and of clock jumps: time that passed without this program."""

import threading
from collections.abc import Callable
from dataclasses import dataclass

from dipaco_swarm.events.event import Event
from dipaco_swarm.events.volunteer import ClockSet, Slept
from dipaco_swarm.machine.clock import Clock

LOOK_SECONDS = 1.0
ASLEEP_SECONDS = 10.0
"""A running program never keeps a thread from its turn for this long, however busy the machine."""
JUMP_SECONDS = 20.0
"""Ordinary corrections of the wall clock are smaller. After a larger one others take our announcements for old."""


@dataclass(frozen=True)
class Missed:
    """What happened to the clocks while we did not look."""

    asleep: float
    """Seconds that this program stood still."""
    set_by: float
    """Seconds by which the wall clock was set forward; negative: back."""

    @property
    def events(self) -> tuple[Event, ...]:
        """What there is to report."""
        slept = (Slept(self.asleep),) if self.asleep else ()
        return (*slept, ClockSet(self.set_by)) if self.set_by else slept


LookForSleep = Callable[[], Missed | None]
"""What happened to the clocks since the last call; None when nothing did."""


def never_asleep() -> Missed | None:
    """For programs whose clocks never jump: simulations and tests."""
    return None


class SleepDetector:
    """Notices that time passed without us: a laptop that slept, a process that was stopped, a clock that was set.

    Within its block a thread looks at the clocks once a second. When a look comes late, the program stood still: a long
    step of the training does not keep the thread from looking.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._looked, self._offset = self._look_at_clocks()
        self._asleep = self._set_by = 0.0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._keep_looking, name="sleep", daemon=True)

    def __enter__(self) -> "SleepDetector":
        self._looked, self._offset = self._look_at_clocks()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def missed(self) -> Missed | None:
        """What happened since the last call; None when nothing did."""
        self._look()
        with self._lock:
            missed = Missed(self._asleep, self._set_by)
            self._asleep = self._set_by = 0.0
        return missed if missed.asleep or missed.set_by else None

    def _keep_looking(self) -> None:
        while not self._over.wait(LOOK_SECONDS):
            self._look()

    def _look(self) -> None:
        with self._lock:
            now, offset = self._look_at_clocks()
            if now - self._looked > ASLEEP_SECONDS:
                self._asleep += now - self._looked
            if abs(offset - self._offset) > JUMP_SECONDS:
                self._set_by += offset - self._offset
            self._looked, self._offset = now, offset

    def _look_at_clocks(self) -> tuple[float, float]:
        """Seconds of the clock that counts sleep, and how far the wall clock is ahead of it."""
        now = self._clock.boottime()
        return now, self._clock.wall() - now
