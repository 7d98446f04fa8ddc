"""What drawings are made of: a frame, tables, bars, a row of little bars, a map of paths, events. Pure.

Colours say one thing each: green is well, cyan is a number that moves, yellow wants a look, red wants a hand.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from rich import box
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.padding import Padding
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from dipaco_swarm.dashboard.views import Happened, PathStatus

GOOD, CALM, WARN, BAD, QUIET, BOLD = "green", "cyan", "yellow", "red", "bright_black", "bold"
EVENT_LINES = 6
NUMBERS = {
    "version",
    "peers",
    "documents",
    "windows",
    "tokens",
    "tokens/s",
    "loss",
    "perplexity",
}  # columns set to the right


def frame(title: Text, body: RenderableType, foot: str | None = None, *, airy: bool = True) -> Panel:
    """`airy`: with blank lines above and below; for what has to fit into a terminal there is no room for them."""
    return Panel(
        Padding(body, (int(airy), 1)),
        title=title,
        title_align="left",
        subtitle=Text(f" {foot} ", QUIET) if foot else None,
        subtitle_align="right",
        box=box.ROUNDED,
        border_style=QUIET,
    )


def titled(run: str, *words: str | None) -> Text:
    """The title of a frame: a run's name and what else there is to say."""
    title = Text.assemble(" ", (run, f"{BOLD} {CALM}"))
    for word in words:
        if word:
            title.append(f"  ·  {word}", QUIET if word != "finished" else GOOD)
    return title.append(" ")


def facts(*rows: tuple[str, str, RenderableType]) -> Table:
    """Rows of a quiet word, a bold value, and a remark."""
    table = Table.grid(padding=(0, 2), expand=True)
    table.add_column(width=9, style=QUIET, no_wrap=True)
    table.add_column(min_width=16, style=BOLD, no_wrap=True)
    table.add_column(ratio=1)
    for row in rows:
        table.add_row(*row)
    return table


def table_of(*columns: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, header_style=QUIET, border_style=QUIET, show_edge=False, padding=(0, 2, 0, 0))
    for column in columns:
        table.add_column(column, justify="right" if column in NUMBERS else "left")
    return table


def draw_events(events: Sequence[Happened]) -> list[RenderableType]:
    if not events:
        return []
    table = Table.grid(padding=(0, 2), expand=True)
    table.add_column(style=QUIET, no_wrap=True, width=8)
    table.add_column(ratio=1)
    for event in events[-EVENT_LINES:]:
        is_newest = event is events[-1]  # the others were, and were read whole
        table.add_row(
            event.clock, Text(event.text, no_wrap=not is_newest, overflow="fold" if is_newest else "ellipsis")
        )
    return [Text(), table]


@dataclass(frozen=True)
class Sparkline:
    """Numbers over time as one row of little bars, as wide as there is room."""

    values: tuple[float, ...]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield Text(sparkline(self.values, min(options.max_width, 48)), style=CALM, no_wrap=True)


@dataclass(frozen=True)
class Bar:
    """A calm line that fills from the left."""

    fraction: float
    label: str = ""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        room = options.max_width - (len(self.label) + 1 if self.label else 0)
        yield bar(self.fraction, max(1, min(room, 48))).append(f" {self.label}" if self.label else "", QUIET)


def bar(fraction: float, width: int) -> Text:
    filled = round(width * min(1.0, max(0.0, fraction)))
    done = Text("━" * filled, style=CALM, no_wrap=True)
    return done.append("━" * (width - filled), QUIET)


@dataclass(frozen=True)
class PathMap:
    """A path table too long for rows: one cell per path, in the order of the path table."""

    paths: tuple[PathStatus, ...]
    most: int = 10**6
    """Rows that there is room for."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        # a row of the map is what the table's first level keeps together, when that is regular and fits
        first = [path.modules[0] if path.modules else "" for path in self.paths]
        row = first.count(first[0])
        if any(len(set(first[i : i + row])) > 1 for i in range(0, len(first), row)):
            row = len(first)
        widest = max(1, (options.max_width - 16) // 2)
        row = min(row, 32, widest)
        if len(self.paths) > row * self.most:
            row = widest
        yield Text.assemble(
            ("paths, by number of peers:  ", QUIET),
            ("· ", WARN),
            ("none  ", QUIET),
            ("1 ", CALM),
            ("one  ", QUIET),
            ("2 ", GOOD),
            ("more", QUIET),
        )
        shown = min(len(self.paths), row * self.most)
        for start in range(0, shown, row):
            line = Text(f"  {start:>5}  ", style=QUIET, no_wrap=True)
            for path in self.paths[start : start + row]:
                style = WARN if path.peers == 0 else CALM if path.peers == 1 else GOOD
                line.append("· " if path.peers == 0 else f"{path.peers} " if path.peers < 10 else "+ ", style)
            yield line
        if shown < len(self.paths):
            yield Text(f"and {len(self.paths) - shown} more paths", QUIET)


def sparkline(values: Sequence[float], width: int) -> str:
    """At most `width` bars; longer histories are averaged, and the newest values are always there."""
    finite = [value for value in values if math.isfinite(value)]
    if not finite or width < 1:
        return ""
    if len(finite) > width:
        edges = [len(finite) * i // width for i in range(width + 1)]
        finite = [math.fsum(finite[a:b]) / (b - a) for a, b in pairwise(edges)]
    low, high = min(finite), max(finite)
    bars = "▁▂▃▄▅▆▇█"
    if high == low:
        return bars[0] * len(finite)
    return "".join(bars[round((value - low) / (high - low) * (len(bars) - 1))] for value in finite)
