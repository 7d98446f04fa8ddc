"""What is done again and again beside training, and how seldom that must be."""

import math
from collections.abc import Callable
from typing import TypeVar

from dipaco_swarm.machine.clock import Clock

T = TypeVar("T")

SHARE = 0.01
"""Of the time, at most, for what is done so."""


class Sparing:
    """Does something so seldom that it takes `SHARE` of the time.

    What a group of four says is looked over in a tenth of a millisecond; of a thousand it takes several, which before
    every inner step would be some per cent of what a fast machine trains.
    """

    def __init__(self, clock: Clock, *, least: float = 0.0, most: float = math.inf) -> None:
        """`least`, `most`: seconds between two times, however long it takes."""
        self._clock = clock
        self._least, self._most = least, most
        self._due = -math.inf

    def do(self, work: Callable[[], T], otherwise: T) -> T:
        """What comes of it; `otherwise` where it is not time for it."""
        began = self._clock.monotonic()
        if began < self._due:
            return otherwise
        result = work()
        over = self._clock.monotonic()
        self._due = over + min(self._most, max(self._least, (over - began) / SHARE))
        return result
