"""What the members of a round have contributed to the pieces that we have reduced in it: bytes that we have anyway."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from dipaco_swarm.algorithm.doubts import Place
from dipaco_swarm.swarm.round.codecs.codec import Buffer, codec_of


@dataclass(frozen=True, eq=False)
class ReducedPiece:
    """Parameters `start` to `stop` of the module."""

    start: int
    stop: int
    given: Mapping[str, Buffer]
    """Peer -> what it has contributed, encoded; all that was accepted."""


@dataclass(frozen=True, eq=False)
class Reduced:
    """Pieces that one peer has reduced in a round."""

    codec: str
    """By its name."""
    scales: Mapping[str, float]
    """What the contribution of each member of the round is multiplied with (norm clipping)."""
    tokens: Mapping[str, int]
    """That each of them says it has trained on."""
    pieces: Sequence[ReducedPiece]

    @property
    def peers(self) -> frozenset[str]:
        """Who has contributed to all of them; nobody, where there are none."""
        if not self.pieces:
            return frozenset()
        return frozenset(self.scales).intersection(*(piece.given.keys() for piece in self.pieces))

    @property
    def places(self) -> list[slice]:
        """Of the module's vector."""
        return [slice(piece.start, piece.stop) for piece in self.pieces]

    def of(self, peer: str) -> Iterable[Place]:
        """Where each piece is, and the peer's outer gradient there as it counts, fp32 (n,): decoded piece by piece,
        each time that it is gone through."""
        return _Contribution(self, peer)


@dataclass(frozen=True, eq=False)
class _Contribution:
    to: Reduced
    peer: str

    def __iter__(self) -> Iterator[Place]:
        codec = codec_of(self.to.codec)
        for place, piece in zip(self.to.places, self.to.pieces, strict=True):
            yield place, codec.decode(piece.given[self.peer], piece.stop - piece.start) * self.to.scales[self.peer]
