"""How each view is drawn: a view in, something that rich can print out. Pure.

Colours say one thing each: green is well, cyan is a number that moves, yellow wants a look, red wants a hand.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from rich import box
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.padding import Padding
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from dipaco_swarm.dashboard.views import (
    BootstrapView,
    Evaluation,
    Happened,
    ModuleStatus,
    ModuleView,
    PathStatus,
    PeerView,
    SwarmStatus,
    View,
    count,
    duration,
    names,
    plural,
    size,
    version_range,
)

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
MAX_ROWS = 12  # longer tables become a map, or the rows that need a look


def draw(view: View | Evaluation) -> RenderableType:
    """Any view."""
    match view:
        case PeerView():
            return draw_peer(view)
        case BootstrapView():
            return draw_bootstrap(view)
        case SwarmStatus():
            return draw_status(view)
        case Evaluation():
            return draw_evaluation(view)


def draw_peer(view: PeerView) -> RenderableType:
    """A volunteer's screen: what I do, how well it goes, with whom, and what was agreed."""
    where = "no path yet" if view.path is None else f"path {view.path} (of {view.num_paths})"
    loss = f"{view.losses[-1]:.3f}" if view.losses else "not yet"
    numbers = _facts(
        ("loss", loss, Sparkline(view.losses)),
        ("speed", f"{view.tokens_per_second:,.0f} tokens/s", Text(f"{count(view.tokens)} tokens so far", QUIET)),
        _traffic(view.bytes_sent, view.bytes_received),
        ("peers", f"{view.peers}", Text("share modules with you, you included", QUIET)),
        (
            "round",
            f"{view.rounds + 1}",
            Bar(view.round_progress, _next_round(view.next_round_seconds)),
        ),
    )
    agreed = Table.grid(padding=(0, 2), expand=True)
    agreed.add_column(width=9, style=QUIET, no_wrap=True)
    agreed.add_column(ratio=1)
    said = Text(view.last_agreed, GOOD) if view.last_agreed else Text("nothing yet; the first round is coming", QUIET)
    agreed.add_row("agreed", said)
    parts: list[RenderableType] = [_dot(view.activity), Text(), numbers, agreed]
    if view.modules:
        parts += [Text(), _module_table(view.modules)]
    parts += draw_events(view.events)
    title = _title(view.run, _stage(view.stage, view.stages), where)
    return frame(title, Group(*parts), "Ctrl+C saves, says goodbye and stops")


def draw_status(status: SwarmStatus) -> RenderableType:
    """The run as a whole: how far, how fast, who is where, what is in danger."""
    title = _title(status.run, _stage(status.stage, status.stages), "finished" if status.finished else None)
    return frame(title, _status_body(status))


def draw_bootstrap(view: BootstrapView) -> RenderableType:
    """The operator's screen: the run, and the address to give away, which stands free so that it can be copied."""
    status = view.status
    doing = Table.grid(padding=(0, 2), expand=True)
    doing.add_column()
    if view.progress is None:
        doing.add_row(_dot(view.activity))
    else:
        doing.add_column(ratio=1)
        doing.add_row(_dot(view.activity), Bar(view.progress, f"{view.progress:.0%}"))
    traffic = _traffic(view.bytes_sent, view.bytes_received)
    body = Group(doing, Text(), _status_body(status, traffic), *draw_events(view.events))
    title = _title(status.run, _stage(status.stage, status.stages), "bootstrap node")
    return Group(
        Text(" give this run address to volunteers:", QUIET),
        Text(view.address, style=f"{BOLD} {CALM}", overflow="fold"),
        frame(title, body, "Ctrl+C stops this node; peers go on training without it"),
    )


def draw_evaluation(result: Evaluation) -> RenderableType:
    """Perplexity per path and in all."""
    table = _table("path", "windows" if result.window else "documents", "tokens", "loss", "perplexity")
    for path in result.paths:
        table.add_row(
            str(path.path), f"{path.documents:,}", f"{path.tokens:,}", f"{path.loss:.4f}", f"{path.perplexity:,.2f}"
        )
    documents = sum(path.documents for path in result.paths)
    table.add_section()
    table.add_row(
        "all", f"{documents:,}", f"{result.tokens:,}", f"{result.loss:.4f}", f"{result.perplexity:,.2f}", style=BOLD
    )
    said = Text(
        f"{result.data}; the first {result.prefix_tokens} tokens of each document route it and are not scored", QUIET
    )
    if result.window:
        said.append(f"; routed anew every {result.window} {plural(result.window, 'token')}")
    title = _title(result.run, f"stage {result.stage}", "routed perplexity")
    return frame(title, Group(said, Text(), table))


