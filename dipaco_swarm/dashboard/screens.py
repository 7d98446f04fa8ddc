"""Where a program says what is going on: live on a terminal, plain in a log, or nowhere."""

import errno
import logging
import math
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from rich.console import Console, Group
from rich.live import Live
from rich.padding import Padding

from dipaco_swarm.dashboard.drawing import draw
from dipaco_swarm.dashboard.metrics import Journal, metrics_file
from dipaco_swarm.dashboard.peer_drawing import Look
from dipaco_swarm.dashboard.shapes import EVENT_LINES, draw_events
from dipaco_swarm.dashboard.views import Happened, SwarmStatus, View
from dipaco_swarm.events.event import Event, Logged
from dipaco_swarm.machine.keys import Keys
from dipaco_swarm.settings import ScreenKind

REPEAT_SECONDS = 60.0  # a log line that comes every second is said so often
SUMMARY_SECONDS = 60.0  # how often a plain screen says how it is going between events


class Screen(Protocol):
    """Where a program says what is going on. Never raises, never blocks, any thread."""

    def show(self, view: View) -> None:
        """This is how things are now."""
        ...

    def event(self, event: Event) -> None:
        """This has just happened; people read it as one calm line."""
        ...


class LiveScreen:
    """The newest view, redrawn in place, with the last events below."""

    def __init__(self, live: Live, clock: Callable[[], str], look: Look) -> None:
        self._live = live
        self._clock = clock
        self._look = look
        self._events: deque[Happened] = deque(maxlen=EVENT_LINES)
        self._view: View | None = None

    def show(self, view: View) -> None:
        self._view = view
        self._draw()

    def event(self, event: Event) -> None:
        if event.for_people:
            self._events.append(Happened(self._clock(), str(event)))
            self._draw()

    def toggle_details(self) -> None:
        """Show more of the modules and less of the events, or the other way round."""
        self._look = replace(self._look, details=not self._look.details)
        self._draw()

    def _draw(self) -> None:
        view, events = self._view, tuple(self._events)
        if view is None:
            self._live.update(Padding(Group(*draw_events(events)), (0, 2)), refresh=True)
        elif isinstance(view, SwarmStatus):
            self._live.update(draw(view), refresh=True)
        else:
            self._live.update(draw(replace(view, events=view.events + events), self._look), refresh=True)


class PlainScreen:
    """A line per event, and now and then a line on how it is going. For logs and journals."""

    def __init__(
        self, write: Callable[[str], None], clock: Callable[[], str], now: Callable[[], float] = time.monotonic
    ) -> None:
        self._write = write
        self._clock = clock
        self._now = now
        self._summarised_at = -math.inf

    def show(self, view: View) -> None:
        if self._now() - self._summarised_at >= SUMMARY_SECONDS:
            self._summarised_at = self._now()
            self._write(f"{self._clock()}  {view.summary()}")

    def event(self, event: Event) -> None:
        if event.for_people:
            self._write(f"{self._clock()}  {event}")


class NoScreen:
    """Says nothing."""

    def show(self, view: View) -> None: ...

    def event(self, event: Event) -> None: ...


class RecordedScreen:
    """A screen whose events are also written down."""

    def __init__(self, screen: Screen, journal: Journal) -> None:
        self._screen = screen
        self._journal = journal

    def show(self, view: View) -> None:
        self._screen.show(view)

    def event(self, event: Event) -> None:
        self._journal.note(event)
        self._screen.event(event)


class _EventHandler(logging.Handler):
    """Turns our own log lines into events of the screen; one that comes again within a minute is not said again."""

    def __init__(self, screen: Screen, now: Callable[[], float] = time.monotonic) -> None:
        super().__init__(logging.INFO)
        self._screen = screen
        self._now = now
        self._said: dict[str, float] = {}

    def emit(self, record: logging.LogRecord) -> None:
        try:
            line = " ".join(record.getMessage().split())  # what a daemon said can have many lines
            now = self._now()
            self._said = {text: at for text, at in self._said.items() if now - at < REPEAT_SECONDS}
            if line not in self._said:
                self._said[line] = now
                self._screen.event(record.msg if isinstance(record.msg, Event) else Logged(line))
        except Exception:  # noqa: BLE001 - what logging asks of every handler
            self.handleError(record)


def recorded(screen: Screen, home: Path) -> Screen:
    """The same screen, whose events are also written to the metrics of a program with this home."""
    return RecordedScreen(screen, Journal(metrics_file(home)))


@contextmanager
def open_screen(kind: ScreenKind, console: Console | None = None, keys: Keys | None = None) -> Iterator[Screen]:
    """A screen of this kind, until the block ends. INFO lines of our own loggers become its events meanwhile.

    `keys`: of whoever looks at it.
    """
    console = console or Console()
    if kind == "live":
        with Live(console=console, auto_refresh=False, vertical_overflow="crop") as live:
            shown = LiveScreen(live, _time_of_day, Look(keys is not None))
            if keys is not None:
                keys.on("d", shown.toggle_details)
            with _events_from_logs(shown):
                yield shown
        return
    screen: Screen = PlainScreen(_line_writer(console), _time_of_day) if kind == "plain" else NoScreen()
    with _events_from_logs(screen):
        yield screen


@contextmanager
def _events_from_logs(screen: Screen) -> Iterator[None]:
    logger = logging.getLogger("dipaco_swarm")
    handler, level, propagate = _EventHandler(screen), logger.level, logger.propagate
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False  # the screen is where these lines go; nobody wants them twice
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        logger.propagate = propagate


def _line_writer(console: Console) -> Callable[[str], None]:
    def write(line: str) -> None:
        try:
            console.file.write(line + "\n")  # not console.print: a log line is never wrapped
            console.file.flush()
        except OSError as error:
            if error.errno != errno.ENOSPC:  # a log on a full disk has gaps, and the program goes on
                raise

    return write


def _time_of_day() -> str:
    return time.strftime("%H:%M:%S")
