"""The shard of one path: its training sequences, built once, cached on disk, read through a memory map.

It is built chunk by chunk (`packing.py`): an interruption costs one chunk at most. In the folder of a shard are

    tokens.bin       the sequences                      progress.json    how far a build has come
    held.bin         pieces that are not trained on     shard.json       how it was built: it is complete
"""

import hashlib
import json
import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer
from torch import Tensor

from dipaco_swarm.algorithm.paths import PathIndex
from dipaco_swarm.errors import DataError, cannot_write
from dipaco_swarm.files import flush, locked, replace_whole
from dipaco_swarm.run.config import DataConfig, RouterConfig
from dipaco_swarm.training.documents import Document, in_chunks
from dipaco_swarm.training.encoding import encoder, remembered_encoding
from dipaco_swarm.training.packing import Assign, Packed, Packer, ShardProgress
from dipaco_swarm.training.pieces import EvaluationSet

log = logging.getLogger(__name__)

FORMAT = 1


@dataclass(frozen=True, eq=False)
class Shard:
    """The packed training sequences of one path."""

    tokens: NDArray[np.uint16] | NDArray[np.uint32]
    """Memory map, shape (sequences, T)."""
    progress: ShardProgress
    """How it was built."""
    held_out: NDArray[np.int32] | None = None
    """Memory map of the pieces that are not trained on, (pieces, 1 + T): length and tokens. None without any."""

    def slice(self, at_most: int) -> EvaluationSet | None:
        """What is held out, or `at_most` pieces spread over it; None when nothing is."""
        if self.held_out is None:
            return None
        count = len(self.held_out)
        rows = self.held_out[np.linspace(0, count - 1, min(count, at_most)).astype(np.int64)].astype(np.int64)
        return EvaluationSet(rows[:, 1:], rows[:, 0], ("",) * len(rows))

    @property
    def holds_out(self) -> bool:
        return self.held_out is not None

    @property
    def num_sequences(self) -> int:
        return len(self.tokens)

    @property
    def num_tokens(self) -> int:
        return self.tokens.size

    def batches(self, batch_sequences: int, seed: int, start: int = 0) -> Iterator[Tensor]:
        """Endless training batches, int64 (batch_sequences, T), in a new seeded order in every epoch.

        `start`: batches already consumed; going on from there costs the same as starting and gives the same batches as
        never having stopped. A batch may span two epochs, so every sequence comes once before any comes again.
        """
        epoch, order = -1, np.empty(0, dtype=np.int64)
        position = start * batch_sequences
        while True:
            rows = np.empty(batch_sequences, dtype=np.int64)
            for i in range(batch_sequences):
                if position // self.num_sequences != epoch:
                    epoch = position // self.num_sequences
                    order = np.random.default_rng([abs(seed), epoch]).permutation(self.num_sequences)
                rows[i] = order[position % self.num_sequences]
                position += 1
            yield torch.from_numpy(self.tokens[rows].astype(np.int64))


@dataclass(frozen=True)
class ShardRecipe:
    """What decides the bytes of a shard, next to the documents themselves."""

    data: DataConfig
    router_config: RouterConfig
    tokenizer: str
    """Digest of the tokenizer's bytes."""
    router: str | None
    """Digest of the router's bytes; none in a stage of one path."""
    path: PathIndex
    overlap: int = 1
    """Nearest paths that a document goes to."""
    hold_out: float = 0.0
    """Share of the documents that are not trained on; 0: none."""

    def key(self) -> str:
        """The name of the shard in the cache: equal recipes, equal keys."""
        parts = {
            "format": FORMAT,
            "data": self.data.model_dump(mode="json", exclude={"reading", "shares"}),
            "prefix_tokens": self.router_config.prefix_tokens,
            "tokenizer": self.tokenizer,
            "router": self.router,
            "path": self.path,
        }
        if self.overlap > 1:  # shards that do not overlap keep the names they always had
            parts["overlap"] = self.overlap
        if self.hold_out:
            parts["hold_out"] = self.hold_out
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]


def build_shard(
    documents: Callable[[], Iterable[Document]],
    tokenizer: Tokenizer,
    data: DataConfig,
    router_config: RouterConfig,
    assign: Assign | None,
    path: PathIndex,
    *,
    cache: Path,
    key: str,
    hold_out: float = 0.0,
    remember: Path | None = None,
    on_progress: Callable[[ShardProgress], None] = lambda progress: None,
) -> Shard:
    """The shard of a path: from the cache if it is there, else built from the documents and cached.

    `documents()` starts from the first document; it is not called at all when the cache has the shard. `assign` gives
    the path of each piece; with None all pieces are this path's. `key` names the shard in `cache` (`ShardRecipe.key`).
    `remember`: a folder, of this tokenizer alone, for the tokens of all documents; all stages and paths share it.
    `hold_out`: this share of the documents, chosen by a hash of the text, is kept out of the training sequences
    (`Shard.slice`); one document at least, but never all: a shard of one document is trained on whole.
    `on_progress` is called after each saved chunk and may raise to interrupt; a later call with the same key goes on
    from there and ends with the same bytes. If the documents have changed in between, the build starts afresh.

    Raises DataError when no piece belongs to the path, HomeError when the cache cannot be written.
    """
    folder = cache / key
    encode = encoder(tokenizer) if remember is None else remembered_encoding(encoder(tokenizer), remember)
    packer = Packer(tokenizer, encode, data, router_config.prefix_tokens, assign, path, hold_out)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with locked(folder, on_busy=_say_that_we_wait):  # the second reads what the first has built
            shard = _open(folder, data.sequence_length)
            if shard is None:
                _build(folder, documents, packer, on_progress)
                shard = _open(folder, data.sequence_length)
    except OSError as error:
        raise cannot_write(f"the shard of path {path}", cache, error) from error
    if shard is None:
        raise DataError(f"the shard of path {path} in {folder} is not as it was written; check the disk")
    return shard


