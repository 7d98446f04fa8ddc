"""Pieces of one path -> sequences of exactly T tokens, chunk by chunk; and what is held out of them.

    documents --encode, cut--> pieces --assign--> those of our path --pack--> sequences of exactly T tokens

A run with early stopping sets apart a slice of each shard's documents. Nothing here is written to the disk: that is the
business of `shards.py`, which can go on from any `ShardProgress`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from dipaco_swarm.algorithm.paths import PathIndex
from dipaco_swarm.run.config import DataConfig
from dipaco_swarm.training.documents import Document, place_in_slice, split_of
from dipaco_swarm.training.encoding import Encode, Indices
from dipaco_swarm.training.pieces import cut_into_pieces, prefixes_of
from dipaco_swarm.training.tokenizer import end_of_text_id, stored_as, vocabulary_size

Assign = Callable[[Indices], Indices]
"""Prefixes (pieces, prefix_tokens) -> path of each piece (pieces,), or n paths (pieces, n) for overlapping shards."""


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
class Packed:
    """A step of the build."""

    progress: ShardProgress
    """After it."""
    sequences: NDArray[np.generic]
    """To train on, (sequences, T)."""
    held: NDArray[np.int32]
    """Pieces to hold out, (pieces, 1 + T): length and tokens."""


class Packer:
    """Turns documents into the packed sequences of one path. What changes is in the `ShardProgress` alone."""

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
        self.dtype = stored_as(vocabulary_size(tokenizer))

    def advance(self, progress: ShardProgress, chunk: Sequence[Document]) -> Packed:
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
            last_document=chunk[-1].digest,
            pieces=progress.pieces + len(pieces),
            pieces_kept=progress.pieces_kept + sum(map(len, kept)),
            characters=progress.characters + sum(len(document.text) for document in training),
        )
        if not self.hold_out:
            return self.train_on(progress, [piece for cut in kept for piece in cut])
        ours = [(place_in_slice(d.text), cut) for d, cut in zip(training, kept, strict=True) if cut]
        return self._divide(progress, ours)

    def train_on(self, progress: ShardProgress, pieces: Sequence[Indices], held: Sequence[Indices] = ()) -> Packed:
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
        return Packed(after, sequences, rows)

    def _divide(self, progress: ShardProgress, documents: Sequence[tuple[float, list[Indices]]]) -> Packed:
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

    def finish(self, progress: ShardProgress, held: Sequence[Indices]) -> Packed:
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
