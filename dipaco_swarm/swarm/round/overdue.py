"""When a round that its leader does not end is given up: alive, and it decides nothing. Then the others are asked."""

from dipaco_swarm.swarm.timing import Timing

WHEN_READY, WHEN_NOT = 10.0, 4.0
"""So many times as long as it took until we had the average, and as long as it took until a piece moved last. A leader
waits three times as long for stragglers as all the others needed (`decision.py`)."""


class NeverEndsError(TimeoutError):
    """A leader is alive, and does not end a round that an honest one would have ended."""


class Overdue:
    """One round, as a member sees it that hears its leader."""

    def __init__(self, began: float, patience: float, timing: Timing, *, whole: bool) -> None:
        """`began`: when the roster came, by the clock of `check`. `patience`: seconds that we wait for others anyway,
        where a round waits for everybody (`whole`) also when we are ready.
        """
        self._began = began
        self._patience, self._patience_when_ready = patience, patience if whole else 0.0
        self._grace = timing.leader_grace
        # an honest leader ends it, or drops somebody, when nothing has moved for a standstill
        self._still = timing.standstill + timing.silence
        self._ready_at: float | None = None
        self._moved, self._moved_at = 0, began

    def check(self, now: float, moved: int, *, is_ready: bool) -> None:
        """`moved`: pieces that have come or gone, by now. Raises NeverEndsError when it is overdue.

        Pieces, of which there is an end, and not bytes: who sends one now and then would hold us for ever.
        """
        if moved > self._moved:
            self._moved, self._moved_at = moved, now
        if not is_ready:
            self._ready_at = None
            needed = WHEN_NOT * (self._moved_at - self._began)
            since, allowed = self._moved_at, max(self._still, needed, self._patience)
        else:
            since = self._ready_at = now if self._ready_at is None else self._ready_at
            allowed = max(WHEN_READY * (since - self._began) + self._grace, self._patience_when_ready)
        if now - since > allowed:
            raise NeverEndsError(f"alive for {now - since:.0f} s, and decides nothing")
