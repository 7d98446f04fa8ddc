"""Which slices the sequences of a stream come from, in which order, and which of their texts are ours.

One line of JSON for each slice. With the documents it says all that is needed to make the stream again: so what others
have sent is not kept, and after a restart the same sequences come whether or not those others are still there.
"""

import base64
import json
import os
import zlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from dipaco_swarm.training.encoding import Indices


@dataclass(frozen=True)
class Use:
    """A slice that was used."""

    portion: int
    number: int
    documents: int
    characters: int
    is_last: bool
    """Of its portion."""
    texts: int
    """Of all paths."""
    ours: str
    """Which of them are of our path: a bit for each, compressed, in base 64."""
    by: str
    """The peer that routed it; empty: we did."""

    @property
    def numbers(self) -> Indices:
        """Of our texts, int64."""
        bits = np.frombuffer(zlib.decompress(base64.b64decode(self.ours)), dtype=np.uint8)
        return np.flatnonzero(np.unpackbits(bits, count=self.texts))


def bits_of(numbers: Sequence[int] | Indices, texts: int) -> str:
    """What `Use.ours` says."""
    flags = np.zeros(texts, dtype=np.uint8)
    flags[np.asarray(numbers, dtype=np.int64)] = 1
    return base64.b64encode(zlib.compress(np.packbits(flags).tobytes(), 9)).decode()


class Ledger:
    """The list, in a file that only grows."""

    def __init__(self, file: Path) -> None:
        """Raises OSError when the file cannot be used."""
        self._file = file
        self.uses: list[Use] = []
        self.done: dict[int, int] = {}
        """Portion -> slices of it that were used: always the first ones."""
        self.through: set[int] = set()
        """Portions that were used to their end."""
        self.by: dict[int, str] = {}
        """Portion -> the peer that routed the last slice of it that was used; empty: we did."""
        self._read()

    def __len__(self) -> int:
        return len(self.uses)

    def add(self, use: Use) -> None:
        """Raises OSError. What comes of the slice may be used when this returns."""
        with open(self._file, "ab") as file:
            file.write(json.dumps(asdict(use)).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())  # before what counts on it
        self._note(use)

    def end(self, portion: int) -> None:
        """It has no more documents than were used. Not written: whoever reads on finds that out again."""
        self.through.add(portion)

    def _note(self, use: Use) -> None:
        self.uses.append(use)
        self.done[use.portion] = use.number + 1
        self.by[use.portion] = use.by
        if use.is_last:
            self.through.add(use.portion)

    def _read(self) -> None:
        """What is there; a last line that is torn is cut off."""
        self._file.touch()
        whole = 0
        with open(self._file, "rb") as file:
            for line in file:
                try:
                    use = Use(**json.loads(line))
                except (ValueError, TypeError):
                    break
                if not line.endswith(b"\n"):
                    break
                self._note(use)
                whole += len(line)
        os.truncate(self._file, whole)
