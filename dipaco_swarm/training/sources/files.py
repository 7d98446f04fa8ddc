"""`source="text"`, `"jsonl"`, `"parquet"`: files on each peer, found by the pattern `data.path`."""

import glob
import os
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from dipaco_swarm.errors import DataError
from dipaco_swarm.run.config import DataConfig
from dipaco_swarm.training.documents import Document, in_turns
from dipaco_swarm.training.sources.rows import rows_of

MOST_STREAMS = 16  # files of one folder that count as domains of their own


def read_text(data: DataConfig, base: Path | None) -> Iterator[Document]:
    """A document per file."""
    return _read(data, base, "text", {"sample_by": "document"}, "text")


def read_jsonl(data: DataConfig, base: Path | None) -> Iterator[Document]:
    """A document per line, in the field `data.column`."""
    return _read(data, base, "json", {}, data.column)


def read_parquet(data: DataConfig, base: Path | None) -> Iterator[Document]:
    """A document per row, in the column `data.column`."""
    return _read(data, base, "parquet", {}, data.column)


def _read(
    data: DataConfig, base: Path | None, builder: str, settings: dict[str, Any], column: str
) -> Iterator[Document]:
    assert data.path is not None  # DataConfig has checked it
    # one stream for each domain, since rows do not say which file they come from; in turns, so that the beginning is a
    # mixture
    streams = [
        rows_of(data, domain, builder, {"data_files": files, "split": "train", **settings}, column)
        for domain, files in _by_domain(_matching_files(data.path, base)).items()
    ]
    yield from in_turns(streams)


def _matching_files(pattern: str, base: Path | None) -> list[str]:
    if "://" in pattern:
        return [pattern]
    absolute = os.path.join(base or Path.cwd(), os.path.expanduser(pattern))
    files = sorted(file for file in glob.glob(absolute, recursive=True) if os.path.isfile(file))
    if not files:
        raise DataError(
            f'no file matches data.path="{pattern}" in {base or Path.cwd()}; put the documents there, or correct the '
            "pattern (** stands for any folders)"
        )
    return files


def _by_domain(files: Sequence[str]) -> dict[str, list[str]]:
    """Files by the name of their folder if there are several folders, by their own name if they are few."""
    folders: dict[str, list[str]] = defaultdict(list)
    for file in files:
        folders[os.path.basename(os.path.dirname(file))].append(file)
    if len(folders) == 1 and len(files) <= MOST_STREAMS:
        return {Path(file).stem: [file] for file in files}
    return dict(folders)
