"""Documents -> tokens -> the shard of one path, on disk; and the held-out pieces that everybody is scored on.

    document --cut--> pieces of at most T tokens --assign--> path --pack--> sequences of exactly T tokens

A piece is routed on its own first tokens, as a chunk of text is at generation time. Held-out and routing documents are
set apart whole, so no piece of them is ever trained on. A run with early stopping sets apart a slice of each shard's
documents as well. A shard is built once, chunk by chunk: an interruption costs one chunk at most. Then it is read
through a memory map.
"""

import hashlib
import json
import logging
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
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
from dipaco_swarm.training.documents import Document, Split, split_of
from dipaco_swarm.training.encoding import Encode, encoder, remembered_encoding
from dipaco_swarm.training.tokenizer import end_of_text_id, vocabulary_size

Indices = NDArray[np.int64]
Assign = Callable[[Indices], Indices]
"""Prefixes (pieces, prefix_tokens) -> path of each piece (pieces,), or n paths (pieces, n) for overlapping shards."""

log = logging.getLogger(__name__)

FORMAT = 1
CHUNK_DOCUMENTS = 256  # documents between two saved states; about 2 MB of text, a second of work
PIECES_PER_DOCUMENT = 4  # of a held-out document, so that a few long ones do not stand for a domain
SETTLED_DOCUMENTS = (
    2_000  # an endless stream is left when all domains are full and so many documents brought no new one
)


@dataclass(frozen=True)
class ShardProgress:
    """The whole state of a shard that is being built; what `on_progress` sees and a restart needs."""

    documents: int = 0
    """Documents of the source that have been consumed, of all splits."""
    last_document: str = ""
    """Digest of the last of them, to notice that the source has changed."""
    sequences: int = 0
    """Sequences written."""
    pending: tuple[int, ...] = ()
    """Tokens that do not fill a sequence yet."""
    pieces: int = 0
    """Pieces of all paths."""
    pieces_kept: int = 0
    """Pieces of this path."""
    characters: int = 0
    """Characters of the training documents consumed."""
    held_out: int = 0
    """Pieces of this path that are held out of its training."""
    reserve: tuple[tuple[int, ...], ...] = ()
    """Until a document is held out: the pieces of the candidate, which is held out at the end if no other was."""
    reserve_place: float = 1.0
    """The candidate's place in 0..1, by its hash: the lowest so far."""


@dataclass(frozen=True, eq=False)
class Shard:
    """The packed training sequences of one path."""

    tokens: NDArray[np.uint16] | NDArray[np.uint32]
    """Memory map, shape (sequences, T)."""
    progress: ShardProgress
    """How it was built."""
    held_out: NDArray[np.int32] | None = None
    """Memory map of the pieces that are not trained on, (pieces, 1 + T): length and tokens. None without any."""

    def slice(self, at_most: int) -> "EvaluationSet | None":
        """What is held out, or `at_most` pieces spread over it; None when nothing is."""
        if self.held_out is None:
            return None
        count = len(self.held_out)
        rows = self.held_out[np.linspace(0, count - 1, min(count, at_most)).astype(np.int64)].astype(np.int64)
        return EvaluationSet(rows[:, 1:], rows[:, 0], ("",) * len(rows))

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


@dataclass(frozen=True, eq=False)
class EvaluationSet:
    """Pieces of documents that nobody trains on, one per row."""

    tokens: Indices
    """int64, shape (n, T), zero after the end of a piece."""
    lengths: Indices
    """Tokens of each piece, more than the prefix, int64, shape (n,)."""
    domains: tuple[str, ...]
    """Domain of each piece, length n."""


# ------------------------------------------------------------------------------------------------------------- pieces


def cut_into_pieces(ids: Indices, sequence_length: int, prefix_tokens: int) -> list[Indices]:
    """Consecutive pieces of a document, int64 (tokens,), each of `sequence_length` tokens but the last.

    A piece without a token after its prefix is dropped: there would be nothing to score.
    """
    pieces = [ids[start : start + sequence_length] for start in range(0, len(ids), sequence_length)]
    return [piece for piece in pieces if len(piece) > prefix_tokens]