def _build(
    folder: Path,
    documents: Callable[[], Iterable[Document]],
    packer: Packer,
    on_progress: Callable[[ShardProgress], None],
) -> None:
    """Write `tokens.bin`, `held.bin` and `progress.json` chunk by chunk; `shard.json` says that it is complete."""
    length = packer.data.sequence_length
    row_bytes, held_bytes = length * packer.dtype.itemsize, _held_bytes(length)
    progress, stream = _resume(folder, documents, row_bytes, held_bytes)
    with open(folder / "tokens.bin", "ab") as file, open(folder / "held.bin", "ab") as held_file:
        file.truncate(progress.sequences * row_bytes)  # what was written but not yet counted
        held_file.truncate(progress.held_out * held_bytes)

        def write(step: Packed) -> ShardProgress:
            held_file.truncate((step.progress.held_out - len(step.held)) * held_bytes)
            for to, rows in ((file, step.sequences), (held_file, step.held)):
                to.write(rows.tobytes())
                flush(to)  # before progress.json counts what was written
            return step.progress

        for chunk in in_chunks(stream):
            progress = write(packer.advance(progress, chunk))
            _note(folder / "progress.json", progress)
            on_progress(progress)
        if progress.pieces_kept == 0:
            raise DataError(_nothing(progress, packer))
        if packer.hold_out:
            held = _held(folder, progress.held_out, length)
            progress = write(packer.finish(progress, [row[1 : 1 + row[0]].astype(np.int64) for row in held]))
        if progress.sequences == 0:  # a few short pieces: one sequence that repeats them
            row = np.resize(np.array(progress.pending, dtype=packer.dtype), packer.data.sequence_length)
            file.write(row.tobytes())
            flush(file)
            progress = replace(progress, sequences=1)
    _note(folder / "shard.json", progress)
    (folder / "progress.json").unlink(missing_ok=True)
    if not progress.held_out:
        (folder / "held.bin").unlink()


def _resume(
    folder: Path, documents: Callable[[], Iterable[Document]], row_bytes: int, held_bytes: int
) -> tuple[ShardProgress, Iterator[Document]]:
    """Where an interrupted build stands, and the documents that follow."""
    progress = _read(folder / "progress.json")
    if progress is None:
        return ShardProgress(), iter(documents())
    stream = iter(documents())
    skipped = deque(islice(stream, progress.documents), maxlen=1)  # the last of them
    written = (
        _size(folder / "tokens.bin") >= progress.sequences * row_bytes
        and _size(folder / "held.bin") >= progress.held_out * held_bytes
    )
    if skipped and skipped[0].digest == progress.last_document and written:
        return progress, stream
    log.info("the documents have changed since this shard was begun; it is built afresh")
    return ShardProgress(), iter(documents())


def _open(folder: Path, sequence_length: int) -> Shard | None:
    """The finished shard; None when there is none or the disk lost part of it."""
    progress = _read(folder / "shard.json")
    if progress is None:
        return None
    rows, file = progress.sequences, folder / "tokens.bin"
    width, rest = divmod(_size(file), rows * sequence_length)
    if rest or width not in (2, 4):
        return None
    if progress.held_out and _size(folder / "held.bin") != progress.held_out * _held_bytes(sequence_length):
        return None
    dtype = np.uint16 if width == 2 else np.uint32
    held = _held(folder, progress.held_out, sequence_length) if progress.held_out else None
    return Shard(np.memmap(file, dtype=dtype, mode="r", shape=(rows, sequence_length)), progress, held)


def _held(folder: Path, pieces: int, sequence_length: int) -> NDArray[np.int32]:
    """The first pieces that are held out, (pieces, 1 + T)."""
    shape = (pieces, 1 + sequence_length)
    return (
        np.memmap(folder / "held.bin", dtype=np.int32, mode="r", shape=shape) if pieces else np.empty(shape, np.int32)
    )


def _held_bytes(sequence_length: int) -> int:
    return (1 + sequence_length) * np.dtype(np.int32).itemsize


def _read(file: Path) -> ShardProgress | None:
    """A saved progress; None when there is none or it is torn (a machine that lost power)."""
    try:
        fields = json.loads(file.read_text(encoding="utf-8"))
        reserve = tuple(map(tuple, fields.get("reserve", ())))
        return ShardProgress(**{**fields, "pending": tuple(fields["pending"]), "reserve": reserve})
    except (FileNotFoundError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _note(file: Path, progress: ShardProgress) -> None:
    replace_whole(file, json.dumps(asdict(progress)).encode(), durable=False)


def _size(file: Path) -> int:
    return file.stat().st_size if file.is_file() else 0


def _say_that_we_wait() -> None:
    log.info("another peer of this machine is building the same shard; waiting for it")


def _nothing(progress: ShardProgress, packer: Packer) -> str:
    """What to tell someone whose path has no documents."""
    if progress.documents == 0:
        return "the data source has no documents at all; check data.source and data.path"
    if progress.pieces == 0:
        return (
            f"none of {progress.documents} documents has a training piece of more than {packer.prefix_tokens} tokens; "
            "bring more or longer documents, or lower router.prefix_tokens"
        )
    return (
        f"path {packer.path} has no documents: the router gave all {progress.pieces} pieces of {progress.documents} "
        "documents to other paths; bring more documents, train another path (--path auto), or ask the operator to "
        "raise router.min_share"
    )
