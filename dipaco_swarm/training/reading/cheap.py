"""Documents -> token ids of our path, without tokenizing what other paths train on.

A document is cut into texts that fill about a sequence, at the ends of lines. Of each the first tokens say which path
it is of; the rest is tokenized where that is ours. So a text goes to a path as a whole, by its own beginning. Where a
stage has one path there is nothing to ask, and documents are tokenized as they are.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dipaco_swarm.algorithm.paths import PathIndex
from dipaco_swarm.training.documents import Document, cut
from dipaco_swarm.training.encoding import Encode, Indices
from dipaco_swarm.training.packing import Assign
from dipaco_swarm.training.pieces import prefixes_of

CHARACTERS_PER_TOKEN = 4
"""About what a token stands for in English, where nobody has measured it."""
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


@dataclass
class Work:
    """What this machine has done since its program was started, whatever for."""

    characters: int = 0
    """That were read."""
    tokenized: int = 0
    """Characters."""
    featured: int = 0
    """Texts whose path was asked for."""


class CheapRouting:
    """Finds the texts of one path."""

    def __init__(
        self,
        encode: Encode,
        assign: Assign | None,
        path: PathIndex,
        sequence_length: int,
        prefix_tokens: int,
        text_characters: int | None = None,
    ) -> None:
        """`text_characters`: as the stage has it."""
        self._encode = encode
        self._assign = assign
        self._path = path
        self._prefix = prefix_tokens
        self.longest = text_characters or sequence_length * CHARACTERS_PER_TOKEN
        """Characters of a text."""
        self.work = Work()

    def find(self, documents: Sequence[Document]) -> Found:
        before = self.work.tokenized
        if self._assign is None:
            texts = self._long_enough(self._encoded([document.text for document in documents]))
            return Found(texts, 0, self.work.tokenized - before)
        parts = self.texts_of(documents)
        begun = self.begin(parts)
        paths = self.paths_of(begun)
        kept = np.flatnonzero((paths == self._path).any(axis=1)).tolist()
        whole = self._long_enough(self._encoded([parts[i] for i in kept]))
        return Found(whole, int((paths[:, 0] >= 0).sum()), self.work.tokenized - before)

    def texts_of(self, documents: Sequence[Document]) -> list[str]:
        """What is routed of some documents."""
        return [part.text for document in documents for part in cut(document.text, "", self.longest)]

    def begin(self, texts: Sequence[str]) -> list[Indices]:
        """The first tokens of each text: its prefix, if it has so many."""
        heads = [self._beginning(text) for text in texts]
        begun = self._encoded(heads)
        short = [i for i, ids in enumerate(begun) if len(ids) < self._prefix + SPARE_TOKENS and heads[i] != texts[i]]
        for i, ids in zip(short, self._encoded([texts[i] for i in short]), strict=True):
            begun[i] = ids
        return begun

    def paths_of(self, begun: Sequence[Indices]) -> Indices:
        """The paths of texts by their first tokens, int64 (texts, overlap); -1 where there are too few of them."""
        assert self._assign is not None, "there is one path for all"
        routed = [i for i, ids in enumerate(begun) if len(ids) > self._prefix]
        if not routed:
            return np.full((len(begun), 1), -1, dtype=np.int64)
        self.work.featured += len(routed)
        found = self._assign(prefixes_of([begun[i] for i in routed], self._prefix)).reshape(len(routed), -1)
        paths = np.full((len(begun), found.shape[1]), -1, dtype=np.int64)
        paths[routed] = found
        return paths

    def whole(self, texts: Sequence[str]) -> list[Indices]:
        """The tokens of each text; none where they are too few to be trained on."""
        return [ids if len(ids) > self._prefix else ids[:0] for ids in self._encoded(texts)]

    def _encoded(self, texts: Sequence[str]) -> list[Indices]:
        self.work.tokenized += sum(map(len, texts))
        return self._encode(texts)

    def _beginning(self, text: str) -> str:
        """Some first words: their tokens are those of the whole text, but for the last ones."""
        end = self._prefix * PREFIX_CHARACTERS_PER_TOKEN
        if len(text) <= end:
            return text
        return text[: max(text.rfind(" ", 0, end), text.rfind("\n", 0, end)) + 1 or end]

    def _long_enough(self, texts: list[Indices]) -> list[Indices]:
        return [ids for ids in texts if len(ids) > self._prefix]
