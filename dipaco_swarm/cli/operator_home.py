"""Of commands that look at the folder that `dipaco-bootstrap serve` keeps, whether or not it serves just now."""

from collections.abc import Sequence
from pathlib import Path

from dipaco_swarm.errors import HomeError
from dipaco_swarm.operator.home import OperatorHome
from dipaco_swarm.run.file import read_run_file
from dipaco_swarm.run.manifest import Manifest
from dipaco_swarm.run.register import Register
from dipaco_swarm.settings import default_home


def folder_of(run: Path, home: Path | None) -> Path:
    """`run`: a run file, or the folder itself. Raises RunFileError."""
    return home or (run if run.is_dir() else default_home(read_run_file(run).name, "bootstrap"))


def manifest_in(folder: Path) -> Manifest:
    """What was published last. Raises HomeError when there is no run."""
    manifest = OperatorHome(folder).manifest_of_own()
    if manifest is None:
        raise HomeError(f"there is no run in {folder}; give the --home that `serve` was given")
    return manifest


def blob_in(folder: Path, digest: str) -> bytes:
    """A file of the run. Raises HomeError when it is not there."""
    try:
        return (folder / "blobs" / digest).read_bytes()
    except OSError:
        raise HomeError(f"{folder} lacks the run's file {digest[:12]}; have `serve` fetch it first") from None


def register_in(folder: Path, manifest: Manifest) -> Register:
    """Of who is admitted and banned; an empty one where nobody is. Raises HomeError, and ManifestError when damaged."""
    return Register() if manifest.peers is None else Register.read(blob_in(folder, manifest.peers))


def table(rows: Sequence[Sequence[str]], *, left: bool = False) -> list[str]:
    """Lines with the columns below each other. `left`: to the left, as words are."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    cells = [[f"{cell:{'<' if left else '>'}{width}}" for cell, width in zip(row, widths, strict=True)] for row in rows]
    return ["  ".join(line).rstrip() for line in cells]
