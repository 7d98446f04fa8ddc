"""The parts in which a portion is routed, and what a peer says of one.

The first slices of a portion are small, so that others soon have something of it, and so that little is to be read to
see whether somebody is to be believed.
"""

import hashlib
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from dipaco_swarm.errors import DataError
from dipaco_swarm.training.documents import CHUNK_DOCUMENTS, Document, Portion
from dipaco_swarm.training.encoding import Indices
from dipaco_swarm.training.reading.cheap import Work
from dipaco_swarm.training.reading.places import TOGETHER
from dipaco_swarm.training.tokenizer import stored_as

SLICE_CHARACTERS = 1 << 20
SMALLER = (8, 4, 4, 4, 2)
"""The first slices are so much smaller than the later ones."""
NOWHERE = (1 << 16) - 1
"""The path of a text that is too short to be routed."""
ALL = (1 << 16) - 2
"""In the place of a path: of all of them."""
MOST_PATHS = ALL
MOST_SLICES = 1 << 14
"""Of one part, which ends with the slice that fills it."""
KEPT_OPEN = TOGETHER + 1
"""Portions that are being read on, and one more: what was read last of one that has ended may be asked for again."""

_HEADER = struct.Struct("<IIIIHHB8s")
_LENGTH = struct.Struct("<I")

Routes = NDArray[np.uint16]
Ids = NDArray[np.generic]
Read = tuple[list[Document], bool]
"""The documents of a slice, and whether it is the last one."""
Stored = np.dtype[np.generic]
"""How a token is stored."""
Lengths = NDArray[np.uint32]


class EndedError(DataError):
    """A portion has no such slice: its documents end before."""


