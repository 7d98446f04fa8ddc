"""Where in the corpus the reader is. A block can be made again from its place, whatever has been forgotten since."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np

from dipaco_swarm.training.documents import Document, Portion, in_turns

TOGETHER = 4
"""Portions that are read in turns, as a portion often has documents of one kind."""


@dataclass(frozen=True)
class Place:
    """The whole state of the reader between two chunks of documents, and how it has fared so far."""

    group: int = 0
    """Portions that are read together; counted from this peer's first."""
    documents: int = 0
    """Documents of the group that have been consumed."""
    pending: tuple[int, ...] = ()
    """Tokens that do not fill a sequence yet."""
    skip: int = 0
    """Sequences that the next chunk completes, and that belong to blocks before."""
    read: int = 0
    """Documents consumed in all, of all splits."""
    characters: int = 0
    """Characters of them."""
    routed: int = 0
    """Texts whose path was asked for."""
    kept: int = 0
    """Texts of our path."""
    tokenized: int = 0
    """Characters that were tokenized."""
    sequences: int = 0
    """Sequences that came of it."""


class Corpus:
    """All portions in the order of one peer: shuffled as for everybody, and begun at a place of its own."""

    def __init__(self, portions: Sequence[Portion], seed: int, start: int) -> None:
        """`seed`: of the run. `start`: any number; peers with other numbers begin elsewhere, and wrap around."""
        order = np.random.default_rng([abs(seed), len(portions)]).permutation(len(portions))
        self.in_order = [portions[index] for index in order]
        """As all peers have them."""
        ours = np.roll(order, -(start % len(portions)))
        self._groups = [ours[first : first + TOGETHER] for first in range(0, len(ours), TOGETHER)]
        self._portions = portions

    @property
    def num_groups(self) -> int:
        return len(self._groups)

    def documents(self, group: int, skip: int = 0) -> Iterator[Document]:
        """The documents of a group but for the first `skip`."""
        streams = [self._portions[index].read() for index in self._groups[group]]
        return islice(in_turns(streams), skip, None)
