"""The sequences of a stream, numbered from 0, in blocks: what is on the disk as one file.

The first block is small, so that training can begin; each is as large as all before it, up to what a block may be, so
reading has to be twice as fast as training at first. What is shuffled together is a window: a block as it is read for
the first time, and from then on as many as are as large as the largest. Smaller ones cost some percent of the
perplexity (docs/decisions/0037-a-corpus-routed-together.md).
"""

import numpy as np
from numpy.typing import NDArray

BLOCK_SEQUENCES = 8192
BLOCK_BYTES = 16 << 20
LAYOUT = 2
"""Of where blocks begin: files of another one are of no use."""


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
            self._starts.append(last + min(last, self._most))
        return self._starts[block]

    def size(self, block: int) -> int:
        return self.start(block + 1) - self.start(block)

    def window(self, block: int, epoch: int) -> range:
        """The blocks that are shuffled together with this one in an epoch."""
        if epoch == 0:
            return range(block, block + 1)
        first = stop = 0
        while stop <= block:
            first, stop = stop, stop + 1
            while self.start(stop + 1) - self.start(first) <= self._most:
                stop += 1
        return range(first, stop)

    def holding(self, sequence: int) -> int:
        """The block of a sequence."""
        while self._starts[-1] <= sequence:
            self.start(len(self._starts))
        return int(np.searchsorted(self._starts, sequence, side="right")) - 1


def order_in(block: int, size: int, seed: int, epoch: int) -> NDArray[np.int64]:
    """The order in which a window of `size` sequences, from this block on, is trained on in an epoch: a permutation."""
    return np.random.default_rng([abs(seed), epoch, block]).permutation(size)
