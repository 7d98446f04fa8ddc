"""The documents of a run: every peer reads them itself, in the same order wherever the files are the same.

    SourceConfig --read_documents--> Document, Document, ...     split_of(text) -> train | holdout | routing
    SourceConfig --portions_of--> Portion, Portion, ...          the same documents, to be begun anywhere

Where they come from is the business of the sources, one file each in `sources/`. The domain of a document is for
reports only; nothing is routed by it.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Literal, TypeVar, cast

from dipaco_swarm.run.config import DataConfig
from dipaco_swarm.run.data import SourceConfig
from dipaco_swarm.run.reach import Reach
from dipaco_swarm.strategies import SOURCES, loaded

Split = Literal["train", "holdout", "routing"]
T = TypeVar("T")

ANYWHERE = Reach()
"""For who reads what a run file of its own names."""
DOCUMENT_CHARACTERS = 32_768
"""A longer document is cut into consecutive ones, so that one big file can feed training and held-out evaluation."""
CHUNK_DOCUMENTS = 256
"""Documents that are worked on at once: about 2 MB of text, a second of work."""


@dataclass(frozen=True)
class Document:
    """A text, and the domain it is reported under."""

    text: str
    domain: str

    @property
    def digest(self) -> str:
        """SHA-256 of the text, in hexadecimal."""
        return _hash_of(self.text).hex()


Source = Callable[[SourceConfig, Reach], Iterator[Document]]
"""Reads documents, streaming, always in the same order; never a blank one. Raises
DataError, when the first document is asked for, if there is nothing to read."""


@dataclass(frozen=True)
class Portion:
    """A part of the corpus that can be read alone: a range of lines, a row group, some files. The same on every peer
    that has the same files, so that a portion can be spoken of."""

    name: str
    domain: str
    size: int | None
    """Bytes, as they are stored; None where nobody knows before reading."""
    read: Callable[[], Iterator[Document]]
    """Its documents from the first on. Raises DataError."""


Divide = Callable[[SourceConfig, Reach], Sequence[Portion]]
"""The documents of a source as portions: together they have exactly the documents that its `Source` reads. Raises
DataError."""


def split_of(text: str, data: DataConfig) -> Split:
    """What a document is for, by a hash of its text: `data.holdout` and `data.routing_sample` of all, else training."""
    place = int.from_bytes(_hash_of(text)[:8], "big") / 2**64
    if place < data.holdout:
        return "holdout"
    return "routing" if place < data.holdout + data.routing_sample else "train"


def place_in_slice(text: str) -> float:
    """Where a hash of the text puts a training document, in 0..1: the lowest are held out of its shard.

    Other bits of the hash than those of `split_of`, which have already chosen the training documents.
    """
    return int.from_bytes(_hash_of(text)[8:16], "big") / 2**64


def _hash_of(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()


def in_chunks(documents: Iterable[Document]) -> Iterator[list[Document]]:
    """The documents, `CHUNK_DOCUMENTS` at a time."""
    stream = iter(documents)
    while chunk := list(islice(stream, CHUNK_DOCUMENTS)):
        yield chunk


def read_documents(data: SourceConfig, *, reach: Reach = ANYWHERE) -> Iterator[Document]:
    """The documents of a run, streaming, always in the same order; at most `data.max_documents`.

    Each once: of a mixture, as many characters of each source as its weight says, until one has ended.
    `reach`: where they may come from. Blank texts are left out.
    Raises DataError, when the first document is asked for, if no file matches, a file cannot be read, or the column is
    missing.
    """
    source = cast(Source, SOURCES.load(data.source))
    return islice(source(data, reach), data.max_documents)


def documents_to_train_on(data: DataConfig, *, reach: Reach = ANYWHERE) -> Iterator[Document]:
    """As `read_documents`, but small sources of a mixture are read several times, so that all keep their shares."""
    if not data.sources:
        return read_documents(data, reach=reach)
    from dipaco_swarm.training.sources.mixture import with_repeats  # a source, and sources import this file

    return with_repeats(data, reach)


def is_divided(data: SourceConfig) -> bool:
    """Whether the documents come in portions, so that reading may begin anywhere."""
    if isinstance(data, DataConfig) and data.sources:
        return any(is_divided(part) for part in data.sources)
    return SOURCES[data.source].portions is not None and data.max_documents is None


def portions_of(data: SourceConfig, *, reach: Reach = ANYWHERE) -> Sequence[Portion]:
    """The corpus as a list of portions, the same list wherever the files are the same; never empty.

    A source that nothing divides, and the beginning of one (`data.max_documents`), are one portion. Raises DataError.
    """
    if not is_divided(data):
        return (Portion("all", data.domain or data.source, None, partial(read_documents, data, reach=reach)),)
    return cast(Divide, loaded(SOURCES[data.source].portions))(data, reach)


# ------------------------------------------------------------------------------------------------ what sources share


def cut(text: str, domain: str, longest: int = DOCUMENT_CHARACTERS) -> Iterator[Document]:
    """The text in pieces of at most `longest` characters, cut after a line where there is one."""
    start, last = 0, len(text.rstrip())
    while start < last:  # by an index: a rest that is copied for each piece takes the square of the length
        end = len(text)
        if end - start > longest:
            end = text.rfind("\n", start, start + longest) + 1 or start + longest
        piece = text[start:end]
        if not piece.isspace():
            yield Document(piece, domain)
        start = end


def in_turns(streams: Sequence[Iterator[T]]) -> Iterator[T]:
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
