"""The sequences of a stream, numbered from 0, in blocks: what is on the disk as one file and shuffled as one window.

The first block is small, so that training can begin; each is at most a quarter of all before it, so that reading need
not be much faster than training; later ones are as large as they may be.
"""

import numpy as np
from numpy.typing import NDArray

BLOCK_SEQUENCES = 8192
BLOCK_BYTES = 16 << 20
GROWTH = 4
"""A block is one part of so many of what comes before it."""


class Blocks:
    """Where blocks begin and end. A pure function of its two numbers."""

    def __init__(self, first: int, most: int) -> None:
        """`first`: sequences of the first block. `most`: of any; at least as many as of the first."""
        self._first = first
        self._most = max(first, most)
        self._starts = [0, first]

    @classmethod
    def of(cls, batch_sequences: int, row_bytes: int) -> "Blocks":
        """For batches of so many sequences, each of so many bytes on the disk."""
        return cls(batch_sequences, max(1, min(BLOCK_SEQUENCES, BLOCK_BYTES // row_bytes)))

    @property
    def most(self) -> int:
        """Sequences of the largest block."""
        return self._most

    def start(self, block: int) -> int:
        """The number of the block's first sequence."""
        while len(self._starts) <= block:
            last = self._starts[-1]
            self._starts.append(last + min(max(self._first, last // GROWTH), self._most))
        return self._starts[block]

    def size(self, block: int) -> int:
        return self.start(block + 1) - self.start(block)

    def holding(self, sequence: int) -> int:
        """The block of a sequence."""
        while self._starts[-1] <= sequence:
            self.start(len(self._starts))
        return int(np.searchsorted(self._starts, sequence, side="right")) - 1


def order_in(block: int, size: int, seed: int, epoch: int) -> NDArray[np.int64]:
    """The order in which a block of `size` sequences is trained on in an epoch: a permutation."""
    return np.random.default_rng([abs(seed), epoch, block]).permutation(size)
