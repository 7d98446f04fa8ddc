"""`source="text"`, `"jsonl"`, `"parquet"`: files on each peer, found by the pattern `data.path`.

A portion is a range of lines of a large file, a row group of a Parquet file, or as many small files of one folder as
make up about as much. Files at an address or compressed are a portion each, and read through Hugging Face `datasets`.
"""

import glob
import json
import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from dipaco_swarm.errors import DataError
from dipaco_swarm.run.config import DataConfig
from dipaco_swarm.run.reach import Reach
from dipaco_swarm.training.documents import Document, Portion, cut, in_turns
from dipaco_swarm.training.sources.rows import rows_of, text_of, worded

MOST_STREAMS = 16  # files of one folder that count as domains of their own
PORTION_BYTES = 16 << 20
"""About the size of a portion: some seconds of tokenizing, and what is read again at most by who goes on in it."""
COMPRESSED = (".gz", ".bz2", ".xz", ".zst", ".lz4", ".zip")


def read_text(data: DataConfig, reach: Reach) -> Iterator[Document]:
    """A document per file; a file above `PORTION_BYTES` is one per range of its lines."""
    yield from _mixed(text_portions(data, reach))


def read_jsonl(data: DataConfig, reach: Reach) -> Iterator[Document]:
    """A document per line, in the field `data.column`."""
    yield from _mixed(jsonl_portions(data, reach))


def read_parquet(data: DataConfig, reach: Reach) -> Iterator[Document]:
    """A document per row, in the column `data.column`."""
    yield from _mixed(parquet_portions(data, reach))


def text_portions(data: DataConfig, reach: Reach) -> Sequence[Portion]:
    return _portions(data, reach, "text", partial(_by_lines, _text_in))


def jsonl_portions(data: DataConfig, reach: Reach) -> Sequence[Portion]:
    return _portions(data, reach, "json", partial(_by_lines, _json_in))


def parquet_portions(data: DataConfig, reach: Reach) -> Sequence[Portion]:
    return _portions(data, reach, "parquet", _by_row_groups)


# ---------------------------------------------------------------------------------------------------------- dividing


@dataclass(frozen=True)
class _Part:
    """A file, or a part of it."""

    name: str
    size: int | None
    read: Callable[[], Iterator[Document]]


Parts = Callable[[DataConfig, str, str], Iterator[_Part]]
"""The parts of a file: (data, domain, file)."""


def _portions(data: DataConfig, reach: Reach, builder: str, parts: Parts) -> Sequence[Portion]:
    """All portions, domain after domain. `builder`: who reads a file of this kind for `datasets`."""
    portions: list[Portion] = []
    for domain, files in _by_domain(_matching_files(data, reach)).items():
        found: list[_Part] = []
        for file in files:
            name = file if "://" in file else os.path.relpath(file, reach.base)
            if _is_plain(file, builder):
                found += (replace(part, name=f"{name} {part.name}") for part in parts(data, domain, file))
            else:
                found.append(_Part(name, None, partial(_through_datasets, data, domain, builder, file)))
        portions += _together(domain, found)
    return portions


def _together(domain: str, parts: Iterable[_Part]) -> Iterator[Portion]:
    """Portions of consecutive parts, each of `PORTION_BYTES` at most or of one part."""
    some: list[_Part] = []
    size = 0
    for part in parts:
        if some and (part.size is None or size + part.size > PORTION_BYTES):
            yield _portion(domain, some)
            some, size = [], 0
        some.append(part)
        size += part.size or PORTION_BYTES
    if some:
        yield _portion(domain, some)


def _portion(domain: str, parts: Sequence[_Part]) -> Portion:
    sizes = [part.size for part in parts if part.size is not None]
    size = sum(sizes) if len(sizes) == len(parts) else None
    return Portion(parts[0].name, domain, size, lambda: chain.from_iterable(part.read() for part in parts))


def _mixed(portions: Sequence[Portion]) -> Iterator[Document]:
    """The documents of each domain in turn, so that the beginning is a mixture."""
    domains: dict[str, list[Portion]] = defaultdict(list)
    for portion in portions:
        domains[portion.domain].append(portion)

    def all_of(domain: str) -> Iterator[Document]:
        return chain.from_iterable(portion.read() for portion in domains[domain])

    return in_turns([all_of(domain) for domain in domains])


