"""What a codec is: numbers to bytes and back, the same on every machine."""

from abc import ABC, abstractmethod

import torch
from torch import Tensor

from dipaco_swarm.strategies import CODECS

BLOCK = 1024
"""A piece of a vector starts at a multiple of this, so that blocks are the same however a vector is cut."""

Buffer = bytes | bytearray | memoryview


class Codec(ABC):
    """Encodes pieces of fp32 vectors.

    Plain torch operations, each rounded on its own: the same bytes on every machine. A vector that is cut at multiples
    of BLOCK is encoded to the same numbers as the whole. Decoding checks the size and nothing else; what a stranger's
    numbers may be is checked where they are summed.
    """

    name: str
    """As the run file names it."""
    exact: bool = False
    """Whether the bytes are the fp32 numbers themselves. Then encoding and decoding are views, and nothing is lost."""
    lengthens: float
    """How many times as long (L2 norm) as the vector itself the decoded one can be, at the very worst.

    A member claims a length that is this much longer, and what arrives is refused where it is longer than that. So it
    is a bound, and no estimate: nobody honest is ever refused, whatever its numbers are. Each codec says how its bound
    follows.
    """

    @abstractmethod
    def encoded_size(self, count: int) -> int:
        """Bytes that `count` parameters take."""

    @abstractmethod
    def encode(self, vector: Tensor) -> memoryview:
        """fp32 (n,) -> bytes. With an exact codec a view of the vector: it must not change while the bytes are in use.

        A number that is not finite must show in what is decoded: whoever sums looks there for it.
        """

    def decode(self, data: Buffer, count: int) -> Tensor:
        """Bytes -> fp32 (count,); a view of the data where the codec is exact.

        Raises ValueError when the size is not that of `count`.
        """
        if len(data) != self.encoded_size(count):
            raise ValueError(f"{len(data)} bytes are not {count} parameters in {self.name}")
        return self._decode(data, count)

    @abstractmethod
    def _decode(self, data: Buffer, count: int) -> Tensor:
        """`decode`, of data that has the right size."""


def codec_of(name: str) -> Codec:
    """The codec that the run file calls so. Raises ValueError when there is none."""
    codec = CODECS.load(name)
    if not isinstance(codec, Codec):
        raise TypeError(f"the codec {name!r} is a {type(codec).__name__}, which is not a Codec")
    return codec


def num_blocks(count: int, size: int) -> int:
    return -(-count // size)


def as_blocks(vector: Tensor, size: int) -> Tensor:
    """(n,) -> (blocks, size), padded with zeros; a view where nothing is missing."""
    missing = -len(vector) % size
    return (torch.nn.functional.pad(vector, (0, missing)) if missing else vector).view(-1, size)
