"""A volunteer's own documents: trained on by its peer alone, for a share of its sequences.

    sequence 0    1    2    3    4    5    6 ...       of what the path is trained on, counted from its first
    share 0.4         own       own  own  ...          evenly spread, so that a count says which they are

They are no part of the corpus: nothing of them is routed, held out, sampled, offered to others or named anywhere. All
of them go to the path that this peer trains: of a few documents among many paths nearly all would be somebody else's.
"""

import glob
import hashlib
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer

from dipaco_swarm.algorithm.paths import PathIndex
from dipaco_swarm.errors import DataError, UsageError, cannot_write
from dipaco_swarm.events.joining import OwnDocuments
from dipaco_swarm.run.config import DataConfig
from dipaco_swarm.run.data import SourceConfig
from dipaco_swarm.settings import Own
from dipaco_swarm.training.documents import Portion, portions_of
from dipaco_swarm.training.encoding import encoder
from dipaco_swarm.training.inner import Batches
from dipaco_swarm.training.pieces import EvaluationSet
from dipaco_swarm.training.reading.blocks import LAYOUT, Blocks
from dipaco_swarm.training.reading.cheap import CheapRouting
from dipaco_swarm.training.reading.making import BlockMaker, Rules
from dipaco_swarm.training.reading.places import Corpus
from dipaco_swarm.training.reading.store import BlockStore
from dipaco_swarm.training.sources.opening import COMPRESSED
from dipaco_swarm.training.tokenizer import end_of_text_id, stored_as, vocabulary_size

KINDS = {
    "text": (".txt", ".text", ".md", ".rst", ".tex", ".org"),
    "jsonl": (".jsonl", ".ndjson", ".json"),
    "parquet": (".parquet",),
}
"""Source -> endings of its files. Text and JSON lines may be packed as well."""
BLOCK_SEQUENCES = 128
"""Made at once, while training waits: a fraction of a second."""
BLOCK_BYTES = 1 << 20
KEPT_BLOCKS = 64
"""On the disk; others are made again when they are needed."""
FOLDER = "own"
"""In the home folder of a peer."""


def found_in(folder: Path) -> dict[str, list[str]]:
    """The files of each kind in a folder, and below it. Raises UsageError when there are none."""
    if not folder.is_dir():
        raise UsageError(f"--own-data {folder}: there is no such folder; name the one with your documents")
    found: dict[str, list[str]] = {}
    others: Counter[str] = Counter()
    for file in sorted(glob.glob(f"{glob.escape(str(folder))}/**/*", recursive=True)):
        if not os.path.isfile(file):
            continue
        name = file.lower()
        plain = name if not name.endswith(COMPRESSED) else os.path.splitext(name)[0]
        kind = next((kind for kind, endings in KINDS.items() if plain.endswith(endings)), None)
        if kind is None or (kind == "parquet" and plain != name):
            others[os.path.splitext(file)[1] or "no ending"] += 1
        else:
            found.setdefault(kind, []).append(file)
    if not found:
        there = ", ".join(f"{count} {ending}" for ending, count in others.most_common(4)) or "it is empty"
        raise UsageError(
            f"--own-data {folder} has nothing that can be read ({there}); text has to end in "
            f"{', '.join(KINDS['text'])}, rows in {', '.join((*KINDS['jsonl'], *KINDS['parquet']))}"
        )
    return found


def own_portions(folder: Path) -> list[Portion]:
    """The documents of a folder. Raises UsageError and DataError."""
    return [
        portion
        for kind, files in found_in(folder).items()
        for file in files
        for portion in portions_of(SourceConfig(source=kind, path=glob.escape(file), domain=FOLDER))
    ]


def look_at(own: Own) -> OwnDocuments:
    """What there is, after reading the first document of each kind. Raises UsageError."""
    found = found_in(own.folder)
    for kind, files in found.items():
        data = SourceConfig(source=kind, path=glob.escape(files[0]), domain=FOLDER)
        try:
            next(iter(portions_of(data)[0].read() if os.path.getsize(files[0]) else ()), None)
        except DataError as error:
            raise UsageError(_unreadable(own.folder, error)) from None
    every = [file for files in found.values() for file in files]
    return OwnDocuments(len(every), sum(map(os.path.getsize, every)), own.share)


def _unreadable(folder: Path, error: DataError) -> str:
    return f"--own-data {folder}: {error}. Rows need their text in a column called text; move away what is none"


