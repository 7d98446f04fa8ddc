"""`source="python"`: the text that every machine with Python already has.

The standard library, the installed packages, C++ headers, documentation, licences.
"""

import hashlib
import os
import sysconfig
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import islice
from pathlib import Path

from dipaco_swarm.errors import DataError
from dipaco_swarm.run.data import SourceConfig
from dipaco_swarm.run.reach import Reach
from dipaco_swarm.training.documents import Document, cut, in_turns

PYTHON_DOCUMENT_CHARACTERS = 12_000  # the beginning of each file: more files are worth more than longer ones
DOMAIN_BYTES = 3_000_000  # of each domain of the Python installation: 20 MB, and code does not drown prose
SMALLEST_FILE, LARGEST_FILE = 256, 400_000  # bytes; below: empty __init__ files; above: tables and generated code
LONGEST_LINE, MEAN_LINE = 2_000, 160  # characters; above: minified code and data


@dataclass(frozen=True)
class _File:
    """A file of the Python installation."""

    file: str
    name: str
    """Relative to its root and the same on every machine: what the order is made from."""
    domain: str
    size: int

    @property
    def lot(self) -> bytes:
        return _lot(self.name)


def read(data: SourceConfig, reach: Reach) -> Iterator[Document]:
    """The text of this Python installation, as a mixture of domains from the first document on.

    The order depends on the names of the installed files alone. Every domain is thinned to DOMAIN_BYTES, taking folders
    in turn, because some packages bring thousands of headers that say nearly the same.
    """
    seen: set[bytes] = set()
    count = 0
    for source in files_in_order():
        for document in _readable(source):
            fingerprint = hashlib.sha256(" ".join(document.text.split()).encode("utf-8", "surrogatepass")).digest()
            if fingerprint not in seen:  # licences and vendored packages come many times
                seen.add(fingerprint)
                count += 1
                yield document if data.domain is None else replace(document, domain=data.domain)
    if count == 0:
        raise DataError(
            "this Python installation has no readable sources (perhaps it is frozen or zipped); choose another "
            "data.source in the run file"
        )


@cache
def files_in_order() -> tuple[_File, ...]:
    """All files that are read, in order. What is installed does not change while a program runs."""
    return tuple(_mixed(_installed_files()))


def _installed_files() -> list[_File]:
    paths = sysconfig.get_paths()
    roots = {"include": paths["include"], "stdlib": paths["stdlib"]}
    roots |= {"site-packages": paths["purelib"], "platlib": paths["platlib"]}
    sources: dict[str, _File] = {}  # by file, as purelib and platlib are mostly the same folder
    for root, start in roots.items():
        for folder, subfolders, files in os.walk(start):
            subfolders[:] = sorted(set(subfolders) - {"__pycache__", "site-packages", "dist-packages", "node_modules"})
            place = f"{root}/{os.path.relpath(folder, start)}".replace(os.sep, "/")
            for file in sorted(files):
                full, name = f"{folder}/{file}", f"{place}/{file}"
                domain = _domain_of(name)
                if domain and full not in sources and SMALLEST_FILE <= (size := os.path.getsize(full)) <= LARGEST_FILE:
                    sources[full] = _File(full, name, domain, min(size, PYTHON_DOCUMENT_CHARACTERS))
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


def _mixed(sources: Sequence[_File]) -> list[_File]:
    """Each domain thinned to DOMAIN_BYTES and shuffled by a hash, and the domains merged in proportion."""
    placed: list[tuple[float, str, _File]] = []
    domains: dict[str, list[_File]] = defaultdict(list)
    for source in sources:
        domains[source.domain].append(source)
    for domain, members in domains.items():
        chosen = sorted(_thinned(members), key=lambda source: source.lot)
        total, before = sum(source.size for source in chosen), 0
        for source in chosen:
            placed.append((before / total, domain, source))
            before += source.size
    return [source for _, _, source in sorted(placed, key=lambda item: (item[0], item[1], item[2].name))]


def _thinned(sources: Sequence[_File]) -> Iterator[_File]:
    """Files up to DOMAIN_BYTES: first one of every folder, then a second of every folder, ..."""
    folders: dict[str, list[_File]] = defaultdict(list)
    for source in sorted(sources, key=lambda source: source.lot):
        folders[os.path.dirname(source.name)].append(source)
    size = 0
    for source in in_turns([iter(folders[folder]) for folder in sorted(folders, key=_lot)]):
        size += source.size
        if size > DOMAIN_BYTES:
            return
        yield source


def _lot(name: str) -> bytes:
    """A place in an order that is random, and the same everywhere."""
    return hashlib.sha256(name.encode("utf-8", "surrogatepass")).digest()


def _readable(source: _File) -> Iterator[Document]:
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
    return islice(cut(text, domain, PYTHON_DOCUMENT_CHARACTERS), 1)
