"""The average of one round as it comes in on one peer, piece by piece: its bytes, who is in it, who has sealed it."""

import asyncio
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from dipaco_swarm.algorithm.state import all_finite, vector_bytes
from dipaco_swarm.errors import RemoteDataError
from dipaco_swarm.swarm.encoded_average import Span
from dipaco_swarm.swarm.framing import PieceHeader
from dipaco_swarm.swarm.interface import ModuleGroup, PeerName
from dipaco_swarm.swarm.proofs import Seal
from dipaco_swarm.swarm.round.codecs.codec import Codec
from dipaco_swarm.swarm.round.reduction import decay_of, effective_paths_of, piece_bounds, present_in
from dipaco_swarm.swarm.round.seals import (
    IsSignedBy,
    Made,
    Subject,
    digest_of_average,
    digest_of_piece,
    digest_of_pieces,
)
from dipaco_swarm.swarm.transport import Executor
from dipaco_swarm.swarm.wire import Roster


@dataclass(frozen=True)
class SealedPiece:
    """A piece of an average, and the seal that it is under."""

    seal: Seal
    pieces: tuple[tuple[int, bytes], ...]
    """All that the seal is about, and their digests."""
    mask: bytes
    """Who is in it."""


class Average:
    """Every piece has an owner, its reducer. Who goes loses its pieces to others, who make them anew: a generation.

    `complete` is set whenever every piece is here, and sealed.
    """

    def __init__(
        self,
        roster: Roster,
        about: Subject,
        group: ModuleGroup,
        codec: Codec,
        parameters: int,
        compute: Executor,
        is_signed_by: IsSignedBy,
    ) -> None:
        """`about`: what the seals of this round are about."""
        self._roster = roster
        self.about = about
        self._is_signed_by = is_signed_by
        self._group = group
        self._codec = codec
        self._compute = compute
        self._parameters = parameters
        self.exact = torch.empty(parameters if codec.exact else 0)
        """The mean with an exact codec, fp32 (parameters,); else it is in the encoded pieces alone."""
        self.complete = asyncio.Event()
        self.owners = list(roster.owners)
        """Index in the roster, by piece."""
        self.made_in = [0] * len(self.owners)
        """The generation in which each piece was last given an owner."""
        self._digests: dict[int, bytes] = {}
        self._masks: dict[int, bytes] = {}
        self._encoded: dict[int, memoryview] = {}
        """The bytes of each piece; with an exact codec they are those of the mean."""
        self._seals: dict[Made, Seal] = {}

    def bounds(self, piece: int) -> tuple[int, int]:
        """From the first parameter of a piece to before the first of the next one."""
        return piece_bounds(piece, self._roster.piece_parameters, self._parameters)

    def allows(self, piece: int, size: int) -> bool:
        """Whether a piece, or a contribution to it, may have so many bytes."""
        start, stop = self.bounds(piece)
        return size <= self._codec.most_bytes(stop - start)

    def has(self, piece: int) -> bool:
        return piece in self._digests

    @property
    def pieces_here(self) -> int:
        """How many of the pieces have come."""
        return len(self._digests)

    @property
    def made(self) -> set[Made]:
        """Which seals there are to be."""
        return set(zip(self.owners, self.made_in, strict=True))

    def awaited(self) -> set[int]:
        """Reducers, by index, of whom a piece or a seal is missing."""
        pieces = {owner for piece, owner in enumerate(self.owners) if not self.has(piece)}
        return pieces | {owner for owner, _ in self.made - self._seals.keys()}

    def is_current(self, header: PieceHeader, owner: int) -> bool:
        """Whether an average comes from whom it should come from now."""
        return self.owners[header.index] == owner and self.made_in[header.index] == header.generation

    def reassign(self, pieces: Mapping[int, int], generation: int) -> None:
        """These pieces are made anew. `pieces`: piece -> index of its new owner in the roster."""
        for piece, owner in pieces.items():
            self.owners[piece] = owner
            self.made_in[piece] = generation
            self._digests.pop(piece, None)
            self._masks.pop(piece, None)
            self._encoded.pop(piece, None)
            self.complete.clear()
        self._seals = {key: seal for key, seal in self._seals.items() if key in self.made}
        self._look_whether_complete()

    def destination(self, piece: int, size: int) -> memoryview:
        """Where the `size` bytes of a piece go: with an exact codec they are the mean itself."""
        if self._codec.exact:
            start, stop = self.bounds(piece)
            return vector_bytes(self.exact[start:stop])[:size]
        return buffer(size)

    async def take(self, peer: str, header: PieceHeader, data: memoryview) -> None:
        """A piece has arrived, from its reducer or from ourselves. Raises RemoteDataError when it cannot be one."""
        try:
            present_in(header.mask, len(self._roster.members))
            digest = await self._compute.in_order(self._settle, header, data)
        except ValueError as error:
            raise RemoteDataError(peer, f"sends a malformed average of piece {header.index}: {error}") from None
        if header.generation == self.made_in[header.index]:
            self._digests[header.index], self._masks[header.index] = digest, header.mask
            self._encoded[header.index] = data
            self._look_whether_complete()

    def to_be_sealed(self, reducer: int, generation: int) -> bytes | None:
        """The digest of what a reducer made in a generation; None while some of it is not here."""
        key = reducer, generation
        pieces = [piece for piece, made in enumerate(zip(self.owners, self.made_in, strict=True)) if made == key]
        if not pieces or not all(map(self.has, pieces)):
            return None
        return digest_of_pieces({piece: self._digests[piece] for piece in pieces})

    def seal(self, reducer: int, generation: int, signature: bytes) -> None:
        """A reducer has signed what it made in a generation. Raises RemoteDataError when that is not what is here."""
        if (reducer, generation) not in self.made:
            return  # outdated
        peer, digest = self._roster.members[reducer].peer, self.to_be_sealed(reducer, generation)
        if digest is None or not self._is_signed_by(peer, self.about.statement(generation, digest), signature):
            raise RemoteDataError(peer, "has not signed the averages that it sends")
        self._seals[reducer, generation] = Seal(
            reducer=reducer, generation=generation, digest=digest, signature=signature
        )
        self._look_whether_complete()

    def _look_whether_complete(self) -> None:
        if not self.awaited():
            self.complete.set()

    def _settle(self, header: PieceHeader, data: memoryview) -> bytes:
        """The digest of a piece's bytes and mask. Raises ValueError when it is no piece, or not finite."""
        start, stop = self.bounds(header.index)
        if not all_finite(self._codec.decode(data, stop - start)):
            raise ValueError("not all of its numbers are finite")
        return digest_of_piece(header.mask, data)

    # ------------------------------------------------------------------------------------------ once all of it is here

    def digest(self) -> bytes:
        """Over the roster and all that is sealed: what members must agree on before anybody commits."""
        return digest_of_average(self.about.roster, {key: seal.digest for key, seal in self._seals.items()})

    def seals(self) -> tuple[Seal, ...]:
        """What the reducers have signed; nothing while some of it is missing."""
        return tuple(self._seals[key] for key in sorted(self._seals)) if self.complete.is_set() else ()

    def sealed(self) -> dict[int, "SealedPiece"]:
        """Every piece as its reducer has signed it; nothing while some of it is missing."""
        if not self.complete.is_set():
            return {}
        made_by = list(enumerate(zip(self.owners, self.made_in, strict=True)))
        under: dict[Made, list[tuple[int, bytes]]] = {}
        for piece, made in made_by:
            under.setdefault(made, []).append((piece, self._digests[piece]))
        pieces = {made: tuple(its) for made, its in under.items()}
        return {piece: SealedPiece(self._seals[made], pieces[made], self._masks[piece]) for piece, made in made_by}

    def encoded(self, piece: int) -> memoryview:
        """The bytes of a piece, as its reducer has sent them."""
        return self._encoded[piece]

    def numbers(self, piece: int) -> Tensor:
        """The same as numbers, fp32 (n,)."""
        start, stop = self.bounds(piece)
        return self._codec.decode(self._encoded[piece], stop - start)

    def counts(self, piece: int, member: int) -> bool:
        """Whether a member of the roster is in a piece."""
        return member in self._present_in(self._masks[piece])

    def pieces(self) -> tuple[memoryview, ...]:
        """The encoded pieces in order, as their reducers sent them."""
        return tuple(self._encoded[piece] for piece in range(len(self.owners)))

    def spans(self) -> tuple[Span, ...]:
        """Effective number of paths and weight decay along the vector; neighbours that agree are one span."""
        spans: list[Span] = []
        of_mask: dict[bytes, tuple[float, float]] = {}  # nearly all pieces have the same members
        for piece in range(len(self.owners)):
            start, stop = self.bounds(piece)
            mask = self._masks[piece]
            if mask not in of_mask:
                who = self._present_in(mask), self._roster.members, self._group
                of_mask[mask] = effective_paths_of(*who), decay_of(*who)
            last, span = spans[-1] if spans else None, Span(start, stop, *of_mask[mask])
            if last is not None and (last.effective_paths, last.decay) == (span.effective_paths, span.decay):
                spans[-1] = replace(last, stop=stop)
            else:
                spans.append(span)
        return tuple(spans)

    def contributors(self) -> tuple[PeerName, ...]:
        """Everybody who is in some piece, in the order of the roster."""
        pieces = self._pieces_of_members()
        return tuple(PeerName(m.peer) for i, m in enumerate(self._roster.members) if pieces[i])

    def left_out(self) -> tuple[PeerName, ...]:
        """Members that are not in every piece."""
        pieces = self._pieces_of_members()
        return tuple(PeerName(m.peer) for i, m in enumerate(self._roster.members) if pieces[i] < len(self._masks))

    def tokens(self) -> dict[PeerName, int]:
        """Tokens of the members that are in most of the pieces: the work of the version that they make."""
        pieces = self._pieces_of_members()
        most = (m for i, m in enumerate(self._roster.members) if 2 * pieces[i] > len(self._masks))
        return {PeerName(member.peer): member.tokens for member in most}

    def _pieces_of_members(self) -> Counter[int]:
        """In how many pieces each member is."""
        pieces: Counter[int] = Counter()
        for mask in self._masks.values():
            pieces.update(self._present_in(mask))
        return pieces

    def _present_in(self, mask: bytes) -> tuple[int, ...]:
        return present_in(mask, len(self._roster.members))


def buffer(size: int) -> memoryview:
    """Room for `size` bytes, not cleared."""
    return vector_bytes(torch.empty(size, dtype=torch.uint8))
