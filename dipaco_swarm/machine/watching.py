"""Looks about once a second whether a program may work (`manners.py`), and remembers what its owner has asked for.

A pause that is asked for is a file in the program's home: it holds over restarts, and any other program can make it.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, time
from pathlib import Path
from typing import Protocol

from dipaco_swarm.machine.clock import SYSTEM_CLOCK, Clock
from dipaco_swarm.machine.manners import RUN, Decision, Hours, Pause, Situation, decide, is_calm, would_pause
from dipaco_swarm.machine.others import Battery, Line, Share

LOOK_SECONDS = 1.0
PAUSE_FILE = "paused"
"""In a home folder: whoever is there is asked to pause."""


class Manners(Protocol):
    """What a program asks before it works."""

    @property
    def now(self) -> Decision:
        """Never waits; from any thread."""
        ...


class AlwaysAtWork:
    """Nobody else uses this machine."""

    now: Decision = RUN


ALWAYS_AT_WORK = AlwaysAtWork()


def asks_for_pause(home: Path) -> bool:
    return (home / PAUSE_FILE).exists()


def ask_for_pause(home: Path) -> None:
    """Raises OSError."""
    home.mkdir(parents=True, exist_ok=True)
    (home / PAUSE_FILE).touch()


def let_go_on(home: Path) -> None:
    """Raises OSError."""
    (home / PAUSE_FILE).unlink(missing_ok=True)


def local_time() -> time:
    return datetime.now().time()


@dataclass(frozen=True)
class Sources:
    """Where facts come from; None: nobody wants to give way for that."""

    hours: Hours | None = None
    cpu: Share | None = None
    gpu: Share | None = None
    battery: Battery | None = None
    line: Line | None = None
    local_time: Callable[[], time] = local_time


class Watch:
    """`Manners` of a home folder. `look` decides anew; `looking` has a thread that does so."""

    def __init__(self, home: Path, sources: Sources, clock: Clock = SYSTEM_CLOCK) -> None:
        self._home = home
        self._sources = sources
        self._clock = clock
        self._lock = threading.Lock()
        self._busy_at = clock.monotonic()
        """When others last used more than counts as calm."""
        self._insists = False
        self.now: Decision = Pause("asked", "paused, as you asked") if asks_for_pause(home) else RUN

    def look(self) -> Decision:
        with self._lock:
            situation = self._situation()
            if not would_pause(situation):
                self._insists = False
            self.now = decide(situation)
            return self.now

    def toggle(self) -> None:
        """The owner's key: pause, or go on, whatever the pause is for. Raises OSError."""
        if not isinstance(self.now, Pause):
            ask_for_pause(self._home)
        else:
            let_go_on(self._home)
            self._insists = True
        self.look()

    def _situation(self) -> Situation:
        sources, at = self._sources, self._clock.monotonic()
        cpu = 0.0 if sources.cpu is None else sources.cpu.look()
        gpu = 0.0 if sources.gpu is None else sources.gpu.look()
        if not is_calm(cpu, gpu):
            self._busy_at = at
        return Situation(
            asked=asks_for_pause(self._home),
            insists=self._insists,
            hours=sources.hours,
            now=sources.local_time(),
            on_battery=sources.battery is not None and sources.battery.is_discharging(),
            on_metered=sources.line is not None and sources.line.is_metered(),
            cpu=cpu,
            gpu=gpu,
            paused_for=self.now.reason if isinstance(self.now, Pause) else None,
            calm_seconds=at - self._busy_at,
        )


@contextmanager
def looking(watch: Watch) -> Iterator[Watch]:
    """Within the block a thread looks about once a second."""
    over = threading.Event()

    def look() -> None:
        while not over.wait(LOOK_SECONDS):
            watch.look()

    thread = threading.Thread(target=look, name="manners", daemon=True)
    watch.look()
    thread.start()
    try:
        yield watch
    finally:
        over.set()
        thread.join()
