"""What this peer has routed, on the disk: for whoever asks, and for itself after a restart or on another path.

12.routed   slices of portion 12, one after the other, after the number of the first one

Two programs look at it: the reader writes, the program that trains reads and gives. A slice that is not there whole
(a reader that was killed) ends its file.
"""

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from dipaco_swarm.training.reading.shared.slices import Slice, slices_in

_FIRST = struct.Struct("<I")
_LENGTH = struct.Struct("<I")
PART_BYTES = 2 << 20
"""What is given at once, unless one slice is more."""


@dataclass(frozen=True)
class Span:
    """Slices of a portion that are there."""

    first: int
    end: int
    is_whole: bool
    """Whether the last one is the last of the portion."""


class Shelf:
    """The folder. `add` and `make_room` are for the reader alone."""

    def __init__(self, folder: Path, paths: int, vocabulary: int) -> None:
        """`vocabulary`: token ids are below that."""
        self.folder = folder
        self._paths = paths
        self._vocabulary = vocabulary
        self.spans: dict[int, Span] = {}
        """Of each portion, as far as `look` and `add` know."""

    def look(self) -> None:
        """Find out what is there; what is torn is cut off. Raises OSError."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for file in sorted(self.folder.glob("*.routed")):
            portion = int(file.stem)
            first = self._first(portion)
            found = [] if first is None else [body for _, body in self._bodies(portion, first)]
            if first is None or not found:
                file.unlink()
                continue
            whole = _FIRST.size + sum(map(len, found))
            os.truncate(file, whole)
            (last,) = slices_in(found[-1], self._paths, self._vocabulary)
            self.spans[portion] = Span(first, first + len(found), last.is_last)

    @property
    def size(self) -> int:
        """Bytes on the disk."""
        return sum(file.stat().st_size for file in self.folder.glob("*.routed"))

    def add(self, portion: int, number: int, what: Slice) -> None:
        """Slices of a portion come one after the other. Raises OSError."""
        span = self.spans.get(portion, Span(number, number, False))
        assert number == span.end, f"slice {number} of a portion of which {span} is there"
        with open(self._file(portion), "ab") as file:
            data = what.to_bytes()
            file.write(data if file.tell() else _FIRST.pack(number) + data)
        self.spans[portion] = Span(span.first, number + 1, what.is_last)

    def make_room(self, cap: int) -> list[int]:
        """Remove portions, what was routed first comes first, until the rest takes at most `cap` bytes; which."""
        files = sorted(self.folder.glob("*.routed"), key=lambda file: (file.stat().st_mtime_ns, file.name))
        total, gone = sum(file.stat().st_size for file in files), []
        for file in files[:-1]:
            if total <= cap:
                break
            total -= file.stat().st_size
            self.drop(int(file.stem))
            gone.append(int(file.stem))
        return gone

    def drop(self, portion: int) -> None:
        self._file(portion).unlink(missing_ok=True)
        self.spans.pop(portion, None)

    def read(self, portion: int, number: int) -> Slice | None:
        """A slice that is there."""
        for at, body in self._bodies(portion, number):
            if at == number:
                return slices_in(body, self._paths, self._vocabulary)[0]
        return None

    def part(self, portion: int, number: int, path: int) -> bytes | None:
        """What a peer of a path is told of a portion, from a slice on: some slices, one after the other."""
        told, size = [], 0
        for _, body in self._bodies(portion, number):
            try:
                told.append(slices_in(body, self._paths, self._vocabulary)[0].told_to(path).to_bytes())
            except ValueError:
                break  # it is being written
            size += len(told[-1])
            if size >= PART_BYTES:
                break
        return b"".join(told) or None

    def _bodies(self, portion: int, number: int) -> Iterator[tuple[int, bytes]]:
        """Slices from one on as they lie there, each with its length."""
        first = self._first(portion)
        if first is None or number < first:
            return
        with open(self._file(portion), "rb") as file:
            file.seek(_FIRST.size)
            for at in count(first):
                begin = file.read(_LENGTH.size)
                size = _LENGTH.unpack(begin)[0] if len(begin) == _LENGTH.size else 0
                if not size:
                    return
                if at < number:
                    file.seek(size, os.SEEK_CUR)
                    continue
                body = file.read(size)
                if len(body) < size:
                    return
                yield at, begin + body

    def _first(self, portion: int) -> int | None:
        """The slice with which a portion begins here; None: it is not here."""
        try:
            begin = _beginning(self._file(portion))
        except FileNotFoundError:
            return None
        return _FIRST.unpack(begin)[0] if len(begin) == _FIRST.size else None

    def _file(self, portion: int) -> Path:
        return self.folder / f"{portion}.routed"


def _beginning(file: Path) -> bytes:
    with open(file, "rb") as opened:
        return opened.read(_FIRST.size)
