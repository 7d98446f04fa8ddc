"""The average of one round as it went over the wire: with the state before it, it makes the state after it.

The outer step is the same arithmetic everywhere, so whoever has the one state and this has the other: with int8 at one
byte a parameter, where a state has eight.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from dipaco_swarm.swarm.round.codecs.codec import Buffer, codec_of

MAX_CHAIN = 6
"""Versions that are made up for by averages; whoever is further behind fetches the state."""


@dataclass(frozen=True)
class Span:
    """A piece of the averaged vector, and the effective number of paths behind it.

    Spans differ only when somebody died in the middle of a round.
    """

    start: int
    stop: int
    effective_paths: float
    decay: float = 0.0
    """The amount of weight decay that belongs to it (`algorithm/weight_decay.py`)."""


class Averaged(Protocol):
    """What an outer step needs of a round."""

    def parts(self) -> Iterator[tuple[int, Tensor]]:
        """Weighted mean of the outer gradients, neither decayed nor rescaled, piece by piece: where one begins, and
        fp32 (n,)."""
        ...

    @property
    def spans(self) -> tuple[Span, ...]: ...

    @property
    def work(self) -> int:
        """Tokens that the next version has behind it, and this one has not."""
        ...


@dataclass(frozen=True, eq=False)
class EncodedAverage:
    """What the members of a round decoded, bit for bit; an `Averaged`."""

    base: str
    """Digest of the state that its outer gradients start from."""
    work: int
    spans: tuple[Span, ...]
    codec: str
    """By its name."""
    parameters: int
    piece_parameters: int
    """Of each piece but the last, which has what is left."""
    pieces: Sequence[Buffer]
    """Each encoded by itself, as its reducer sent it."""
    blob: tuple[str, Buffer] | None = None
    """Digest and bytes of the blob in which all pieces lie, where they do (`states.averages.pack`)."""

    def parts(self) -> Iterator[tuple[int, Tensor]]:
        """Decoded anew each time. Raises ValueError when a piece is not its parameters."""
        codec = codec_of(self.codec)
        starts = range(0, self.parameters, self.piece_parameters)
        counts = piece_counts(self.parameters, self.piece_parameters)
        for start, count, data in zip(starts, counts, self.pieces, strict=True):
            # a copy: pieces lie anywhere in what was received, and torch wants numbers at whole addresses
            yield start, codec.decode(bytearray(data), count)

    @property
    def mean(self) -> Tensor:
        """All parts: fp32 (parameters,)."""
        return torch.cat([part for _, part in self.parts()])


def piece_counts(parameters: int, piece_parameters: int) -> list[int]:
    """Parameters of each piece of an average."""
    return [min(piece_parameters, parameters - start) for start in range(0, parameters, piece_parameters)]
