"""`source="text"`, `"jsonl"`, `"parquet"`: files on each peer, found by the pattern `data.path`.

A portion is a range of lines of a large file, a row group of a Parquet file, or as many small files of one folder as
make up about as much. A compressed file is a portion. So are files at an address and JSON arrays, which are read
through Hugging Face `datasets`.
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
from dipaco_swarm.run.data import SourceConfig
from dipaco_swarm.run.reach import Reach
from dipaco_swarm.training.documents import Document, Portion, cut, in_turns
from dipaco_swarm.training.sources.opening import COMPRESSED, Lines, beginning_of
from dipaco_swarm.training.sources.rows import rows_of, text_of, worded

MOST_STREAMS = 16  # files of one folder that count as domains of their own
PORTION_BYTES = 16 << 20
"""About the size of a portion: some seconds of tokenizing, and what is read again at most by who goes on in it."""
OF_DATASETS = (".lz4",)
"""Compressed in a way that `datasets` can read if the package for it is there, and we cannot."""


def read_text(data: SourceConfig, reach: Reach) -> Iterator[Document]:
    """A document per file; a file above `PORTION_BYTES` is one per range of its lines."""
    yield from _mixed(text_portions(data, reach))


def read_jsonl(data: SourceConfig, reach: Reach) -> Iterator[Document]:
    """A document per line, in the field `data.column`."""
    yield from _mixed(jsonl_portions(data, reach))


def read_parquet(data: SourceConfig, reach: Reach) -> Iterator[Document]:
    """A document per row, in the column `data.column`."""
    yield from _mixed(parquet_portions(data, reach))


def text_portions(data: SourceConfig, reach: Reach) -> Sequence[Portion]:
    return _portions(data, reach, "text", partial(_by_lines, _text_in))


def jsonl_portions(data: SourceConfig, reach: Reach) -> Sequence[Portion]:
    return _portions(data, reach, "json", partial(_by_lines, _json_in))


def parquet_portions(data: SourceConfig, reach: Reach) -> Sequence[Portion]:
    return _portions(data, reach, "parquet", _by_row_groups)


# ---------------------------------------------------------------------------------------------------------- dividing


@dataclass(frozen=True)
class _Part:
    """A file, or a part of it."""

    name: str
    size: int | None
    read: Callable[[], Iterator[Document]]


Parts = Callable[[SourceConfig, str, str], Iterator[_Part]]
"""The parts of a file: (data, domain, file)."""


def _portions(data: SourceConfig, reach: Reach, builder: str, parts: Parts) -> Sequence[Portion]:
    """All portions, domain after domain. `builder`: who reads a file of this kind for `datasets`."""
    portions: list[Portion] = []
    by_domain = _by_domain(data, _matching_files(data, reach))
    for domain, files in by_domain.items():
        found: list[_Part] = []
        for file in files:
            name = file if "://" in file else os.path.relpath(file, reach.base)
            if _is_ours(data, file, builder):
                found += (replace(part, name=f"{name} {part.name}".strip()) for part in parts(data, domain, file))
            else:
                found.append(_Part(name, None, partial(_through_datasets, data, reach, domain, builder, file)))
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


def _is_ours(data: SourceConfig, file: str, builder: str) -> bool:
    """Whether we read a file ourselves: lines of UTF-8, or Parquet."""
    if "://" in file or file.endswith(OF_DATASETS):
        return False
    if builder == "parquet":
        return not file.endswith(COMPRESSED)
    if builder != "json":
        return True
    with worded(data):  # one array of rows is no lines
        return not beginning_of(file).lstrip().startswith(b"[")


def _matching_files(data: SourceConfig, reach: Reach) -> list[str]:
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


def _by_domain(data: SourceConfig, files: Sequence[str]) -> dict[str, list[str]]:
    """Files by the name of their folder if there are several folders, by their own name if they are few."""
    if data.domain is not None:
        return {data.domain: list(files)}
    folders: dict[str, list[str]] = defaultdict(list)
    for file in files:
        folders[os.path.basename(os.path.dirname(file))].append(file)
    if len(folders) == 1 and len(files) <= MOST_STREAMS:
        return {Path(file).stem: [file] for file in files}
    return dict(folders)


# ----------------------------------------------------------------------------------------------------------- reading

DocumentsIn = Callable[[SourceConfig, str, Lines], Iterator[Document]]
"""The documents in some lines of a file: (data, domain, lines)."""


def _by_lines(documents_in: DocumentsIn, data: SourceConfig, domain: str, file: str) -> Iterator[_Part]:
    if file.endswith(COMPRESSED):
        yield _Part("", None, partial(_range, documents_in, data, domain, file, 0, None))
        return
    size = os.path.getsize(file)
    for start in range(0, size, PORTION_BYTES):
        end = min(start + PORTION_BYTES, size)
        yield _Part(str(start), end - start, partial(_range, documents_in, data, domain, file, start, end))


def _range(
    documents_in: DocumentsIn, data: SourceConfig, domain: str, file: str, start: int, end: int | None
) -> Iterator[Document]:
    with worded(data):
        try:
            yield from documents_in(data, domain, Lines(file, start, end))
        except UnicodeDecodeError as error:
            raise DataError(
                f"{file} is not UTF-8 text (byte 0x{error.object[error.start]:02x}); convert it, or leave it out"
            ) from None


def _text_in(data: SourceConfig, domain: str, lines: Lines) -> Iterator[Document]:
    some: list[bytes] = []
    size = 0
    for line in lines:
        if size >= PORTION_BYTES:  # of a compressed file, which nobody holds whole
            yield from _text_of_lines(some, domain)
            some, size = [], 0
        some.append(line)
        size += len(line)
    yield from _text_of_lines(some, domain)


def _text_of_lines(lines: Sequence[bytes], domain: str) -> Iterator[Document]:
    text = b"".join(lines).decode("utf-8")
    return cut(text.replace("\r\n", "\n").replace("\r", "\n"), domain)


def _json_in(data: SourceConfig, domain: str, lines: Lines) -> Iterator[Document]:
    is_first = True
    for line in lines:
        if line.isspace():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise ValueError(f"{lines.place}: {error}") from None
        if not isinstance(row, dict):
            raise ValueError(f"{lines.place} holds {type(row).__name__}, not an object")
        # a column may be left out, as long as there is one of that name
        if is_first or data.template is not None or data.column in row:
            yield from cut(text_of(row, data, lambda: lines.place), domain)
        is_first = False


def _by_row_groups(data: SourceConfig, domain: str, file: str) -> Iterator[_Part]:
    import pyarrow.parquet as parquet  # takes half a second to import

    with worded(data):
        metadata = parquet.read_metadata(file)
        sizes = [metadata.row_group(index).total_byte_size for index in range(metadata.num_row_groups)]
    for index, size in enumerate(sizes):
        yield _Part(str(index), size, partial(_row_group, data, domain, file, index))


def _row_group(data: SourceConfig, domain: str, file: str, index: int) -> Iterator[Document]:
    import pyarrow.parquet as parquet

    with worded(data), parquet.ParquetFile(file) as opened:
        names, place = opened.schema_arrow.names, f"row group {index} of {file}"
        if not set(data.fields) <= set(names):
            text_of(dict.fromkeys(names), data, lambda: place)
        for batch in opened.iter_batches(batch_size=256, row_groups=[index], columns=list(data.fields)):
            for row in batch.to_pylist():
                yield from cut(text_of(row, data, lambda: place), domain)


def _through_datasets(data: SourceConfig, reach: Reach, domain: str, builder: str, file: str) -> Iterator[Document]:
    settings: dict[str, Any] = {"data_files": [file]}
    if builder == "text":
        settings["sample_by"] = "document"
        data = data.model_copy(update={"column": "text"})
    yield from rows_of(data, domain, builder, settings, "train", reach)
