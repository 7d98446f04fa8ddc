"""The documents of a run: every peer reads them itself, in the same order wherever the files are the same.

    DataConfig --read_documents--> Document, Document, ...     split_of(text) -> train | holdout | routing

Files are read through Hugging Face `datasets`, streaming. `source="python"` is the text that every machine with Python
already has: the standard library, the installed packages, C++ headers, documentation, licences. The domain of a
document is for reports only; nothing is routed by it.
"""

import glob
import hashlib
import os
import sysconfig
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal, TypeVar

from dipaco_swarm.errors import DataError
from dipaco_swarm.manifest import DataConfig

Split = Literal["train", "holdout", "routing"]
T = TypeVar("T")

DOCUMENT_CHARACTERS = 32_768
"""A longer document is cut into consecutive ones, so that one big file can feed training and held-out evaluation."""

PYTHON_DOCUMENT_CHARACTERS = 12_000  # the beginning of each file: more files are worth more than longer ones
DOMAIN_BYTES = 3_000_000  # of each domain of the Python installation: 20 MB, and code does not drown prose
SMALLEST_FILE, LARGEST_FILE = 256, 400_000  # bytes; below: empty __init__ files; above: tables and generated code
LONGEST_LINE, MEAN_LINE = 2_000, 160  # characters; above: minified code and data
MOST_STREAMS = 16  # files of one folder that count as domains of their own


@dataclass(frozen=True)
class Document:
    """A text, and the domain it is reported under."""

    text: str
    domain: str


def split_of(text: str, data: DataConfig) -> Split:
    """What a document is for, by a hash of its text: `data.holdout` and `data.routing_sample` of all, else training."""
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
    place = int.from_bytes(digest[:8], "big") / 2**64
    if place < data.holdout:
        return "holdout"
    return "routing" if place < data.holdout + data.routing_sample else "train"


def read_documents(data: DataConfig, *, base: Path | None = None) -> Iterator[Document]:
    """The documents of a run, streaming, always in the same order; at most `data.max_documents`.

    `base`: folder that a relative `data.path` starts from; the current folder by default. Blank texts are left out.
    Raises DataError, when the first document is asked for, if no file matches, a file cannot be read, or the column is
    missing.
    """
    documents = _python_documents() if data.source == "python" else _dataset_documents(data, base)
    return islice(documents, data.max_documents)


# ------------------------------------------------------------------------------------------------ files and data sets


def _dataset_documents(data: DataConfig, base: Path | None) -> Iterator[Document]:
    assert data.path is not None  # DataConfig has checked it
    if data.source == "huggingface":
        domain = data.config or data.path.rsplit("/", 1)[-1]
        yield from _rows(data, domain, data.path, {"name": data.config, "split": data.split})
        return
    # 1. one stream for each domain, since rows do not say which file they come from
    streams = []
    for domain, files in _by_domain(_matching_files(data.path, base)).items():
        settings: dict[str, Any] = {"data_files": files, "split": "train"}
        builder = "json" if data.source == "jsonl" else data.source
        if data.source == "text":
            settings["sample_by"] = "document"
        streams.append(_rows(data, domain, builder, settings))
    # 2. in turns, so that the beginning of the stream is a mixture
    yield from _in_turns(streams)


def _rows(data: DataConfig, domain: str, name: str, settings: dict[str, Any]) -> Iterator[Document]:
    """The documents of one data set."""
    import datasets  # takes seconds to import

    column = "text" if data.source == "text" else data.column
    where = f'data.source="{data.source}", data.path="{data.path}"'
    try:
        for row in datasets.load_dataset(name, streaming=True, **settings):
            yield from _cut(_text_of(row, column, where), domain)
    except (OSError, ValueError, RuntimeError, datasets.exceptions.DatasetsError) as error:
        reason = str(error.__cause__ or error).splitlines()[0][:200] if str(error) else type(error).__name__
        raise DataError(
            f"the documents cannot be read ({where}): {reason}; check that the files are {data.source} and complete, "
            "or that the name, data.config and data.split exist"
        ) from error


def _text_of(row: dict[str, object], column: str, where: str) -> str:
    if column not in row:
        raise DataError(f'there is no column "{column}" ({where}); data.column can be one of {sorted(row)}')
    text = row[column]
    if text is None:
        return ""
    if not isinstance(text, str):
        raise DataError(
            f'column "{column}" holds {type(text).__name__}, not text ({where}); '
            f"data.column can be one of {sorted(row)}"
        )
    return text


def _cut(text: str, domain: str, longest: int = DOCUMENT_CHARACTERS) -> Iterator[Document]:
    """The text in pieces of at most `longest` characters, cut after a line where there is one."""
    while text.strip():
        end = len(text)
        if end > longest:
            end = text.rfind("\n", 0, longest) + 1 or longest
        if not text[:end].isspace():
            yield Document(text[:end], domain)
        text = text[end:]


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


def _in_turns(streams: Sequence[Iterator[T]]) -> Iterator[T]:
    """One of each stream in turn, until all have ended."""
    living = list(streams)
    while living:
        going_on = []
        for stream in living:
            try:
                yield next(stream)
            except StopIteration:
                continue
            going_on.append(stream)
        living = going_on


# ------------------------------------------------------------------------------------------- the Python installation


@dataclass(frozen=True)
class _Source:
    """A file of the Python installation."""

    file: str
    name: str
    """Relative to its root and the same on every machine: what the order is made from."""
    domain: str
    size: int

    @property
    def lot(self) -> bytes:
        return _lot(self.name)


