"""The folder of a stream.

7.json         where in the corpus block 7 begins: stays, so that the block can be made again
7.bin          the block's sequences, (sequences, T), whole
7.part         the beginning of it, while it is made
frontier.json  how far the reader has come with that
end.json       how many sequences there are, once the corpus was read to its end
held.npy       pieces that are not trained on, (pieces, 1 + T): length and tokens
begun.json     the first batch of training that was taken from here
"""

import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import numpy as np
from numpy.typing import NDArray

from dipaco_swarm.files import flush, replace_whole
from dipaco_swarm.training.encoding import Indices
from dipaco_swarm.training.reading.blocks import Blocks, order_in
from dipaco_swarm.training.reading.places import Place
from dipaco_swarm.training.tokenizer import stored_as

T = TypeVar("T")


@dataclass(frozen=True)
class Frontier:
    """How far a block that is being made has come."""

    block: int
    sequences: int
    """In its `.part`, at least."""
    place: Place
    """Of the chunk that comes next."""


@dataclass(frozen=True)
class End:
    """The corpus was read to its end."""

    sequences: int
    place: Place


@dataclass(frozen=True)
class Window:
    """What is shuffled together, and how much of it was trained on before."""

    epoch: int
    blocks: range
    skip: int
    """Sequences, in its order."""


