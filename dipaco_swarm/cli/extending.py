"""`dipaco-bootstrap extend`: says what changes, or what cannot and why, and tells the node."""

from pathlib import Path

import typer

from dipaco_swarm.errors import HomeError, RunFileError
from dipaco_swarm.run.file import read_run_file
from dipaco_swarm.run.growth import FIXED, changes_between, refused
from dipaco_swarm.run.orders import Extend
from dipaco_swarm.settings import default_home


def tell_to_extend(run_file: Path, home: Path | None) -> None:
    """Raises RunFileError when the run cannot go on by this run file, HomeError when there is no run."""
    config = read_run_file(run_file)
    folder = home or default_home(config.name, "bootstrap")
    from dipaco_swarm.operator.home import OperatorHome

    node = OperatorHome(folder)
    manifest = node.manifest_of_own()
    if manifest is None:
        raise HomeError(f"there is no run in {folder} to extend; give the --home that `serve` was given")
    began, asked = manifest.config.model.checkpoint, config.model.checkpoint
    if asked is not None and asked != began:  # nothing has to be read of it to know: it may be large, or not there
        raise RunFileError(f"model.from: {began!r} cannot become {asked!r}: {FIXED['model']}")
    if not config.model.is_described:
        from dipaco_swarm.training.pretrained import resolved  # torch loads only where a checkpoint is named

        config = resolved(config, manifest.config)
    from dipaco_swarm.training.pinning import pinned

    config = pinned(config, manifest.config)
    found = refused(manifest.config, config, manifest.stage.index)
    if found:
        raise RunFileError("; ".join(f"{problem.key}: {problem.what}" for problem in found))
    changes = changes_between(manifest.config, config)
    if not changes:
        typer.echo("this is the run file that the run goes by already; nothing to do")
        return
    node.order(Extend(config=config))
    for change in changes:
        typer.echo(str(change))
    typer.echo(
        "the node that serves the run follows within seconds, and so do its peers; one that is down, when it is up"
    )
