"""When a round that its leader does not end is given up: alive, and it decides nothing. Then the others are asked."""

from dataclasses import dataclass

from dipaco_swarm.swarm.timing import Timing

USUAL_LINE = 500_000
"""Bytes a second: so long as a module takes on such a line, both ways, an exchange may take whatever else is known."""
WHEN_READY, WHEN_NOT = 10.0, 4.0
"""So many times as long as it took until we had the average, and as long as it took until something moved last. A
leader waits three times as long for stragglers as all the others needed (`decision.py`)."""
MOST_DROPS = 8
"""So often something begins anew, as somebody was dropped."""
LONGEST = 16.0
"""All in all, so many times as long as nothing may move."""


class NeverEndsError(TimeoutError):
    """A leader is alive, and does not end a round that an honest one would have ended."""


@dataclass(frozen=True)
class Moved:
    """How far a round has come, as a member sees it."""

    pieces: int
    """Of ours with their reducers, of the average that are here, and of others that came to us as a reducer. There is
    an end of them, and not of bytes: who sends one now and then would hold us for ever."""
    generation: int
    """So often somebody was dropped."""
    is_ready: bool
    """Whether all of the average is here."""


class Overdue:
    """One round, as a member sees it that hears its leader."""

    def __init__(self, began: float, patience: float, size: int, timing: Timing, *, whole: bool) -> None:
        """`began`: when the roster came, by the clock of `check`. `patience`: seconds that we wait for others anyway,
        where a round waits for everybody (`whole`) also when we are ready. `size`: bytes of the vector as it travels.
        """
        self._began = began
        self._patience_when_ready = patience if whole else 0.0
        self._grace = timing.leader_grace
        # an honest leader ends it, or drops somebody, when nothing has moved for a standstill
        self._still = max(timing.standstill + timing.silence, patience, 2 * size / USUAL_LINE)
        self._ready_at: float | None = None
        self._pieces, self._generation = 0, 0
        self._piece_at = self._since = began

    def check(self, now: float, moved: Moved) -> None:
        """Raises NeverEndsError when it is overdue. `moved`: by now."""
        if self._generation < moved.generation <= MOST_DROPS:
            # what was here of those who were dropped is made anew, and counts once more
            self._generation, self._pieces, self._since = moved.generation, moved.pieces, now
        elif moved.pieces > self._pieces:
            self._pieces, self._piece_at, self._since = moved.pieces, now, now
        if moved.is_ready:
            self._ready_at = now if self._ready_at is None else self._ready_at
            allowed = max(WHEN_READY * (self._ready_at - self._began) + self._grace, self._patience_when_ready)
            is_over = now - self._ready_at > allowed
        else:
            self._ready_at = None
            allowed = max(self._still, WHEN_NOT * (self._piece_at - self._began))
            is_over = now - self._since > allowed or now - self._began > LONGEST * self._still
        if is_over:
            raise NeverEndsError(f"alive for {now - self._began:.0f} s, and decides nothing")
