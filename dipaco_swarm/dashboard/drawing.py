"""How each view is drawn: a view in, something that rich can print out. Pure."""

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from dipaco_swarm.dashboard.shapes import (
    BAD,
    BOLD,
    CALM,
    GOOD,
    QUIET,
    WARN,
    AsManyAsFit,
    Bar,
    PathMap,
    Sparkline,
    bar,
    draw_events,
    facts,
    frame,
    table_of,
)
from dipaco_swarm.dashboard.views import (
    BootstrapView,
    Evaluation,
    LineView,
    ModuleStatus,
    ModuleView,
    PeerView,
    SwarmStatus,
    TimeView,
    View,
    duration,
    names,
    plural,
    version_range,
)
from dipaco_swarm.events.words import count, percent, size

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
    numbers = facts(
        ("loss", loss, Sparkline(view.losses)),
        ("speed", f"{view.tokens_per_second:,.0f} tokens/s", Text(_so_far(view), QUIET)),
        _trained(view.time),
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
    parts: list[RenderableType] = [_dot(view.activity), Text(), numbers, agreed, _line_table(view.sent, view.received)]
    if view.modules:
        parts += [Text(), _module_table(view.modules)]
    title = _title(view.run, _stage(view.stage, view.stages), where)
    body = AsManyAsFit(Group(*parts), view.events)
    return frame(title, body, "Ctrl+C saves, says goodbye and stops")


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
    table = table_of("path", "windows" if result.window else "documents", "tokens", "loss", "perplexity")
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
    about = facts(
        ("peers", f"{status.peers} training", Text(f"{status.keepers} {plural(status.keepers, 'keeper')}", QUIET)),
        ("paths", f"{status.staffed} of {len(status.paths)} staffed", wanted),
        ("modules", f"{len(status.modules)}", _safety(status)),
        ("version", version_range(status.version_min, status.version_max), _target(status)),
        ("speed", f"{status.tokens_per_second:,.0f} tokens/s", _pace(status.round_seconds)),
        ("loss", loss, Text("" if status.loss is None else "mean of the paths that are trained", QUIET)),
        *more,
    )
    parts: list[RenderableType] = [about, Text()]
    parts.append(_path_table(status) if len(status.paths) <= MAX_ROWS else PathMap(status.paths))
    troubled = [m for m in status.modules if m.holders < status.min_holders or not m.digests_agree]
    shown = status.modules if len(status.modules) <= MAX_ROWS else tuple(troubled[:MAX_ROWS])
    if shown:
        parts += [Text(), _holder_table(status, shown)]
    if len(shown) < len(status.modules) and len(troubled) > len(shown):
        parts.append(Text(f"and {len(troubled) - len(shown)} more like these", QUIET))
    return Group(*parts)


def _so_far(view: PeerView) -> str:
    return f"{count(view.tokens)} tokens so far" + (f", step {view.step:,}" if view.step else "")


def _trained(time: TimeView | None) -> tuple[str, str, RenderableType]:
    """What share of the time was trained."""
    if time is None:
        return "trained", "not yet", Text()
    lately = f"of the last {duration(time.lately_seconds)}"
    if time.seconds - time.lately_seconds > 60:
        lately += f"; {percent(time.share)} of {duration(time.seconds)}"
    return "trained", f"{percent(time.lately)} of the time", Text(lately, QUIET)


def _line_table(sent: LineView, received: LineView) -> Table:
    """What the line is used for."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style=QUIET, width=9)
    purposes = [purpose for purpose in sent.purposes if sent.purposes[purpose] or received.purposes.get(purpose)]
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


def _module_table(modules: Sequence[ModuleView]) -> Table:
    table = table_of("module", "version", "shared by", "same bytes", "on its way")
    for module in modules:
        peers = f"{module.peers} {plural(module.peers, 'peer')}"
        if module.paths > 1:
            shared = Text(f"{peers} of {module.paths} paths" if module.peers > 1 else "nobody else yet")
        else:
            shared = Text(f"{peers} of this path" if module.peers > 1 else "this path alone")
        if module.peers <= 1:
            shared.stylize(QUIET)
        table.add_row(module.name, str(module.version), shared, _agreement(module), _on_its_way(module))
    return table


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


def _path_table(status: SwarmStatus) -> Table:
    table = table_of("path", "modules", "peers", "documents", "version", "tokens/s", "loss")
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
    table = table_of("module", "version", "trained by", "held by", "same bytes")
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
