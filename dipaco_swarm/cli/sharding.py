"""`dipaco-bootstrap shard`: the corpus of a run, split by path, with a line about how far it has come."""

import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from dipaco_swarm.cli.operator_home import blob_in, folder_of, manifest_in
from dipaco_swarm.errors import SwarmError, UsageError
from dipaco_swarm.events import words

if TYPE_CHECKING:
    from dipaco_swarm.operator.sharding import SoFar

LINE_SECONDS = 10.0


def split_corpus(run_file: Path, out: Path, home: Path | None, device: str) -> None:
    """Raises SwarmError."""
    folder = folder_of(run_file, home)
    from dipaco_swarm.operator.sharding import Sharding, shares_of
    from dipaco_swarm.training.prepared import INDEX

    manifest = manifest_in(folder)
    sharding = Sharding(manifest, partial(blob_in, folder), out, device)
    if sharding.is_whole:
        typer.echo(f"{out} is whole already, split by the router of stage {manifest.stage.index}; nothing to do")
        return
    typer.echo(f"splitting the documents of {manifest.config.name} by the router of stage {manifest.stage.index}")
    line = _Line()
    try:
        index = sharding.work(line.tell)
    except KeyboardInterrupt:
        typer.echo(f"stopped; the same command goes on, with at most half a minute of work to do again ({out})")
        raise
    shares = [share for _, share in shares_of(index)]
    texts = sum(path.texts for path in index.paths)
    typer.echo(
        f"{words.count(index.documents)} training documents, {words.count(texts)} texts; a path has "
        f"{words.percent(min(shares))} to {words.percent(max(shares))} of the characters"
    )
    typer.echo(f"wrote {out / INDEX}; put the folder where peers read it, say data.prepared, and `extend` the run")


class _Line:
    """Says now and then how far it is."""

    def __init__(self) -> None:
        self._said = time.monotonic()
        self._first: SoFar | None = None

    def tell(self, so_far: "SoFar") -> None:
        self._first = self._first or so_far
        seconds = so_far.seconds - self._first.seconds
        if seconds <= 0 or time.monotonic() - self._said < LINE_SECONDS:
            return
        self._said = time.monotonic()
        characters = (so_far.characters - self._first.characters) / seconds
        texts = (so_far.texts - self._first.texts) / seconds
        typer.echo(
            f"{words.count(so_far.documents)} documents read, {words.count(so_far.characters)} characters "
            f"({words.count(int(characters))} a second); {words.count(so_far.texts)} texts routed ({texts:.0f})"
        )


def device_named(name: str) -> str:
    """Raises UsageError when it is not there."""
    from dipaco_swarm.peer.training_workbench import device_of

    try:
        return device_of(name)
    except SwarmError as error:
        raise UsageError(str(error)) from None
