"""One peer as a reducer: contributions to its pieces come in, are summed in the order of the roster, and go out."""

import asyncio
import hashlib
import logging
import math
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace

from torch import Tensor

from dipaco_swarm.errors import RemoteDataError
from dipaco_swarm.swarm.framing import SEAL, PieceHeader
from dipaco_swarm.swarm.interface import ModuleGroup
from dipaco_swarm.swarm.round.average import Average, buffer
from dipaco_swarm.swarm.round.codecs.codec import Codec
from dipaco_swarm.swarm.round.exchange_tasks import ExchangeTasks, both_ways
from dipaco_swarm.swarm.round.reduction import is_acceptable, length_of, mask_of, piece_average
from dipaco_swarm.swarm.transport import Executor, Stream, Transport
from dipaco_swarm.swarm.wire import Roster

log = logging.getLogger(__name__)

Finished = tuple[PieceHeader, memoryview]
"""A reduced piece as it is sent."""


@dataclass(frozen=True, eq=False)
class Input:
    """A contribution to a piece."""

    generation: int
    data: memoryview
    signature: bytes
    """Its member's."""


@dataclass(frozen=True, eq=False)
class Shown:
    """A piece that we have made."""

    generation: int
    data: memoryview
    inputs: Mapping[int, Input]
    """Member -> what it has contributed; all that was accepted."""


@dataclass(frozen=True, eq=False)
class _Summed:
    mask: bytes
    """Who is in it."""
    data: memoryview
    inputs: Mapping[int, Input]
    refused: Sequence[str]
    """Whose contributions cannot be in it."""