class OwnSequences:
    """The volunteer's documents as sequences, in an order without end."""

    def __init__(self, own: Own, tokenizer: Tokenizer, length: int, seed: int) -> None:
        """`length`: tokens of a sequence. Raises SwarmError."""
        portions = own_portions(own.folder)
        self._own, self._seed = own, seed
        vocabulary = vocabulary_size(tokenizer)
        first, row_bytes = 16, length * stored_as(vocabulary).itemsize
        blocks = Blocks(first, max(first, min(BLOCK_SEQUENCES, BLOCK_BYTES // row_bytes)))
        digest = hashlib.sha256(f"{tokenizer.to_str()}\n{length}\n{seed}\n{LAYOUT}".encode())
        for file in chain.from_iterable(found_in(own.folder).values()):
            there = os.stat(file)
            digest.update(f"{file}\n{there.st_size} {there.st_mtime_ns}\n".encode())
        kept = own.home / FOLDER
        folder = kept / digest.hexdigest()[:16]
        try:
            for other in kept.glob("*"):
                if other != folder:
                    shutil.rmtree(other, ignore_errors=True)
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            kept.chmod(0o700)  # it is as private as what it is made of
        except OSError as error:
            raise cannot_write("your own documents", own.home, error) from error
        self._store = BlockStore(folder, blocks, length, vocabulary)
        unsplit = DataConfig(source="python", sequence_length=length).model_copy(
            update={"holdout": 0.0, "routing_sample": 0.0}
        )  # nothing of them is set apart for anybody
        self._maker = BlockMaker(
            self._store,
            Corpus(portions, seed, 0),
            CheapRouting(encoder(tokenizer), None, PathIndex(0), length, 0),
            Rules(unsplit, end_of_text_id(tokenizer), 0.0),
            lambda place: None,
        )

    def rows(self, start: int) -> Iterator[NDArray[np.int64]]:
        """Sequences (T,) from number `start` on, shuffled within windows. Raises DataError, and HomeError."""
        position = start
        while True:
            window = self._store.window_at(position)
            for block in window.blocks:
                self._make(block, window.blocks)
            rows = self._store.shuffled(window, self._seed)
            if rows is None:
                continue  # the documents have ended before it: now it is known where
            for row in rows:
                yield row
                position += 1

    def _make(self, block: int, window: range) -> None:
        """A block of a window, where it is not there."""
        if self._store.has(block):
            return
        try:
            self._maker.make(block)
            self._store.make_room(self._store.folder, KEPT_BLOCKS * BLOCK_BYTES, window)
        except DataError as error:
            raise DataError(_unreadable(self._own.folder, error)) from None
        except OSError as error:
            raise cannot_write("your own documents", self._store.folder, error) from error


class Sequences(Protocol):
    """What a path is trained on."""

    def batches(self, batch_sequences: int, seed: int, start: int = 0) -> Batches: ...

    def slice(self, at_most: int) -> EvaluationSet | None: ...

    @property
    def holds_out(self) -> bool:
        """Whether some of them are not trained on, or may not be: of a stream that is found out later."""
        ...


class WithOwn:
    """The sequences of a path, of which some give way to the volunteer's own."""

    def __init__(self, of_run: Sequences, own: OwnSequences, share: float) -> None:
        self._of_run = of_run
        self._own = own
        self._share = share

    @property
    def holds_out(self) -> bool:
        return self._of_run.holds_out

    def slice(self, at_most: int) -> EvaluationSet | None:
        """What is held out of the run's documents; nothing ever is of the volunteer's own."""
        return self._of_run.slice(at_most)

    def batches(self, batch_sequences: int, seed: int, start: int = 0) -> Batches:
        """As of the run's: pure in `start`, and with as many own sequences as the share says."""
        position = start * batch_sequences
        before = self._before(position)
        of_run = _rows(self._of_run.batches, batch_sequences, seed, position - before)
        own = self._own.rows(before)
        rows: list[NDArray[np.int64]] = []
        while True:
            row = next(own if self._before(position + 1) > self._before(position) else of_run)
            if row is None:
                yield None
                continue
            rows.append(row)
            position += 1
            if len(rows) == batch_sequences:
                yield torch.from_numpy(np.stack(rows))
                rows = []

    def _before(self, position: int) -> int:
        """Own sequences among the first `position`."""
        return int(position * self._share)


def _rows(
    batches: Callable[[int, int, int], Batches], size: int, seed: int, start: int
) -> Iterator[NDArray[np.int64] | None]:
    """The single sequences of batches from sequence `start` on; None where the next one is not there yet."""
    skip = start % size
    for batch in batches(size, seed, start // size):
        if batch is None:
            yield None
            continue
        yield from batch.numpy()[skip:]
        skip = 0
