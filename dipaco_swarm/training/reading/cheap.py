"""Documents -> token ids of our path, without tokenizing what other paths train on.

A document is cut into texts that fill about a sequence, at the ends of lines. Of each the first tokens say which path
it is of; the rest is tokenized where that is ours. So a text goes to a path as a whole, by its own beginning. Where a
stage has one path there is nothing to ask, and documents are tokenized as they are.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from dipaco_swarm.algorithm.paths import PathIndex
from dipaco_swarm.training.documents import Document, cut
from dipaco_swarm.training.encoding import Encode, Indices
from dipaco_swarm.training.packing import Assign
from dipaco_swarm.training.pieces import prefixes_of

CHARACTERS_PER_TOKEN = 4
"""About what a token stands for in English; where it is less, a text has some more tokens than a sequence."""
PREFIX_CHARACTERS_PER_TOKEN = 8
"""Enough of a text's beginning to find its prefix in nearly always; where it is not, all of it is tokenized."""
SPARE_TOKENS = 2
"""The last tokens of a beginning may not be those of the whole text."""


@dataclass(frozen=True)
class Found:
    """The texts of our path among some documents."""

    texts: list[Indices]
    """Their token ids, each more than the prefix, int64 (tokens,)."""
    routed: int
    """Texts whose path was asked for."""
    tokenized: int
    """Characters that were tokenized."""


class CheapRouting:
    """Finds the texts of one path."""

    def __init__(
        self, encode: Encode, assign: Assign | None, path: PathIndex, sequence_length: int, prefix_tokens: int
    ) -> None:
        self._encode = encode
        self._assign = assign
        self._path = path
        self._longest = sequence_length * CHARACTERS_PER_TOKEN
        self._prefix = prefix_tokens

    def find(self, documents: Sequence[Document]) -> Found:
        if self._assign is None:
            whole = [document.text for document in documents]
            return Found(self._long_enough(self._encode(whole)), 0, sum(map(len, whole)))
        texts = [part.text for document in documents for part in cut(document.text, "", self._longest)]
        heads = [self._beginning(text) for text in texts]
        begun = self._encode(heads)
        short = [i for i, ids in enumerate(begun) if len(ids) < self._prefix + SPARE_TOKENS and heads[i] != texts[i]]
        for i, ids in zip(short, self._encode([texts[i] for i in short]), strict=True):
            begun[i] = ids
        routed = [i for i, ids in enumerate(begun) if len(ids) > self._prefix]
        of_us = self._are_ours([begun[i] for i in routed])
        kept = [i for i, ours in zip(routed, of_us, strict=True) if ours]
        ids_of = self._long_enough(self._encode([texts[i] for i in kept]))
        tokenized = sum(map(len, heads)) + sum(len(texts[i]) for i in (*short, *kept))
        return Found(ids_of, len(routed), tokenized)

    def _are_ours(self, pieces: list[Indices]) -> list[bool]:
        if not pieces:
            return []
        assert self._assign is not None
        paths = self._assign(prefixes_of(pieces, self._prefix)).reshape(len(pieces), -1)
        ours: list[bool] = (paths == self._path).any(axis=1).tolist()
        return ours

    def _beginning(self, text: str) -> str:
        """Some first words: their tokens are those of the whole text, but for the last ones."""
        end = self._prefix * PREFIX_CHARACTERS_PER_TOKEN
        if len(text) <= end:
            return text
        return text[: max(text.rfind(" ", 0, end), text.rfind("\n", 0, end)) + 1 or end]

    def _long_enough(self, texts: list[Indices]) -> list[Indices]:
        return [ids for ids in texts if len(ids) > self._prefix]