class Reducer:
    """The pieces of one round that one peer reduces. Each average is encoded once, and everybody takes these bytes."""

    def __init__(
        self,
        roster: Roster,
        me: int,
        group: ModuleGroup,
        codec: Codec,
        average: Average,
        compute: Executor,
        tasks: ExchangeTasks,
        transport: Transport,
    ) -> None:
        self._roster = roster
        self._me = me
        self._group = group
        self._codec = codec
        self._average = average
        self._mean_of = piece_average(roster.members, roster.doubts, group)
        self._compute = compute
        self._tasks = tasks
        self._border = transport.border
        self._sign = transport.sign
        self._is_signed_by = transport.is_signed_by
        self.generation = 0
        self._next_generation = asyncio.Event()
        self._arrived: dict[int, dict[int, Input]] = {}
        """piece -> member -> its contribution; the first one counts."""
        self._lengths: dict[int, float] = {}
        """member -> length of what we accepted of it so far."""
        self._members = len(roster.members)
        self._awaited = {i for i, member in enumerate(roster.members) if member.awaited}
        self._left: set[int] = set()
        """Members from whom nothing more is to come."""
        self._reduced: dict[int, Finished] = {}
        self._made_from: dict[int, Mapping[int, Input]] = {}
        """Piece -> member -> what is in it: until nobody asks any more."""
        self._sealed: dict[int, Finished] = {}
        """Generation -> our signature under all that we made in it: there is one."""
        self._summing: set[int] = set()
        self._outlets: dict[int, asyncio.Queue[Finished]] = {}
        self._told: set[int] = set()
        """Pieces whose average somebody has, as far as we can tell."""

    def waive(self, members: AbstractSet[int]) -> None:
        """Do not wait for these either; what they send in time counts. At most half of a roster is not waited for."""
        if 2 * len(self._awaited - members) >= self._members:
            self._awaited -= members

    def has_told(self, piece: int) -> bool:
        """Whether somebody has our average of a piece, as far as we can tell."""
        return piece in self._told

    @property
    def contributions_here(self) -> int:
        """How many have come to pieces of ours, and those that we have made something of."""
        waiting = sum(map(len, self._arrived.values()))
        return waiting + sum(map(len, self._made_from.values()))

    def contributors(self) -> set[int]:
        """Members of whom we have made something, which they have signed."""
        return {member for inputs in self._made_from.values() for member in inputs}

    def awaited(self) -> set[int]:
        """Members whose contributions to our pieces we still miss."""
        missing: set[int] = set()
        for piece, owner in enumerate(self._average.owners):
            if owner == self._me and piece not in self._reduced:
                missing |= self._expected() - set(self._arrived.get(piece, {}))
        return missing - {self._me}

    def go_on_without(self, members: set[int], generation: int) -> None:
        """The leader has said that they are gone."""
        self._left |= members
        self.generation = generation
        self._next_generation.set()
        self._next_generation = asyncio.Event()
        self._reduce_what_is_ready()

    async def serve(self, stream: Stream, member: int) -> None:
        """A member's stream to us, until it leaves or the round ends."""
        outlet: asyncio.Queue[Finished] = asyncio.Queue()
        for finished in (*self._reduced.values(), *self._sealed.values()):
            outlet.put_nowait(finished)
        self._outlets[member] = outlet
        try:
            await both_ways(self._send_averages(stream, outlet), self._receive_contributions(stream, member))
        except RemoteDataError as error:
            self._border.note(error, "left out a contributor")
            self._left.add(member)
        except (ConnectionError, EOFError) as error:
            log.debug("exchange with a contributor ended: %s", error)
        finally:
            # whatever it had not sent completely does not count, unless it comes back and everybody waits for it
            if not self._group.whole:
                self._left.add(member)
            if self._outlets.get(member) is outlet:
                del self._outlets[member]
            self._reduce_what_is_ready()

    def shown(self) -> dict[int, Shown]:
        """The pieces that we have made and signed, and from what; nothing of it changes with a vector of ours."""
        found = {}
        for piece, (header, data) in self._reduced.items():
            if header.generation in self._sealed:
                inputs = dict(self._made_from[piece])
                if self._codec.exact:  # bytes of ours are views: of our gradient, and of the mean
                    data = memoryview(bytearray(data))
                    if self._me in inputs:
                        inputs[self._me] = replace(inputs[self._me], data=memoryview(bytearray(inputs[self._me].data)))
                found[piece] = Shown(header.generation, data, inputs)
        return found

    def take(self, member: int, piece: int, given: Input) -> None:
        """A contribution is here completely."""
        if piece not in self._summing:
            self._arrived.setdefault(piece, {}).setdefault(member, given)
            self._reduce_if_ready(piece)

    async def _receive_contributions(self, stream: Stream, member: int) -> None:
        average = self._average
        while (header := await stream.receive_piece_header()) is not None:
            piece = header.index
            if piece >= len(average.owners):
                raise RemoteDataError(stream.peer, f"contributes to piece {piece}, which does not exist")
            while average.owners[piece] != self._me and header.generation > self.generation:
                # it may be ours once we hear so too; until then its bytes stay where they are: anybody could say that
                await self._next_generation.wait()
            if average.owners[piece] != self._me:
                raise RemoteDataError(stream.peer, f"contributes to piece {piece}, which is not ours to reduce")
            if not average.allows(piece, header.size):
                raise RemoteDataError(stream.peer, f"contributes {header.size} bytes to piece {piece}, which has fewer")
            data = buffer(header.size)
            await stream.receive_into(data)
            self.take(member, piece, Input(header.generation, data, header.mask))

    async def _send_averages(self, stream: Stream, outlet: "asyncio.Queue[Finished]") -> None:
        while True:
            header, data = await outlet.get()
            await stream.send_piece(header, data)
            if header.index != SEAL:
                self._told.add(header.index)

    def _expected(self) -> set[int]:
        return self._awaited - self._left

    def _reduce_what_is_ready(self) -> None:
        for piece in list(self._arrived):
            self._reduce_if_ready(piece)

    def _reduce_if_ready(self, piece: int) -> None:
        """Start summing a piece of ours once everybody who is still here has contributed to it."""
        arrived = self._arrived.get(piece)
        if self._average.owners[piece] == self._me and arrived and self._expected() <= set(arrived):
            self._summing.add(piece)
            self._tasks.start(self._reduce(piece, self._arrived.pop(piece)))

    async def _reduce(self, piece: int, arrived: dict[int, Input]) -> None:
        generation = self._average.made_in[piece]
        summed = await self._compute.in_order(self._sum, piece, generation, arrived)
        for peer in summed.refused:
            said = RemoteDataError(peer, "sent one that is no piece, not signed, not finite, or longer than it said")
            self._border.note(said, "left out a contribution")
        header = PieceHeader(piece, generation, summed.mask, len(summed.data))
        self._reduced[piece], self._made_from[piece] = (header, summed.data), summed.inputs
        self._send_to_all((header, summed.data))
        await self._average.take(self._roster.members[self._me].peer, header, summed.data)
        self._seal(generation)

    def _seal(self, generation: int) -> None:
        """Sign what we made in a generation, once it is all there."""
        digest = self._average.to_be_sealed(self._me, generation)
        if digest is None or generation in self._sealed:
            return
        signature = self._sign(self._average.about.statement(generation, digest))
        self._sealed[generation] = PieceHeader(SEAL, generation, b"", len(signature)), memoryview(signature)
        self._send_to_all(self._sealed[generation])
        self._average.seal(self._me, generation, signature)

    def _send_to_all(self, finished: Finished) -> None:
        for outlet in self._outlets.values():
            outlet.put_nowait(finished)

    def _sum(self, piece: int, generation: int, arrived: Mapping[int, Input]) -> _Summed:
        start, stop = self._average.bounds(piece)
        accepted: dict[int, Tensor] = {}
        refused: list[str] = []
        for member in sorted(arrived):
            entry, given = self._roster.members[member], arrived[member]
            try:
                contribution = self._codec.decode(given.data, stop - start)
            except ValueError:
                refused.append(entry.peer)
                continue
            # pieces of a member together must not be longer than the whole gradient it claimed
            length = math.hypot(self._lengths.get(member, 0.0), length_of(contribution))
            if is_acceptable(length, entry) and self._is_signed(member, piece, generation, given):
                self._lengths[member] = length
                accepted[member] = contribution
            else:
                refused.append(entry.peer)
        counted = self._mean_of(accepted)
        average = counted.average
        if self._codec.exact:
            self._average.exact[start:stop] = average
            average = self._average.exact[start:stop]
        inputs = {member: arrived[member] for member in accepted}
        return _Summed(mask_of(counted.members), self._codec.encode(average), inputs, refused)

    def _is_signed(self, member: int, piece: int, generation: int, given: Input) -> bool:
        """Whether a member has signed that this is its contribution: without that nobody else could be shown it."""
        if member == self._me:
            return True
        said = self._average.about.input(generation, piece, hashlib.sha256(given.data).digest())
        peer = self._roster.members[member].peer
        return given.generation == generation and self._is_signed_by(peer, said, given.signature)