class BlockStore:
    """The files of a stream. Two programs look at them: one makes blocks, the other trains on them."""

    def __init__(self, folder: Path, blocks: Blocks, length: int, vocabulary: int) -> None:
        """`length`: of a sequence; `vocabulary`: its token ids are below that."""
        self.folder = folder
        self.blocks = blocks
        self.length = length
        self.vocabulary = vocabulary
        self.dtype = stored_as(vocabulary)

    @property
    def row_bytes(self) -> int:
        return int(self.length * self.dtype.itemsize)

    def size(self, block: int) -> int:
        """Sequences of a block; the last one may be smaller, and there is none after it."""
        size, end = self.blocks.size(block), self.end
        return size if end is None else max(0, min(size, end.sequences - self.blocks.start(block)))

    def has(self, block: int) -> bool:
        """Whether the block is here, whole."""
        size = self.size(block)
        return size > 0 and _size(self._file(block, "bin")) == size * self.row_bytes

    def open(self, block: int) -> NDArray[np.generic] | None:
        """The sequences of a block, (sequences, T), mapped; None when it is not here. It counts as used just now."""
        if not self.has(block):
            return None
        file = self._file(block, "bin")
        try:
            os.utime(file)
            return np.memmap(file, dtype=self.dtype, mode="r", shape=(self.size(block), self.length))
        except FileNotFoundError:  # the reader made room just now
            return None

    @property
    def blocks_in_all(self) -> int | None:
        """How many there are; None before the corpus was read to its end."""
        end = self.end
        return None if end is None else self.blocks.holding(end.sequences - 1) + 1

    def window(self, block: int, epoch: int) -> range:
        """The blocks that are shuffled together with this one in an epoch, of those that there are."""
        window, count = self.blocks.window(block, epoch), self.blocks_in_all
        return window if count is None else range(window.start, min(window.stop, count))

    def window_at(self, position: int) -> Window:
        """Where training is after so many sequences, over all epochs."""
        end = self.end
        epoch, sequence = divmod(position, end.sequences) if end is not None else (0, position)
        blocks = self.window(self.blocks.holding(sequence), epoch)
        return Window(epoch, blocks, sequence - self.blocks.start(blocks.start))

    def shuffled(self, window: Window, seed: int) -> Iterator[NDArray[np.int64]] | None:
        """The rest of a window, sequence by sequence (T,), in its order; None when some of its blocks are not here."""
        parts = [part for block in window.blocks if (part := self.open(block)) is not None]
        if len(parts) < len(window.blocks):
            return None
        rows = parts[0] if len(parts) == 1 else np.concatenate(parts)
        order = order_in(window.blocks.start, len(rows), seed, window.epoch)
        return (rows[place].astype(np.int64) for place in order[window.skip :])

    # what the reader does ---------------------------------------------------------------------------------------------

    def place(self, block: int) -> Place | None:
        """Where a block begins; None where nobody has been there yet."""
        return Place() if block == 0 else _read(self._file(block, "json"), Place.from_fields)

    def frontier(self, block: int) -> Frontier | None:
        """How far an interrupted making of a block had come; None: it begins anew."""
        found = _read(
            self.folder / "frontier.json", lambda f: Frontier(**{**f, "place": Place.from_fields(f["place"])})
        )
        if found is None or found.block != block:
            return None
        return found if _size(self._file(block, "part")) >= found.sequences * self.row_bytes else None

    def begin(self, block: int, sequences: int) -> BinaryIO:
        """The unfinished file of a block, after its first `sequences`."""
        file = open(self._file(block, "part"), "r+b" if sequences else "w+b")  # noqa: SIM115 - the caller closes it
        file.truncate(sequences * self.row_bytes)
        file.seek(0, os.SEEK_END)
        return file

    def finish(self, block: int, file: BinaryIO, following: Place) -> None:
        """A block is whole: it appears, after the place of the one that follows."""
        flush(file)
        file.close()
        self._note(self._file(block + 1, "json"), asdict(following))
        os.replace(self._file(block, "part"), self._file(block, "bin"))

    def note(self, frontier: Frontier) -> None:
        self._note(self.folder / "frontier.json", asdict(frontier))

    @property
    def end(self) -> End | None:
        return _read(self.folder / "end.json", lambda f: End(f["sequences"], Place.from_fields(f["place"])))

    def note_end(self, end: End) -> None:
        self._note(self.folder / "end.json", asdict(end))

    def make_room(self, whole: Path, cap: int, needed: Sequence[int]) -> bool:
        """Remove blocks, longest unused first, until those in the folder `whole` take at most `cap` bytes.

        `needed`: blocks of ours that stay. Returns whether anything was removed.
        """
        keep = {self._file(block, "bin") for block in needed}
        found = [(file.stat(), file) for file in whole.rglob("*.bin")]
        before = total = sum(stat.st_size for stat, _ in found)
        for stat, file in sorted(found, key=lambda each: (each[0].st_mtime_ns, each[1])):
            if total > cap and file not in keep:
                file.unlink(missing_ok=True)
                total -= stat.st_size
        return total < before

    # what early stopping looks at -------------------------------------------------------------------------------------

    @property
    def held(self) -> Indices | None:
        """Pieces that are not trained on, (pieces, 1 + T); None until they were looked for."""
        try:
            held: Indices = np.load(self.folder / "held.npy", allow_pickle=False).astype(np.int64)
            return held
        except (FileNotFoundError, ValueError, EOFError):
            return None

    def hold(self, pieces: Sequence[Indices]) -> None:
        rows = np.zeros((len(pieces), 1 + self.length), dtype=np.int32)
        for row, piece in zip(rows, pieces, strict=True):
            row[0], row[1 : 1 + len(piece)] = len(piece), piece

        def write(file: Path) -> None:
            with open(file, "wb") as opened:
                np.save(opened, rows, allow_pickle=False)

        replace_whole(self.folder / "held.npy", write, durable=False)

    # where training began ---------------------------------------------------------------------------------------------

    def begun(self, batches: int) -> int:
        """The batch of training that is the first of this stream, when `batches` have been consumed by now.

        A stream that was begun anew, because its folder was lost or the corpus is another, counts from here.
        """
        file = self.folder / "begun.json"
        first = _read(file, lambda found: int(found["batches"]))
        if first is None or first > batches:
            first = batches
            self._note(file, {"batches": first})
        return first

    def _file(self, block: int, ending: str) -> Path:
        return self.folder / f"{block}.{ending}"

    def _note(self, file: Path, fields: object) -> None:
        replace_whole(file, json.dumps(fields).encode(), durable=False)


def _read(file: Path, made: Callable[[dict[str, Any]], T]) -> T | None:
    """A value that was noted; None when there is none, or it is torn (a machine that lost power)."""
    try:
        return made(json.loads(file.read_text(encoding="utf-8")))
    except (FileNotFoundError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _size(file: Path) -> int:
    return file.stat().st_size if file.is_file() else 0
