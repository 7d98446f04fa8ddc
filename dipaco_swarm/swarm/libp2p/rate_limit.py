"""How fast a node may send: one budget for everything module-sized, shared evenly by the streams that want it."""

import asyncio
import time

STEP_SECONDS = 0.1
"""A paced stream writes this much of the budget at once, so that its turn and the others' come often."""
MIN_STEP_BYTES = 1 << 14


class RateLimit:
    """A budget of bytes per second. Who asks first is served first, a step at a time, so streams take turns.

    `bytes_per_second`: None is as fast as it goes.
    """

    def __init__(self, bytes_per_second: float | None) -> None:
        self._rate = bytes_per_second
        self._free_at = 0.0
        """When everything that was asked for so far will have been sent."""

    def step(self, most: int) -> int:
        """Bytes to ask for at once."""
        return most if self._rate is None else min(most, max(MIN_STEP_BYTES, int(self._rate * STEP_SECONDS)))

    async def take(self, size: int) -> None:
        """Wait until `size` bytes may be sent."""
        if self._rate is None:
            return
        now = time.monotonic()
        # what was not used is gone, but for one step: a late wake-up should not slow us down
        begin = max(self._free_at, now - STEP_SECONDS)
        self._free_at = begin + size / self._rate
        await asyncio.sleep(max(0.0, begin - now))  # also where there is nothing to wait for: others have their turn
