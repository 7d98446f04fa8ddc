"""How each view is drawn: a view in, something that rich can print out. Pure."""

from collections.abc import Sequence
from functools import partial

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from dipaco_swarm.dashboard.fitting import Fitted, Rows
from dipaco_swarm.dashboard.peer_drawing import Look, draw_peer
from dipaco_swarm.dashboard.shapes import (
    BAD,
    BOLD,
    CALM,
    GOOD,
    QUIET,
    WARN,
    Bar,
    PathMap,
    facts,
    frame,
    table_of,
    titled,
)
from dipaco_swarm.dashboard.views import (
    BootstrapView,
    Evaluation,
    ModuleStatus,
    PathStatus,
    PeerView,
    SwarmStatus,
    View,
    duration,
    names,
    plural,
    version_range,
)
from dipaco_swarm.events.words import company, size

MAX_ROWS = 12  # longer tables become a map, or the rows that need a look


def draw(view: View | Evaluation, look: Look | None = None) -> RenderableType:
    """Any view. `look`: how somebody at a keyboard wants to see it."""
    match view:
        case PeerView():
            return draw_peer(view, look or Look())
        case BootstrapView():
            return draw_bootstrap(view)
        case SwarmStatus():
            return draw_status(view)
        case Evaluation():
            return draw_evaluation(view)


def draw_status(status: SwarmStatus) -> RenderableType:
    """The run as a whole: how far, how fast, who is where, what is in danger."""
    title = titled(status.run, _stage(status.stage, status.stages), company(status.admission), _finished(status))
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
    head = Group(doing, _about(status, traffic))
    title = titled(status.run, _stage(status.stage, status.stages), "bootstrap node", company(status.admission))
    body = Fitted(head, _tables(status), view.events, above=lambda width: 1 - (-len(view.address) // width))
    return Group(
        Text(" give this run address to volunteers:", QUIET),
        Text(view.address, style=f"{BOLD} {CALM}", overflow="fold"),
        frame(title, body, "Ctrl+C stops this node; peers go on training without it", airy=False),
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
    title = titled(result.run, f"stage {result.stage}", "routed perplexity")
    return frame(title, Group(said, Text(), table))


def _status_body(status: SwarmStatus) -> RenderableType:
    parts: list[RenderableType] = [_about(status)]
    for table in _tables(status):
        parts += [Text(), table.draw(table.number)]
    troubled = [module for module in status.modules if _is_troubled(module, status)]
    if len(status.modules) > MAX_ROWS and len(troubled) > MAX_ROWS:
        parts.append(Text(f"and {len(troubled) - MAX_ROWS} more like these", QUIET))
    return Group(*parts)


def _about(status: SwarmStatus, *more: tuple[str, str, RenderableType]) -> Table:
    unstaffed = len(status.paths) - status.staffed
    wanted = Text("every path is trained", QUIET)
    if unstaffed:
        wait = "waits" if unstaffed == 1 else "wait"
        advice = f"{unstaffed} {wait} for a volunteer"
        wanted = Text(advice, QUIET if status.finished else WARN)
    loss = "not yet" if status.loss is None else f"{status.loss:.3f}"
    return facts(
        ("peers", f"{status.peers} training", Text(f"{status.keepers} {plural(status.keepers, 'keeper')}", QUIET)),
        ("paths", f"{status.staffed} of {len(status.paths)} staffed", wanted),
        ("modules", f"{len(status.modules)}", _safety(status)),
        ("version", version_range(status.version_min, status.version_max), _target(status)),
        ("speed", f"{status.tokens_per_second:,.0f} tokens/s", _pace(status.round_seconds)),
        ("loss", loss, Text("" if status.loss is None else "mean of the paths that are trained", QUIET)),
        *more,
    )


def _tables(status: SwarmStatus) -> list[Rows]:
    """Paths, then modules: all of them, or those that want a look where there are many."""
    if len(status.paths) > MAX_ROWS:
        paths = Rows(len(status.paths), partial(PathMap, status.paths), None)
    else:
        paths = Rows(len(status.paths), partial(_path_table, status.paths), "paths")
    order = sorted(status.modules, key=lambda module: not _is_troubled(module, status))  # stable
    if len(status.modules) > MAX_ROWS:
        order = [module for module in order if _is_troubled(module, status)][:MAX_ROWS]
    modules = Rows(len(order), lambda most: _holder_table(status, order[:most]), "modules")
    return [each for each in (paths, modules) if each.number]


def _is_troubled(module: ModuleStatus, status: SwarmStatus) -> bool:
    return module.holders < status.min_holders or not module.digests_agree


def _path_table(paths: Sequence[PathStatus], most: int) -> Table:
    """`most` of them: those first that nobody trains, and all in their order."""
    table = table_of("path", "modules", "peers", "documents", "version", "tokens/s", "loss")
    wanted = sorted(paths, key=lambda path: path.peers > 0)[:most]
    for path in sorted(wanted, key=lambda path: path.index):
        table.add_row(
            str(path.index),
            Text(" ".join(path.modules)),
            Text(str(path.peers), GOOD) if path.peers else Text("none", WARN),
            f"{path.share:.0%}",
            version_range(path.version_min, path.version_max),
            f"{path.tokens_per_second:,.0f}" if path.peers else "-",
            "-" if path.loss is None else f"{path.loss:.3f}",
        )
    return table


def _holder_table(status: SwarmStatus, modules: Sequence[ModuleStatus]) -> Table:
    table = table_of("module", "version", "trained by", "held by", "same bytes")
    for module in sorted(modules, key=status.modules.index):
        style = BAD if not module.holders else WARN if module.holders < status.min_holders else GOOD
        held = Text(str(module.holders) if module.holders else "nobody", style)
        if module.keepers:
            others = f" ({module.keepers} {plural(module.keepers, 'keeper')})"
            held.append(" (keepers only)" if module.keepers == module.holders else others, QUIET)
        table.add_row(
            Text(module.name),
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
    if not status.target_version:
        return Text("this stage has no set end", QUIET)
    return Bar(status.version_min / status.target_version, f"of {status.target_version}")


def _pace(round_seconds: float | None) -> Text:
    return Text("" if round_seconds is None else f"an outer round in {duration(round_seconds)}", QUIET)


def _traffic(sent: int, received: int) -> tuple[str, str, RenderableType]:
    return "traffic", f"↑ {size(sent)}", Text(f"↓ {size(received)}", BOLD)


def _finished(status: SwarmStatus) -> str | None:
    return "finished" if status.finished else None


def _stage(index: int, stages: int) -> str:
    return f"stage {index} (of {stages})"


def _dot(activity: str) -> Text:
    return Text.assemble(("● ", GOOD), (activity, BOLD))
