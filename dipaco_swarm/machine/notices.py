"""What is ordinary and passes, said calmly: faults that last for a while, and time that passed without us."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from dipaco_swarm.machine import clock

REMIND_SECONDS = 60.0
"""A fault that lasts is said so often."""
LOOK_SECONDS = 1.0
ASLEEP_SECONDS = 10.0
"""Nothing in a program that runs keeps a thread from its turn for so long, on however busy a machine."""
CLOCK_SECONDS = 20.0
"""The clock on the wall is corrected by less than this all the time; more, and others take our word for old."""


def how_long(seconds: float) -> str:
    """A duration for people: 40 s, 3 min, 2 h."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.0f} h"


@dataclass
class _Fault:
    began: float
    said: float | None = None


class Weather:
    """Faults that last: each is said once, then once a minute with how long it has lasted, and once when it is over."""

    def __init__(self, say: Callable[[str], None], now: Callable[[], float] = clock.seconds) -> None:
        self._say = say
        self._now = now
        self._faults: dict[str, _Fault] = {}

    def bad(self, what: str, line: str, *, after: float = 0.0) -> None:
        """`what` does not work at the moment; may be told as often as it is noticed. Silent for its first seconds."""
        now = self._now()
        fault = self._faults.setdefault(what, _Fault(now))
        lasted = now - fault.began
        if fault.said is None and lasted >= after:
            fault.said = now
            self._say(line)
        elif fault.said is not None and now - fault.said >= REMIND_SECONDS:
            fault.said = now
            self._say(f"{line} (for {how_long(lasted)} now)")

    def good(self, what: str, line: str | None = None) -> None:
        """`what` works; says `line` when it had been said that it does not."""
        fault = self._faults.pop(what, None)
        if fault is not None and fault.said is not None and line is not None:
            self._say(line)


@dataclass(frozen=True)
class Missed:
    """What happened to the clocks while we did not look."""

    asleep: float
    """Seconds that this program stood still."""
    set_by: float
    """Seconds by which the wall clock was set forward; negative: back."""

    @property
    def lines(self) -> tuple[str, ...]:
        """What to tell a person."""
        lines = []
        if self.asleep:
            lines.append(f"this machine was asleep for {how_long(self.asleep)}; looking where the group is")
        if self.set_by:
            way = "forward" if self.set_by > 0 else "back"
            lines.append(
                f"this machine's clock was set {way} by {how_long(abs(self.set_by))}; "
                "if it is wrong now, the others cannot hear us"
            )
        return tuple(lines)


class Awake:
    """Notices that time passed without us: a laptop that slept, a process that was stopped, a clock that was set.

    A thread looks at the clocks once a second. When a look comes late, the program stood still: a long step of the
    training does not keep the thread from looking.
    """

    def __init__(self, steady: Callable[[], float] = clock.seconds, wall: Callable[[], float] = time.time) -> None:
        self._steady = steady
        self._wall = wall
        self._lock = threading.Lock()
        self._looked, self._offset = steady(), wall() - steady()
        self._asleep = self._set_by = 0.0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._keep_looking, name="awake", daemon=True)

    def __enter__(self) -> "Awake":
        self._looked, self._offset = self._steady(), self._wall() - self._steady()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def missed(self) -> Missed | None:
        """What happened since the last call; None when nothing did."""
        self._look()
        with self._lock:
            missed = Missed(self._asleep, self._set_by)
            self._asleep = self._set_by = 0.0
        return missed if missed.asleep or missed.set_by else None

    def _keep_looking(self) -> None:
        while not self._over.wait(LOOK_SECONDS):
            self._look()

    def _look(self) -> None:
        with self._lock:
            now = self._steady()
            offset = self._wall() - now
            if now - self._looked > ASLEEP_SECONDS:
                self._asleep += now - self._looked
            if abs(offset - self._offset) > CLOCK_SECONDS:
                self._set_by += offset - self._offset
            self._looked, self._offset = now, offset
