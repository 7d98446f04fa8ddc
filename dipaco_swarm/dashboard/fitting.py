"""What a screen shows when there is no room for all of it: the head always, then tables, then the newest events."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.segment import Segment, SegmentLines
from rich.text import Text

from dipaco_swarm.dashboard.shapes import QUIET, draw_events
from dipaco_swarm.dashboard.views import Happened

Lines = list[list[Segment]]
FRAME_LINES = 2
"""The border around it."""
FEWEST_EVENTS = 3
"""Whatever else there is, the newest ones are seen; wrapped ones are fewer."""


@dataclass(frozen=True)
class Rows:
    """A table that can do with fewer rows."""

    number: int
    """Of all its rows."""
    draw: Callable[[int], RenderableType]
    """It, with so many rows, the ones that want a look first; at least one."""
    of: str | None
    """What the rows are, modules; None: it says itself what is missing."""


@dataclass(frozen=True)
class Fitted:
    """A head, tables, and events, in as many lines as the terminal has; where there is no terminal, all of it."""

    head: RenderableType
    tables: Sequence[Rows]
    """Those that come first get their rows first."""
    events: tuple[Happened, ...]
    fewest_events: int = FEWEST_EVENTS
    above: Callable[[int], int] = lambda width: 0
    """Lines of the terminal that something else has, by its width."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        def lines(what: RenderableType) -> Lines:
            return console.render_lines(what, options, pad=False)

        head = lines(self.head)
        if not options.is_terminal:
            tables = [line for each in self.tables for line in lines(Group(Text(), each.draw(each.number)))]
            yield SegmentLines([*head, *tables, *lines(Group(*draw_events(self.events)))], new_lines=True)
            return
        room = console.height - FRAME_LINES - self.above(console.width)
        kept = _newest(self.events, self.fewest_events, room - len(head), lines)
        shown = head
        for table in self.tables:
            shown = shown + _table(table, room - len(shown) - len(kept), lines)
        below = _newest(self.events, len(self.events), room - len(shown), lines)
        yield SegmentLines([*shown, *below][: max(1, room)], new_lines=True)


def _table(table: Rows, room: int, lines: Callable[[RenderableType], Lines]) -> Lines:
    """It with as many rows as fit, and how many more there are; nothing where not even one does."""
    for number in range(min(table.number, max(0, room)), 0, -1):
        parts = [Text(), table.draw(number)]
        if number < table.number and table.of is not None:
            parts.append(Text(f"and {table.number - number} more {table.of}", QUIET))
        drawn = lines(Group(*parts))
        if len(drawn) <= room:
            return drawn
    return []


def _newest(events: tuple[Happened, ...], most: int, room: int, lines: Callable[[RenderableType], Lines]) -> Lines:
    """As many of the newest events as fit, `most` at most."""
    for number in range(min(most, len(events)), 0, -1):
        drawn = lines(Group(*draw_events(events[-number:])))
        if len(drawn) <= room:
            return drawn
    return []
