"""What a codec is: numbers to bytes and back, the same on every machine."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor

from dipaco_swarm.algorithm.state import vector_bytes
from dipaco_swarm.strategies import CODECS
from dipaco_swarm.swarm.round.codecs.packing import packed, unpacked

Buffer = bytes | bytearray | memoryview

BLOCK = 1024
"""A piece of a vector starts at a multiple of this, so that blocks are the same however a vector is cut."""


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
    def most_bytes(self, count: int) -> int:
        """Bytes that `count` parameters take before they are packed; they never take more."""

    def encode(self, vector: Tensor) -> memoryview:
        """fp32 (n,) -> bytes. With an exact codec a view of the vector: it must not change while the bytes are in use.

        A number that is not finite must show in what is decoded: whoever sums looks there for it.
        """
        parts = self._encode(vector)
        return parts[0] if self.exact else packed(parts)

    def decode(self, data: Buffer, count: int) -> Tensor:
        """Bytes -> fp32 (count,); a view of the data where the codec is exact.

        Raises ValueError when they are not `count` parameters.
        """
        return self._decode(self._plain(data, count), count)

    def check(self, data: Buffer, count: int) -> None:
        """Raises ValueError when these bytes are not `count` parameters, and decoding them would."""
        self._plain(data, count)

    def _plain(self, data: Buffer, count: int) -> Buffer:
        """The bytes before they were packed."""
        size = self.most_bytes(count)
        plain = data if len(data) == size else None if self.exact else unpacked(data, size)
        if plain is None:
            raise ValueError(f"{len(data)} bytes are not {count} parameters in {self.name}")
        return plain

    @abstractmethod
    def _encode(self, vector: Tensor) -> Sequence[memoryview]:
        """Unpacked bytes, in parts whose bytes are alike; an exact codec has one."""

    @abstractmethod
    def _decode(self, data: Buffer, count: int) -> Tensor:
        """fp32 (count,) of all parts as one run of bytes, which has the right size."""


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


def apart(numbers: Tensor) -> list[memoryview]:
    """bf16 (n,) -> upper bytes and lower bytes, each (n,): sign and most of the exponent are often the same."""
    lower, upper = numbers.view(torch.uint8).view(-1, 2).t().contiguous()
    return [vector_bytes(upper), vector_bytes(lower)]


def together(data: Buffer, count: int) -> Tensor:
    """bf16 (count,) of the upper and lower bytes at the beginning of the data."""
    upper, lower = torch.frombuffer(data, dtype=torch.uint8, count=2 * count).view(2, count)
    return torch.stack([lower, upper], dim=1).view(torch.bfloat16).view(-1)
