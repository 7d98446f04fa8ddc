"""Notices about transient faults, rate limited: each is said once, then once a minute, and once when it is over."""

from collections.abc import Callable
from dataclasses import dataclass

from dipaco_swarm.events.event import Event, Fault
from dipaco_swarm.machine.clock import Clock

REMIND_SECONDS = 60.0
"""How often a fault that lasts is said again."""


@dataclass
class _Noticed:
    began: float
    said: float | None = None


class Notices:
    """Faults that last: each is said once, then once a minute with how long it has lasted, and once when it is over."""

    def __init__(self, report: Callable[[Event], None], clock: Clock) -> None:
        self._report = report
        self._clock = clock
        self._faults: dict[str, _Noticed] = {}

    def failing(self, what: str, fault: Fault, *, after: float = 0.0) -> None:
        """`what` does not work now. Call it as often as you notice. Says nothing in the first `after` seconds."""
        now = self._clock.boottime()
        noticed = self._faults.setdefault(what, _Noticed(now))
        lasted = now - noticed.began
        if noticed.said is None and lasted >= after:
            noticed.said = now
            self._report(fault)
        elif noticed.said is not None and now - noticed.said >= REMIND_SECONDS:
            noticed.said = now
            self._report(fault.after(lasted))

    def recovered(self, what: str, event: Event | None = None) -> None:
        """`what` works. Reports `event` if a notice had said that it does not."""
        noticed = self._faults.pop(what, None)
        if noticed is not None and noticed.said is not None and event is not None:
            self._report(event)
