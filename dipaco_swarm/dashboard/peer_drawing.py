"""How a volunteer's screen is drawn: what I do, how well it goes, with whom, what was agreed, what the line is for."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from dipaco_swarm.dashboard.fitting import FEWEST_EVENTS, Fitted, Rows
from dipaco_swarm.dashboard.shapes import BOLD, GOOD, QUIET, WARN, Bar, Sparkline, bar, facts, frame, table_of, titled
from dipaco_swarm.dashboard.views import LineView, ModuleView, PeerView, TimeView, duration, plural
from dipaco_swarm.events.words import company, count, percent, size


@dataclass(frozen=True)
class Look:
    """How somebody wants to see a screen."""

    keys: bool = False
    """Whether there is a keyboard that is listened to."""
    details: bool = False
    """Whether modules have the room that events have otherwise."""


def draw_peer(view: PeerView, look: Look) -> RenderableType:
    """A volunteer's screen. On a terminal it is as long as that is, from 80 x 24."""
    where = "no path yet" if view.path is None else f"path {view.path} (of {view.num_paths})"
    loss = f"{view.losses[-1]:.3f}" if view.losses else "not yet"
    numbers = facts(
        ("loss", loss, Sparkline(view.losses)),
        ("speed", f"{view.tokens_per_second:,.0f} tokens/s", Text(_so_far(view), QUIET)),
        _trained(view.time),
        _share(view),
        ("round", f"{view.rounds + 1}", Bar(view.round_progress, "" if view.paused else _due(view.next_round_seconds))),
        _stage_end(view),
    )
    agreed = Table.grid(padding=(0, 2), expand=True)
    agreed.add_column(width=9, style=QUIET, no_wrap=True)
    agreed.add_column(ratio=1, no_wrap=True, overflow="ellipsis")
    said = Text(view.last_agreed, GOOD) if view.last_agreed else Text("nothing yet; the first round is coming", QUIET)
    agreed.add_row("agreed", said)
    dot = Text.assemble(("● ", WARN if view.paused else GOOD), (view.activity, BOLD))
    dot.no_wrap, dot.overflow = True, "ellipsis"
    head = Group(dot, numbers, agreed, _line_table(view.sent, view.received))
    modules = Rows(len(view.modules), partial(_module_table, view.modules), "modules")
    tables = [modules] if view.modules else []
    fewest = 1 if look.details else FEWEST_EVENTS
    title = titled(view.run, f"stage {view.stage} (of {view.stages})", where, company(view.admission))
    return frame(title, Fitted(head, tables, view.events, fewest), _foot(view, look), airy=False)


def _foot(view: PeerView, look: Look) -> str:
    if not look.keys:
        return "Ctrl+C saves, says goodbye and stops"
    keys = ("p go on" if view.paused else "p pause", "d events" if look.details else "d details")
    return "  ·  ".join((*keys, "q or Ctrl+C saves and leaves"))


def _so_far(view: PeerView) -> str:
    parts = [f"{count(view.tokens)} tokens"]
    if view.life_tokens > view.tokens:
        parts.append(f"{count(view.life_tokens)} in all")
    return ", ".join(parts)


def _trained(time: TimeView | None) -> tuple[str, str, RenderableType]:
    """What share of the time was trained."""
    if time is None:
        return "trained", "not yet", Text()
    lately = f"of the last {duration(time.lately_seconds)}"
    if time.seconds - time.lately_seconds > 60:
        lately += f"; {percent(time.share)} of {duration(time.seconds)}"
    return "trained", f"{percent(time.lately)} of the time", Text(lately, QUIET)


def _share(view: PeerView) -> tuple[str, str, RenderableType]:
    """What is mine of what we do together."""
    company = f"{view.peers - 1} {plural(view.peers - 1, 'other')}" if view.peers > 1 else "nobody else"
    if view.share is None:
        return "share", "none yet", Text(f"modules are shared with {company}", QUIET)
    said = "under 1 %" if 0 < view.share < 0.005 else percent(view.share)
    return "share", said, Text(f"of what my modules learned, with {company}", QUIET)


def _stage_end(view: PeerView) -> tuple[str, str, RenderableType]:
    """How much of the stage is done, and when it ends."""
    end, words = view.stage_end, [f"step {view.step:,}"] if view.step else []
    if end is None:
        return "stage", "no set end", Text(", ".join(words), QUIET)
    if end.seconds is not None and not view.paused:  # while it pauses nothing comes nearer
        words.append(f"{duration(end.seconds)} left")
    return (
        "stage",
        f"{min(end.version, end.last):.0f} of {end.last}",
        Bar(end.version / max(1, end.last), ", ".join(words)),
    )


def _due(seconds: float | None) -> str:
    if seconds is None:
        return ""
    return "due now" if seconds < 1 else f"due in {duration(seconds)}"


def _line_table(sent: LineView, received: LineView) -> Table:
    """What the line is used for."""
    purposes = [purpose for purpose in sent.purposes if sent.purposes[purpose] or received.purposes.get(purpose)]
    table = Table.grid(padding=(0, 2 if len(purposes) < 5 else 1))  # all five fit in 80 columns
    table.add_column(style=QUIET, width=9)
    columns = ("now", "so far", *purposes)
    for _ in columns:
        table.add_column(justify="right", min_width=8, no_wrap=True)
    table.add_row("line", *(Text(column, QUIET) for column in columns))
    for way, line in (("↑ sent", sent), ("↓ came", received)):
        table.add_row(
            way,
            Text(f"{size(round(line.per_second))}/s", BOLD),
            Text(size(line.total), BOLD),
            *(size(line.purposes.get(purpose, 0)) if line.purposes.get(purpose) else "-" for purpose in purposes),
        )
    return table


def _module_table(modules: Sequence[ModuleView], most: int) -> Table:
    """`most` of them: those first of which something is to be seen, and all in the order of their levels."""
    wanted = sorted(range(len(modules)), key=lambda i: (not _is_busy(modules[i]), i))[:most]
    table = table_of("module", "version", "shared by", "same bytes", "on its way")
    for module in (modules[i] for i in sorted(wanted)):
        peers = f"{module.peers} {plural(module.peers, 'peer')}"
        if module.paths > 1:
            shared = Text(f"{peers} of {module.paths} paths" if module.peers > 1 else "nobody else yet")
        else:
            shared = Text(f"{peers} of this path" if module.peers > 1 else "this path alone")
        if module.peers <= 1:
            shared.stylize(QUIET)
        table.add_row(Text(module.name), str(module.version), shared, _agreement(module), _on_its_way(module))
    return table


def _is_busy(module: ModuleView) -> bool:
    return bool(module.differ) or module.on_its_way is not None or module.catches_up_to is not None


def _agreement(module: ModuleView) -> Text:
    if module.differ:
        return Text(f"{module.agree} of {module.agree + module.differ}, healing", WARN)
    return Text(f"{module.agree} of {module.agree}", GOOD) if module.agree > 1 else Text("-", QUIET)


def _on_its_way(module: ModuleView) -> Text:
    """What comes of this module while training goes on."""
    if module.catches_up_to is not None:
        return Text(f"version {module.catches_up_to}", WARN)
    if module.on_its_way is None:
        return Text("-", QUIET)
    return bar(module.on_its_way, 6).append(f" {module.on_its_way:.0%}", QUIET)
