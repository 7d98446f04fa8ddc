"""Questions that are asked again and again beside training, and how seldom that must be."""

import math
from collections.abc import Callable

from dipaco_swarm.machine.clock import Clock

SHARE = 0.01
"""Of the time, at most, to look for an answer."""
MOST_SECONDS = 1.0
"""Between two looks, however long one takes."""


class Sparing:
    """Asks a question so seldom that looking for its answer takes `SHARE` of the time, and once a second in any case.

    What a group of four says is looked over in a tenth of a millisecond; of a thousand it takes several, which before
    every inner step would be some per cent of what a fast machine trains.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._due = -math.inf

    def asked(self, question: Callable[[], bool]) -> bool:
        """Its answer; False where it is not time to ask."""
        began = self._clock.monotonic()
        if began < self._due:
            return False
        answer = question()
        over = self._clock.monotonic()
        self._due = over + min(MOST_SECONDS, (over - began) / SHARE)
        return answer