def prefixes_of(pieces: Sequence[Indices], prefix_tokens: int) -> Indices:
    """What the router reads of each piece: int64 (pieces, prefix_tokens)."""
    return np.array([piece[:prefix_tokens] for piece in pieces], dtype=np.int64).reshape(len(pieces), prefix_tokens)


def evaluation_pieces(
    documents: Iterable[Document],
    tokenizer: Tokenizer,
    data: DataConfig,
    router: RouterConfig,
    per_domain: int,
    *,
    split: Split | None = "holdout",
) -> EvaluationSet:
    """Held-out pieces, at most `per_domain` of each domain and four of each document; raises DataError if none.

    `split` None: of all documents; for texts that are nobody's training data.
    An endless source is read until all domains are full and no new one has come for 2,000 documents.
    """
    return _collect(documents, tokenizer, data, router, (split, per_domain, PIECES_PER_DOCUMENT))


def routing_pieces(
    documents: Iterable[Document], tokenizer: Tokenizer, data: DataConfig, router: RouterConfig
) -> EvaluationSet:
    """The routing sample: pieces that routers are fitted on, at most `router.max_documents` of each domain and in all.

    All pieces of a document, as in a shard. Raises DataError when there are none.
    """
    found = _collect(documents, tokenizer, data, router, ("routing", router.max_documents, None))
    most = router.max_documents
    return EvaluationSet(found.tokens[:most], found.lengths[:most], found.domains[:most])


def routing_prefixes(
    documents: Iterable[Document], tokenizer: Tokenizer, data: DataConfig, router: RouterConfig
) -> Indices:
    """Prefixes of the routing sample: int64 (n, prefix_tokens), n at most `router.max_documents`."""
    return routing_pieces(documents, tokenizer, data, router).tokens[:, : router.prefix_tokens]


def _collect(
    documents: Iterable[Document],
    tokenizer: Tokenizer,
    data: DataConfig,
    router: RouterConfig,
    wanted: tuple[Split | None, int, int | None],
) -> EvaluationSet:
    """Pieces of one split: `wanted` is the split, pieces per domain, and pieces per document."""
    split, per_domain, per_document = wanted
    encode = encoder(tokenizer)
    pieces: list[Indices] = []
    domains: list[str] = []
    count: Counter[str] = Counter()
    seen, newest = 0, 0  # documents read, and how many when the newest domain came
    for chunk in _chunks(documents, CHUNK_DOCUMENTS):
        seen += len(chunk)
        for document in chunk:
            newest = newest if document.domain in count else seen
            count[document.domain] += 0
        chosen = [d for d in chunk if split in (None, split_of(d.text, data)) and count[d.domain] < per_domain]
        for document, ids in zip(chosen, encode([d.text for d in chosen]), strict=True):
            cut = cut_into_pieces(ids, data.sequence_length, router.prefix_tokens)[:per_document]
            cut = cut[: per_domain - count[document.domain]]
            count[document.domain] += len(cut)
            pieces += cut
            domains += [document.domain] * len(cut)
        if min(count.values()) >= per_domain and seen - newest >= SETTLED_DOCUMENTS:
            break
    if not pieces:
        raise DataError(_no_pieces(split, seen, data, router))
    tokens = np.zeros((len(pieces), data.sequence_length), dtype=np.int64)
    for row, piece in zip(tokens, pieces, strict=True):
        row[: len(piece)] = piece
    return EvaluationSet(tokens, np.array([len(piece) for piece in pieces], dtype=np.int64), tuple(domains))


def _no_pieces(split: Split | None, seen: int, data: DataConfig, router: RouterConfig) -> str:
    if split is None:
        return (
            f"none of {seen} documents has more than {router.prefix_tokens} tokens, which the router reads and nobody "
            "scores; give longer texts"
        )
    name, share = ("holdout", data.holdout) if split == "holdout" else ("routing_sample", data.routing_sample)
    return (
        f"none of {seen} documents is a {split} document of more than {router.prefix_tokens} tokens; data.{name}="
        f"{share} of the documents should be: bring more or longer documents, or raise it"
    )


def _chunks(documents: Iterable[Document], size: int) -> Iterator[list[Document]]:
    stream = iter(documents)
    while chunk := list(islice(stream, size)):
        yield chunk