def _python_documents() -> Iterator[Document]:
    """The text of this Python installation, as a mixture of domains from the first document on.

    The order depends on the names of the installed files alone. Every domain is thinned to DOMAIN_BYTES, taking folders
    in turn, because some packages bring thousands of headers that say nearly the same.
    """
    seen: set[bytes] = set()
    count = 0
    for source in _mixed(_installed_files()):
        for document in _readable(source):
            fingerprint = hashlib.sha256(" ".join(document.text.split()).encode("utf-8", "surrogatepass")).digest()
            if fingerprint not in seen:  # licences and vendored packages come many times
                seen.add(fingerprint)
                count += 1
                yield document
    if count == 0:
        raise DataError(
            "this Python installation has no readable sources (perhaps it is frozen or zipped); choose another "
            "data.source in the run file"
        )


def _installed_files() -> list[_Source]:
    paths = sysconfig.get_paths()
    roots = {"include": paths["include"], "stdlib": paths["stdlib"]}
    roots |= {"site-packages": paths["purelib"], "platlib": paths["platlib"]}
    sources: dict[str, _Source] = {}  # by file, as purelib and platlib are mostly the same folder
    for root, start in roots.items():
        for folder, subfolders, files in os.walk(start):
            subfolders[:] = sorted(set(subfolders) - {"__pycache__", "site-packages", "dist-packages", "node_modules"})
            place = f"{root}/{os.path.relpath(folder, start)}".replace(os.sep, "/")
            for file in sorted(files):
                full, name = f"{folder}/{file}", f"{place}/{file}"
                domain = _domain_of(name)
                if domain and full not in sources and SMALLEST_FILE <= (size := os.path.getsize(full)) <= LARGEST_FILE:
                    sources[full] = _Source(full, name, domain, min(size, PYTHON_DOCUMENT_CHARACTERS))
    return list(sources.values())


SUFFIX_DOMAINS = (
    ({".pyi"}, "stubs"),
    ({".pyx", ".pxd", ".pxi"}, "cython"),
    ({".h", ".hpp", ".hh", ".c", ".cc", ".cpp", ".cu", ".cuh", ".inc"}, "c++"),
    ({".md", ".rst"}, "prose"),
)
LICENCES = ("license", "licence", "copying", "notice", "authors")


def _domain_of(name: str) -> str | None:
    """The domain of a file by its name; None for what is not text that people write."""
    *folders, file = name.lower().split("/")
    suffix = os.path.splitext(file)[1]
    if file.startswith(LICENCES) and suffix in ("", ".txt", ".md", ".rst", ".apache", ".bsd", ".mit"):
        return "licences"
    if file == "metadata" or (suffix == ".txt" and file.startswith(("readme", "changes", "changelog", "news"))):
        return "prose"
    if name.endswith("pydoc_data/topics.py"):
        return "prose"
    if suffix == ".py":
        if {"test", "tests", "testing", "idle_test"} & set(folders) or file.startswith("test_"):
            return "tests"
        return "stdlib" if folders[0] == "stdlib" else "packages"
    return next((domain for suffixes, domain in SUFFIX_DOMAINS if suffix in suffixes), None)


def _mixed(sources: Sequence[_Source]) -> list[_Source]:
    """Each domain thinned to DOMAIN_BYTES and shuffled by a hash, and the domains merged in proportion."""
    placed: list[tuple[float, str, _Source]] = []
    domains: dict[str, list[_Source]] = defaultdict(list)
    for source in sources:
        domains[source.domain].append(source)
    for domain, members in domains.items():
        chosen = sorted(_thinned(members), key=lambda source: source.lot)
        total, before = sum(source.size for source in chosen), 0
        for source in chosen:
            placed.append((before / total, domain, source))
            before += source.size
    return [source for _, _, source in sorted(placed, key=lambda item: (item[0], item[1], item[2].name))]


def _thinned(sources: Sequence[_Source]) -> Iterator[_Source]:
    """Files up to DOMAIN_BYTES: first one of every folder, then a second of every folder, ..."""
    folders: dict[str, list[_Source]] = defaultdict(list)
    for source in sorted(sources, key=lambda source: source.lot):
        folders[os.path.dirname(source.name)].append(source)
    size = 0
    for source in _in_turns([iter(folders[folder]) for folder in sorted(folders, key=_lot)]):
        size += source.size
        if size > DOMAIN_BYTES:
            return
        yield source


def _lot(name: str) -> bytes:
    """A place in an order that is random, and the same everywhere."""
    return hashlib.sha256(name.encode("utf-8", "surrogatepass")).digest()


def _readable(source: _Source) -> Iterator[Document]:
    """The documents in a file: none if it is binary or minified; only the beginning if it is long."""
    if source.name.endswith("pydoc_data/topics.py"):
        from pydoc_data.topics import topics  # the language reference, as one dictionary

        for topic in sorted(topics):
            yield from _beginning(topics[topic], source.domain)
        return
    try:
        text = Path(source.file).read_bytes().decode("utf-8").replace("\r\n", "\n")
    except (OSError, UnicodeDecodeError):
        return  # another encoding or no permission: one file of thousands, and the installation is not ours to mend
    lines = text.split("\n")
    if "\0" in text or len(text) > MEAN_LINE * len(lines) or max(map(len, lines)) > LONGEST_LINE:
        return
    yield from _beginning(text, source.domain)


def _beginning(text: str, domain: str) -> Iterator[Document]:
    return islice(_cut(text, domain, PYTHON_DOCUMENT_CHARACTERS), 1)