def _status_body(status: SwarmStatus, *more: tuple[str, str, RenderableType]) -> RenderableType:
    unstaffed = len(status.paths) - status.staffed
    wanted = Text("every path is trained", QUIET)
    if unstaffed:
        wait = "waits" if unstaffed == 1 else "wait"
        advice = f"{unstaffed} {wait} for a volunteer; --path auto finds the way"
        wanted = Text(advice, QUIET if status.finished else WARN)
    loss = "not yet" if status.loss is None else f"{status.loss:.3f}"
    facts = _facts(
        ("peers", f"{status.peers} training", Text(f"{status.keepers} {plural(status.keepers, 'keeper')}", QUIET)),
        ("paths", f"{status.staffed} of {len(status.paths)} staffed", wanted),
        ("modules", f"{len(status.modules)}", _safety(status)),
        ("version", version_range(status.version_min, status.version_max), _target(status)),
        ("speed", f"{status.tokens_per_second:,.0f} tokens/s", _pace(status.round_seconds)),
        ("loss", loss, Text("" if status.loss is None else "mean of the paths that are trained", QUIET)),
        *more,
    )
    parts: list[RenderableType] = [facts, Text()]
    parts.append(_path_table(status) if len(status.paths) <= MAX_ROWS else PathMap(status.paths))
    troubled = [m for m in status.modules if m.holders < status.min_holders or not m.digests_agree]
    shown = status.modules if len(status.modules) <= MAX_ROWS else tuple(troubled[:MAX_ROWS])
    if shown:
        parts += [Text(), _holder_table(status, shown)]
    if len(shown) < len(status.modules) and len(troubled) > len(shown):
        parts.append(Text(f"and {len(troubled) - len(shown)} more like these", QUIET))
    return Group(*parts)


def _module_table(modules: Sequence[ModuleView]) -> Table:
    table = _table("module", "version", "shared by", "same bytes")
    for module in modules:
        peers = f"{module.peers} {plural(module.peers, 'peer')}"
        if module.paths > 1:
            shared = Text(f"{peers} of {module.paths} paths" if module.peers > 1 else "nobody else yet")
        else:
            shared = Text(f"{peers} of this path" if module.peers > 1 else "this path alone, stays here")
        if module.peers <= 1:
            shared.stylize(QUIET)
        table.add_row(module.name, str(module.version), shared, _agreement(module))
    return table


def _agreement(module: ModuleView) -> Text:
    if module.differ:
        return Text(f"{module.agree} of {module.agree + module.differ}, healing", WARN)
    return Text(f"{module.agree} of {module.agree}", GOOD) if module.agree > 1 else Text("-", QUIET)


def _path_table(status: SwarmStatus) -> Table:
    table = _table("path", "modules", "peers", "documents", "version", "tokens/s", "loss")
    for path in status.paths:
        table.add_row(
            str(path.index),
            " ".join(path.modules),
            Text(str(path.peers), GOOD) if path.peers else Text("none", WARN),
            f"{path.share:.0%}",
            version_range(path.version_min, path.version_max),
            f"{path.tokens_per_second:,.0f}" if path.peers else "-",
            "-" if path.loss is None else f"{path.loss:.3f}",
        )
    return table


def _holder_table(status: SwarmStatus, modules: Sequence[ModuleStatus]) -> Table:
    table = _table("module", "version", "trained by", "held by", "same bytes")
    for module in modules:
        style = BAD if not module.holders else WARN if module.holders < status.min_holders else GOOD
        held = Text(str(module.holders) if module.holders else "nobody", style)
        if module.keepers:
            others = f" ({module.keepers} {plural(module.keepers, 'keeper')})"
            held.append(" (keepers only)" if module.keepers == module.holders else others, QUIET)
        table.add_row(
            module.name,
            str(module.version),
            f"{module.peers} {plural(module.peers, 'peer')}",
            held,
            Text("yes", GOOD) if module.digests_agree else Text("no, healing", WARN),
        )
    return table


