"""`dipaco-bootstrap anchors` and `rollback`: what a run can go back to, and telling its node to."""

import json
import time
from collections.abc import Sequence
from pathlib import Path

import typer

from dipaco_swarm.cli.operator_home import folder_of, manifest_in, table
from dipaco_swarm.errors import UsageError
from dipaco_swarm.operator.anchors import Anchor, Anchors
from dipaco_swarm.operator.going_back import anchor_of
from dipaco_swarm.operator.home import OperatorHome
from dipaco_swarm.run.manifest import Manifest
from dipaco_swarm.run.orders import Rollback

COLUMNS = ("anchor", "made", "stage", "versions", "tokens", "loss", "held out", "")


def list_anchors(run: Path, home: Path | None, *, as_json: bool) -> None:
    """`run`: a run file, or the folder that `serve` keeps. Raises HomeError when there is no run."""
    folder = folder_of(run, home)
    manifest, anchors = manifest_in(folder), Anchors(folder).all()
    if as_json:
        typer.echo(json.dumps([_as_values(anchor, manifest) for anchor in anchors], indent=2))
        return
    if not anchors:
        every = manifest.config.anchors.every if manifest.config.anchors.keep else None
        typer.echo(
            "no anchors: [anchors] keep is 0" if every is None else f"no anchors yet; one every {every} versions"
        )
        return
    for line in table([COLUMNS, *(_row(anchor, manifest) for anchor in anchors)]):
        typer.echo(line)


def tell_to_go_back(run_file: Path, to: int, modules: Sequence[str], home: Path | None) -> None:
    """Raises UsageError when the run cannot go back to that anchor, HomeError when there is no run."""
    _check_names(modules)
    folder = folder_of(run_file, home)
    manifest = manifest_in(folder)
    order = Rollback(anchor=to, modules=tuple(dict.fromkeys(modules)))
    anchor, problem = anchor_of(order, Anchors(folder).all(), manifest.stage)
    if anchor is None:
        raise UsageError(f"the run cannot go back to anchor {to}: {problem}")
    OperatorHome(folder).order(order)
    names = order.modules or sorted(anchor.modules)
    for name in names[:20]:
        typer.echo(f"{name}: back to version {anchor.modules[name].version}")
    if len(names) > 20:
        typer.echo(f"... and {len(names) - 20} more")
    typer.echo(
        "what was trained since is dropped. The node that serves the run follows within seconds, and so do its peers; "
        "one that is down, when it is up"
    )


def _note(anchor: Anchor, manifest: Manifest) -> str:
    if anchor.stage != manifest.stage.index:
        return "of another stage"
    return "" if anchor.is_on(manifest.stage.generations) else "taken back since, or before"


def _row(anchor: Anchor, manifest: Manifest) -> tuple[str, ...]:
    lowest, highest = anchor.versions
    return (
        str(anchor.number),
        time.strftime("%Y-%m-%d %H:%M", time.localtime(anchor.made)),
        str(anchor.stage),
        str(lowest) if lowest == highest else f"{lowest} to {highest}",
        f"{max(module.tokens for module in anchor.modules.values()):,}",
        *("-" if loss is None else f"{loss:.3f}" for loss in (anchor.loss, anchor.held_out)),
        _note(anchor, manifest),
    )


def _as_values(anchor: Anchor, manifest: Manifest) -> dict[str, object]:
    return {**anchor.model_dump(mode="json"), "note": _note(anchor, manifest)}


def _check_names(modules: Sequence[str]) -> None:
    """Raises UsageError when one of these is no name of a module."""
    for name in modules:
        try:
            Rollback(anchor=1, modules=(name,))
        except ValueError:
            raise UsageError(f"{name!r} is not the name of a module; they are called L0M1: level 0, module 1") from None
