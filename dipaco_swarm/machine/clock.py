"""The clocks of a program. They are handed in, so that the same code runs in real and in virtual time."""

import time
from typing import Protocol


class Clock(Protocol):
    """What time it is, three times. All in seconds; only differences of the first two mean anything."""

    def monotonic(self) -> float:
        """Never set, never back. For pauses and durations."""
        ...

    def boottime(self) -> float:
        """The same, but it also counts the time that a laptop sleeps, on Linux.

        Elsewhere it is the monotonic clock, which may stand still meanwhile: a sleep then looks like a clock set
        forward.
        """
        ...

    def wall(self) -> float:
        """Seconds since the epoch, as this machine believes. Other machines may believe something else."""
        ...


class SystemClock:
    """The clocks of this machine."""

    def monotonic(self) -> float:
        return time.monotonic()

    def boottime(self) -> float:
        if hasattr(time, "CLOCK_BOOTTIME"):
            return time.clock_gettime(time.CLOCK_BOOTTIME)
        return time.monotonic()

    def wall(self) -> float:
        return time.time()


SYSTEM_CLOCK = SystemClock()
