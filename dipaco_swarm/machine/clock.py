"""A clock that nobody sets, and that goes on while the machine sleeps."""

import time


def seconds() -> float:
    """Seconds since some moment; only differences mean anything. Counts the time that a laptop sleeps, on Linux.

    Elsewhere it is the monotonic clock, which may stand still meanwhile: a sleep then looks like a clock set forward.
    """
    if hasattr(time, "CLOCK_BOOTTIME"):
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.monotonic()