def _is_plain(file: str, builder: str) -> bool:
    """Whether we read a file ourselves: lines of UTF-8, or Parquet."""
    if "://" in file or file.endswith(COMPRESSED):
        return False
    if builder != "json":
        return True
    with open(file, "rb") as opened:  # one array of rows is no lines
        return not opened.read(64).lstrip().startswith(b"[")


def _matching_files(data: DataConfig, reach: Reach) -> list[str]:
    located = reach.located(data)
    if "://" in located:
        return [located]
    files = sorted(file for file in glob.glob(located, recursive=True) if os.path.isfile(file))
    if not files:
        raise DataError(
            f'no file matches data.path="{data.path}" in {reach.base}; put the documents there, or correct the pattern '
            "(** stands for any folders)"
        )
    reach.check_files(data, files)
    return files


def _by_domain(files: Sequence[str]) -> dict[str, list[str]]:
    """Files by the name of their folder if there are several folders, by their own name if they are few."""
    folders: dict[str, list[str]] = defaultdict(list)
    for file in files:
        folders[os.path.basename(os.path.dirname(file))].append(file)
    if len(folders) == 1 and len(files) <= MOST_STREAMS:
        return {Path(file).stem: [file] for file in files}
    return dict(folders)


# ----------------------------------------------------------------------------------------------------------- reading

Lines = Callable[[DataConfig, str, Iterator[bytes]], Iterator[Document]]
"""The documents in some lines of a file: (data, domain, lines)."""


def _by_lines(documents_in: Lines, data: DataConfig, domain: str, file: str) -> Iterator[_Part]:
    size = os.path.getsize(file)
    for start in range(0, size, PORTION_BYTES):
        end = min(start + PORTION_BYTES, size)
        yield _Part(str(start), end - start, partial(_range, documents_in, data, domain, file, start, end))


def _range(documents_in: Lines, data: DataConfig, domain: str, file: str, start: int, end: int) -> Iterator[Document]:
    with worded(data):
        yield from documents_in(data, domain, _lines(file, start, end))


def _lines(file: str, start: int, end: int) -> Iterator[bytes]:
    """The lines that begin in bytes `start` to `end` of a file."""
    with open(file, "rb") as opened:
        if start:
            opened.seek(start - 1)
            opened.readline()
        while opened.tell() < end and (line := opened.readline()):
            yield line


def _text_in(data: DataConfig, domain: str, lines: Iterator[bytes]) -> Iterator[Document]:
    text = b"".join(lines).decode("utf-8")
    yield from cut(text.replace("\r\n", "\n").replace("\r", "\n"), domain)


def _json_in(data: DataConfig, domain: str, lines: Iterator[bytes]) -> Iterator[Document]:
    rows = (json.loads(line) for line in lines if not line.isspace())
    for number, row in enumerate(rows):
        if not isinstance(row, dict):
            raise ValueError(f"a line holds {type(row).__name__}, not an object")
        if number == 0 or data.column in row:  # a field may be left out, as long as there is one of that name
            yield from cut(text_of(row, data.column, data), domain)


def _by_row_groups(data: DataConfig, domain: str, file: str) -> Iterator[_Part]:
    import pyarrow.parquet as parquet  # takes half a second to import

    with worded(data):
        metadata = parquet.read_metadata(file)
        sizes = [metadata.row_group(index).total_byte_size for index in range(metadata.num_row_groups)]
    for index, size in enumerate(sizes):
        yield _Part(str(index), size, partial(_row_group, data, domain, file, index))


def _row_group(data: DataConfig, domain: str, file: str, index: int) -> Iterator[Document]:
    import pyarrow.parquet as parquet

    with worded(data), parquet.ParquetFile(file) as opened:
        if data.column not in opened.schema_arrow.names:
            text_of(dict.fromkeys(opened.schema_arrow.names), data.column, data)
        for batch in opened.iter_batches(batch_size=256, row_groups=[index], columns=[data.column]):
            for row in batch.to_pylist():
                yield from cut(text_of(row, data.column, data), domain)


def _through_datasets(data: DataConfig, domain: str, builder: str, file: str) -> Iterator[Document]:
    settings: dict[str, Any] = {"data_files": [file], "split": "train"}
    if builder == "text":
        settings["sample_by"] = "document"
    yield from rows_of(data, domain, builder, settings, "text" if builder == "text" else data.column)