def _safety(status: SwarmStatus) -> Text:
    if status.lost:
        return Text(f"nobody serves {names(status.lost)}; bring back a peer that has it at home", BAD)
    if not status.digests_agree:
        return Text("holders disagree about a module; it heals with its next round", WARN)
    if status.under_held:
        return Text(f"fewer than {status.min_holders} holders: {names(status.under_held)}", WARN)
    return Text(f"all held by {status.min_holders} or more, same bytes everywhere", GOOD)


def _target(status: SwarmStatus) -> RenderableType:
    if status.target_version is None:
        return Text("this stage has no set end", QUIET)
    return Bar(status.version_min / status.target_version, f"of {status.target_version}")


def _pace(round_seconds: float | None) -> Text:
    return Text("" if round_seconds is None else f"an outer round in {duration(round_seconds)}", QUIET)


def _next_round(seconds: float | None) -> str:
    if seconds is None:
        return ""
    return "due now" if seconds < 1 else f"due in {duration(seconds)}"


def _traffic(sent: int, received: int) -> tuple[str, str, RenderableType]:
    return "traffic", f"↑ {size(sent)}", Text(f"↓ {size(received)}", BOLD)


def _stage(index: int, stages: int) -> str:
    return f"stage {index} (of {stages})"


def _title(run: str, *words: str | None) -> Text:
    title = Text.assemble(" ", (run, f"{BOLD} {CALM}"))
    for word in words:
        if word:
            title.append(f"  ·  {word}", QUIET if word != "finished" else GOOD)
    return title.append(" ")


def _dot(activity: str) -> Text:
    return Text.assemble(("● ", GOOD), (activity, BOLD))


def frame(title: Text, body: RenderableType, foot: str | None = None) -> Panel:
    return Panel(
        Padding(body, (1, 1)),
        title=title,
        title_align="left",
        subtitle=Text(f" {foot} ", QUIET) if foot else None,
        subtitle_align="right",
        box=box.ROUNDED,
        border_style=QUIET,
    )


def _facts(*rows: tuple[str, str, RenderableType]) -> Table:
    """Rows of a quiet word, a bold value, and a remark."""
    table = Table.grid(padding=(0, 2), expand=True)
    table.add_column(width=9, style=QUIET, no_wrap=True)
    table.add_column(min_width=16, style=BOLD, no_wrap=True)
    table.add_column(ratio=1)
    for row in rows:
        table.add_row(*row)
    return table


def _table(*columns: str) -> Table:
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
        table.add_row(event.clock, event.text)
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
        width = max(1, min(room, 48))
        filled = round(width * min(1.0, max(0.0, self.fraction)))
        bar = Text("━" * filled, style=CALM, no_wrap=True)
        bar.append("━" * (width - filled), QUIET)
        yield bar.append(f" {self.label}" if self.label else "", QUIET)


@dataclass(frozen=True)
class PathMap:
    """A path table too long for rows: one cell per path, in the order of the path table."""

    paths: tuple[PathStatus, ...]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        # a row of the map is what the table's first level keeps together, when that is regular and fits
        first = [path.modules[0] if path.modules else "" for path in self.paths]
        row = first.count(first[0])
        if any(len(set(first[i : i + row])) > 1 for i in range(0, len(first), row)):
            row = len(first)
        row = min(row, 32, max(1, (options.max_width - 16) // 2))
        yield Text.assemble(
            ("paths, by number of peers:  ", QUIET),
            ("· ", WARN),
            ("none  ", QUIET),
            ("1 ", CALM),
            ("one  ", QUIET),
            ("2 ", GOOD),
            ("more", QUIET),
        )
        for start in range(0, len(self.paths), row):
            line = Text(f"  {start:>5}  ", style=QUIET, no_wrap=True)
            for path in self.paths[start : start + row]:
                style = WARN if path.peers == 0 else CALM if path.peers == 1 else GOOD
                line.append("· " if path.peers == 0 else f"{path.peers} " if path.peers < 10 else "+ ", style)
            yield line


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
