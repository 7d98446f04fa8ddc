"""Notices about transient faults, rate limited: each is said once, then once a minute, and once when it is over."""

from collections.abc import Callable
from dataclasses import dataclass

from dipaco_swarm.machine.clock import Clock

REMIND_SECONDS = 60.0
"""How often a fault that lasts is said again."""


def how_long(seconds: float) -> str:
    """A duration for people: 40 s, 3 min, 2 h."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.0f} h"


@dataclass
class _Fault:
    began: float
    said: float | None = None


class Notices:
    """Faults that last: each is said once, then once a minute with how long it has lasted, and once when it is over."""

    def __init__(self, say: Callable[[str], None], clock: Clock) -> None:
        self._say = say
        self._clock = clock
        self._faults: dict[str, _Fault] = {}

    def failing(self, what: str, line: str, *, after: float = 0.0) -> None:
        """`what` does not work now. Call it as often as you notice. Says nothing in the first `after` seconds."""
        now = self._clock.boottime()
        fault = self._faults.setdefault(what, _Fault(now))
        lasted = now - fault.began
        if fault.said is None and lasted >= after:
            fault.said = now
            self._say(line)
        elif fault.said is not None and now - fault.said >= REMIND_SECONDS:
            fault.said = now
            self._say(f"{line} (for {how_long(lasted)} now)")

    def recovered(self, what: str, line: str | None = None) -> None:
        """`what` works. Says `line` if a notice had said that it does not."""
        fault = self._faults.pop(what, None)
        if fault is not None and fault.said is not None and line is not None:
            self._say(line)
