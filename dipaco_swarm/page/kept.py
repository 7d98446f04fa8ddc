"""Answers that take a while: made once in some seconds, whoever asks, and few at a time. The node trains beside us."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from anyio import CapacityLimiter, Lock, to_thread

FRESH_SECONDS = 5.0
MOST = 64
THREADS = 2


@dataclass
class _Made:
    at: float = 0.0
    data: bytes | None = None
    """None: it is being made."""
    making: Lock = field(default_factory=Lock)

    @property
    def is_old(self) -> bool:
        return self.data is not None and time.monotonic() - self.at > FRESH_SECONDS


class Kept:
    """In the server's loop."""

    def __init__(self) -> None:
        self._made: dict[str, _Made] = {}
        self._threads = CapacityLimiter(THREADS)

    async def get(self, key: str, make: Callable[[], bytes]) -> bytes:
        """What was made under this key a moment ago, or is being made for somebody else; `make` says it otherwise."""
        if key not in self._made or self._made[key].is_old:
            self._forget()
            self._made[key] = _Made()
        made = self._made[key]
        async with made.making:
            if made.data is None:
                made.data = await to_thread.run_sync(make, limiter=self._threads)
                made.at = time.monotonic()
            return made.data

    def _forget(self) -> None:
        self._made = {key: each for key, each in self._made.items() if not each.is_old}
        while len(self._made) >= MOST:
            del self._made[next(iter(self._made))]