# ----------------------------------------------------------------------------------------------------------- building


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
            "data": self.data.model_dump(mode="json"),
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
    cutter = _Cutter(tokenizer, encode, data, router_config.prefix_tokens, assign, path, hold_out)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with locked(folder, on_busy=_say_that_we_wait):  # the second reads what the first has built
            shard = _open(folder, data.sequence_length)
            if shard is None:
                _build(folder, documents, cutter, on_progress)
                shard = _open(folder, data.sequence_length)
    except OSError as error:
        raise cannot_write(f"the shard of path {path}", cache, error) from error
    if shard is None:
        raise DataError(f"the shard of path {path} in {folder} is not as it was written; check the disk")
    return shard


class _Cutter:
    """Turns documents into the packed sequences of one path; holds no state of its own."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        encode: Encode,
        data: DataConfig,
        prefix_tokens: int,
        assign: Assign | None,
        path: PathIndex,
        hold_out: float,
    ) -> None:
        self.encode = encode
        self.data = data
        self.prefix_tokens = prefix_tokens
        self.assign = assign
        self.path = path
        self.hold_out = hold_out
        self.end_of_text = end_of_text_id(tokenizer)
        self.dtype = np.dtype("<u2" if vocabulary_size(tokenizer) <= 2**16 else "<u4")

    def advance(self, progress: ShardProgress, chunk: Sequence[Document]) -> "_Advance":
        """The progress after a chunk of documents, the sequences it completed, and what of it is held out."""
        training = [document for document in chunk if split_of(document.text, self.data) == "train"]
        documents = [
            cut_into_pieces(ids, self.data.sequence_length, self.prefix_tokens)
            for ids in self.encode([document.text for document in training])
        ]
        pieces = [piece for cut in documents for piece in cut]
        mine = iter(self._of_path(pieces))
        kept = [[piece for piece in cut if next(mine)] for cut in documents]
        progress = replace(
            progress,
            documents=progress.documents + len(chunk),
            last_document=_digest(chunk[-1]),
            pieces=progress.pieces + len(pieces),
            pieces_kept=progress.pieces_kept + sum(map(len, kept)),
            characters=progress.characters + sum(len(document.text) for document in training),
        )
        if not self.hold_out:
            return self.train_on(progress, [piece for cut in kept for piece in cut])
        return self._divide(progress, [(_place(d.text), cut) for d, cut in zip(training, kept, strict=True) if cut])

    def train_on(self, progress: ShardProgress, pieces: Sequence[Indices], held: Sequence[Indices] = ()) -> "_Advance":
        """Pack pieces into sequences; `held` are held out."""
        length = self.data.sequence_length
        full = [piece for piece in pieces if len(piece) == length]
        pending = list(progress.pending)
        for piece in pieces:
            if len(piece) < length:  # the end of a document: shares its sequence with others
                pending += [*piece.tolist(), self.end_of_text]
        packed = len(pending) // length * length
        tokens = np.concatenate([*full, np.array(pending[:packed], dtype=np.int64)])
        sequences: NDArray[np.generic] = tokens.astype(self.dtype).reshape(-1, length)
        rows = np.zeros((len(held), 1 + length), dtype=np.int32)
        for row, piece in zip(rows, held, strict=True):
            row[0], row[1 : 1 + len(piece)] = len(piece), piece
        after = replace(
            progress,
            sequences=progress.sequences + len(sequences),
            pending=tuple(pending[packed:]),
            held_out=progress.held_out + len(held),
        )
        return _Advance(after, sequences, rows)

    def _divide(self, progress: ShardProgress, documents: Sequence[tuple[float, list[Indices]]]) -> "_Advance":
        """Hold out documents whose place in 0..1 is below the share; until one is, the lowest is the candidate."""
        trained: list[Indices] = []
        held: list[Indices] = []
        reserve = [np.array(piece, dtype=np.int64) for piece in progress.reserve]
        lowest = progress.reserve_place
        for place, pieces in documents:
            if place < self.hold_out:
                held += pieces
                trained, reserve = trained + reserve, []
            elif held or progress.held_out or place >= lowest:
                trained += pieces
            else:
                trained += reserve
                reserve, lowest = pieces, place
        kept = tuple(tuple(piece.tolist()) for piece in reserve)
        return self.train_on(replace(progress, reserve=kept, reserve_place=lowest), trained, held)

    def finish(self, progress: ShardProgress, held: Sequence[Indices]) -> "_Advance":
        """After the last document: hold out the candidate if nothing else was; `held`: the pieces held out so far.

        If that would hold out the whole shard, nothing is held out and all of it is trained on.
        """
        spare = [np.array(piece, dtype=np.int64) for piece in progress.reserve]
        progress = replace(progress, reserve=(), reserve_place=1.0)
        if progress.sequences == 0 and not progress.pending:
            return self.train_on(replace(progress, held_out=0), [*held, *spare])
        return self.train_on(progress, [], spare)

    def _of_path(self, pieces: list[Indices]) -> Sequence[bool]:
        """Whether each piece belongs to the path."""
        if self.assign is None or not pieces:
            return [True] * len(pieces)
        paths = self.assign(prefixes_of(pieces, self.prefix_tokens)).reshape(len(pieces), -1)
        mine: list[bool] = (paths == self.path).any(axis=1).tolist()
        return mine


@dataclass(frozen=True, eq=False)
class _Advance:
    """A step of the build."""

    progress: ShardProgress
    """After it."""
    sequences: NDArray[np.generic]
    """To train on, (sequences, T)."""
    held: NDArray[np.int32]
    """Pieces to hold out, (pieces, 1 + T): length and tokens."""


def _build(
    folder: Path,
    documents: Callable[[], Iterable[Document]],
    cutter: _Cutter,
    on_progress: Callable[[ShardProgress], None],
) -> None:
    """Write `tokens.bin`, `held.bin` and `progress.json` chunk by chunk; `shard.json` says that it is complete."""
    length = cutter.data.sequence_length
    row_bytes, held_bytes = length * cutter.dtype.itemsize, _held_bytes(length)
    progress, stream = _resume(folder, documents, row_bytes, held_bytes)
    with open(folder / "tokens.bin", "ab") as file, open(folder / "held.bin", "ab") as held_file:
        file.truncate(progress.sequences * row_bytes)  # what was written but not yet counted
        held_file.truncate(progress.held_out * held_bytes)

        def write(step: _Advance) -> ShardProgress:
            held_file.truncate((step.progress.held_out - len(step.held)) * held_bytes)
            for to, rows in ((file, step.sequences), (held_file, step.held)):
                to.write(rows.tobytes())
                flush(to)  # before progress.json counts what was written
            return step.progress

        for chunk in _chunks(stream, CHUNK_DOCUMENTS):
            progress = write(cutter.advance(progress, chunk))
            _note(folder / "progress.json", progress)
            on_progress(progress)
        if progress.pieces_kept == 0:
            raise DataError(_nothing(progress, cutter))
        if cutter.hold_out:
            held = _held(folder, progress.held_out, length)
            progress = write(cutter.finish(progress, [row[1 : 1 + row[0]].astype(np.int64) for row in held]))
        if progress.sequences == 0:  # a few short pieces: one sequence that repeats them
            row = np.resize(np.array(progress.pending, dtype=cutter.dtype), cutter.data.sequence_length)
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
    if skipped and _digest(skipped[0]) == progress.last_document and written:
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


def _nothing(progress: ShardProgress, cutter: _Cutter) -> str:
    """What to tell someone whose path has no documents."""
    if progress.documents == 0:
        return "the data source has no documents at all; check data.source and data.path"
    if progress.pieces == 0:
        return (
            f"none of {progress.documents} documents has a training piece of more than {cutter.prefix_tokens} tokens; "
            "bring more or longer documents, or lower router.prefix_tokens"
        )
    return (
        f"path {cutter.path} has no documents: the router gave all {progress.pieces} pieces of {progress.documents} "
        "documents to other paths; bring more documents, train another path (--path auto), or ask the operator to "
        "raise router.min_share"
    )


def _digest(document: Document) -> str:
    return hashlib.sha256(document.text.encode("utf-8", "surrogatepass")).hexdigest()


def _place(text: str) -> float:
    """Where a hash of the text puts a document, in 0..1; other bits of it than those that `split_of` looks at."""
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[8:16], "big") / 2**64