def in_slices(documents: Iterable[Document]) -> Iterator[Read]:
    """The documents of a portion slice after slice, and whether it is the last one: the same on every machine.

    There is always one, empty if need be.
    """
    some: list[Document] = []
    characters = number = 0
    for document in documents:
        part = SMALLER[number] if number < len(SMALLER) else 1
        if some and (len(some) >= CHUNK_DOCUMENTS // part or characters >= SLICE_CHARACTERS // part):
            yield some, False
            some, characters, number = [], 0, number + 1
        some.append(document)
        characters += len(document.text)
    yield some, True


def digest_of(documents: Sequence[Document]) -> bytes:
    """8 bytes that stand for the texts."""
    found = hashlib.sha256()
    for document in documents:
        found.update(bytes.fromhex(document.digest))
    return found.digest()[:8]


@dataclass(frozen=True, eq=False)
class Slice:
    """What a peer says of a slice."""

    documents: int
    characters: int
    digest: bytes
    """Of its documents."""
    is_last: bool
    """Of its portion."""
    routes: Routes
    """The paths of each text that is trained on, nearest first, (texts, overlap)."""
    scope: int
    """Whose tokens are here: of a path, of `ALL`, or `NOWHERE`: nobody's."""
    lengths: Lengths
    """Of each of these texts, (texts in scope,); 0: it is too short after all."""
    ids: Ids
    """Their tokens, one text after the other."""

    def numbers_of(self, path: int) -> Indices:
        """The texts of a path, int64."""
        if path == NOWHERE:
            return np.zeros(0, dtype=np.int64)
        if path == ALL:
            return np.flatnonzero((self.routes != NOWHERE).any(axis=1))
        return np.flatnonzero((self.routes == path).any(axis=1))

    def has_tokens_of(self, path: int) -> bool:
        return self.scope in (path, ALL)

    def texts_of(self, path: int) -> list[Indices]:
        """The tokens of a path's texts, int64, where they are here."""
        ends = np.cumsum(self.lengths, dtype=np.int64)
        here = self.numbers_of(self.scope)
        wanted = np.isin(here, self.numbers_of(path))
        return [
            self.ids[end - length : end].astype(np.int64)
            for end, length in zip(ends[wanted].tolist(), self.lengths[wanted].tolist(), strict=True)
        ]

    def told_to(self, path: int) -> "Slice":
        """What a peer of this path is told: all routes, and its own tokens."""
        if not self.has_tokens_of(path):
            return self.without_tokens()
        lengths, ids = _packed(self.texts_of(path), self.ids.dtype)
        return replace(self, scope=path, lengths=lengths, ids=ids)

    def without_tokens(self) -> "Slice":
        lengths, ids = _packed([], self.ids.dtype)
        return replace(self, scope=NOWHERE, lengths=lengths, ids=ids)

    def to_bytes(self) -> bytes:
        texts, overlap = self.routes.shape
        header = _HEADER.pack(
            self.documents, self.characters, texts, len(self.ids), overlap, self.scope, self.is_last, self.digest
        )
        body = header + self.routes.astype("<u2").tobytes() + self.lengths.astype("<u4").tobytes() + self.ids.tobytes()
        return _LENGTH.pack(len(body)) + body


def slice_with(
    documents: Sequence[Document], is_last: bool, routes: Routes, scope: int, texts: Sequence[Indices], dtype: Stored
) -> Slice:
    """`texts`: tokens of the texts in scope."""
    characters = sum(len(document.text) for document in documents)
    return Slice(len(documents), characters, digest_of(documents), is_last, routes, scope, *_packed(texts, dtype))


def slices_in(data: bytes, paths: int, vocabulary: int) -> list[Slice]:
    """What `to_bytes` wrote, one after the other. `paths`: of the stage. Raises ValueError when it is none."""
    found: list[Slice] = []
    at = 0
    while at < len(data):
        if at + _LENGTH.size > len(data):
            raise ValueError("breaks off")
        (size,) = _LENGTH.unpack_from(data, at)
        at += _LENGTH.size
        if len(found) == MOST_SLICES:
            raise ValueError(f"has more than {MOST_SLICES} slices")
        found.append(_slice_in(data[at : at + size], size, paths, vocabulary))
        at += size
    return found


def _slice_in(body: bytes, size: int, paths: int, vocabulary: int) -> Slice:
    dtype = stored_as(vocabulary)
    if len(body) != size or size < _HEADER.size:
        raise ValueError("breaks off")
    documents, characters, texts, count, overlap, scope, is_last, digest = _HEADER.unpack_from(body)
    if not 1 <= overlap <= paths or is_last > 1 or texts * overlap * 2 > size:
        raise ValueError("has a malformed header")
    at = _HEADER.size
    routes = np.frombuffer(body, "<u2", texts * overlap, at).reshape(texts, overlap)
    at += routes.nbytes
    if ((routes >= paths) & (routes != NOWHERE)).any():
        raise ValueError(f"names a path that is none of {paths}")
    about = Slice(documents, characters, digest, bool(is_last), routes, scope, *_packed([], dtype))
    held = len(about.numbers_of(scope))
    if at + 4 * held + count * dtype.itemsize != size:
        raise ValueError("has another length than it says")
    lengths = np.frombuffer(body, "<u4", held, at)
    if int(lengths.sum(dtype=np.int64)) != count:
        raise ValueError("has texts of another length than it says")
    ids = np.frombuffer(body, dtype, count, at + lengths.nbytes)
    if (ids >= vocabulary).any():
        raise ValueError(f"has a token that is none of {vocabulary}")
    return replace(about, lengths=lengths, ids=ids)


def _packed(texts: Sequence[Indices], dtype: Stored) -> tuple[Lengths, Ids]:
    lengths = np.array([len(ids) for ids in texts], dtype=np.uint32)
    return lengths, np.concatenate([*texts, np.zeros(0, dtype=np.int64)]).astype(dtype)


class _Reading:
    """A portion, as far as it was read."""

    def __init__(self, slices: Iterator[Read]) -> None:
        self._slices = slices
        self.number = -1
        """Of the slice that was read last."""
        self.found: Read = ([], False)

    @property
    def is_over(self) -> bool:
        return self.found[1]

    def go_to(self, number: int) -> None:
        """As far as that slice, or the last one."""
        while self.number < number and not self.is_over:
            self.found = next(self._slices)
            self.number += 1


class Slices:
    """Reads slices of portions; one after the other, each as often as wanted, costs no more than reading the portion:
    of what others say of a slice, much may have to be compared with it before something is right."""

    def __init__(self, portions: Sequence[Portion], work: Work) -> None:
        """`portions`: in the run's order."""
        self.portions = portions
        self._work = work
        self._open: dict[int, _Reading] = {}
        """By portion, the one that was read last comes last."""

    def read(self, portion: int, number: int) -> Read:
        """The documents of a slice, and whether it is the last one.

        Raises EndedError when the portion ends before it, DataError when its documents cannot be read.
        """
        reading = self._open.pop(portion, None)
        if reading is None or reading.number > number:
            reading = _Reading(self._counted(portion))
        reading.go_to(number)
        self._open[portion] = reading
        if len(self._open) > KEPT_OPEN:
            del self._open[min(self._open, key=lambda each: not self._open[each].is_over)]  # the oldest that has ended
        if reading.number < number:
            raise EndedError(
                f"{self.portions[portion].name} has fewer documents than when its texts were routed; bring back the "
                "documents as they were, or remove the streams folder of the cache to begin anew"
            )
        return reading.found

    def _counted(self, portion: int) -> Iterator[Read]:
        def documents() -> Iterator[Document]:
            for document in self.portions[portion].read():
                self._work.characters += len(document.text)
                yield document

        return in_slices(documents())


Trained = Callable[[Document], bool]
"""Whether a document is trained on."""
