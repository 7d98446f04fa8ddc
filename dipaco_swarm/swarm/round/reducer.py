"""One peer as a reducer: contributions to its pieces come in, are summed in the order of the roster, and go out."""

import asyncio
import logging
import math
from collections.abc import Set as AbstractSet

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
        self._mean_of = piece_average(roster.members, group)
        self._compute = compute
        self._tasks = tasks
        self._border = transport.border
        self._sign = transport.sign
        self.generation = 0
        self._arrived: dict[int, dict[int, memoryview]] = {}
        """piece -> member -> its contribution; the first one counts."""
        self._lengths: dict[int, float] = {}
        """member -> length of what we accepted of it so far."""
        self._members = len(roster.members)
        self._awaited = {i for i, member in enumerate(roster.members) if member.awaited}
        self._left: set[int] = set()
        """Members from whom nothing more is to come."""
        self._reduced: dict[int, Finished] = {}
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

    def take(self, member: int, piece: int, data: memoryview) -> None:
        """A contribution is here completely."""
        if piece not in self._summing:
            self._arrived.setdefault(piece, {}).setdefault(member, data)
            self._reduce_if_ready(piece)

    async def _receive_contributions(self, stream: Stream, member: int) -> None:
        average = self._average
        while (header := await stream.receive_piece_header()) is not None:
            piece = header.index
            if piece >= len(average.owners):
                raise RemoteDataError(stream.peer, f"contributes to piece {piece}, which does not exist")
            if average.owners[piece] != self._me and header.generation <= self.generation:
                raise RemoteDataError(stream.peer, f"contributes to piece {piece}, which is not ours to reduce")
            if not average.allows(piece, header.size):
                raise RemoteDataError(stream.peer, f"contributes {header.size} bytes to piece {piece}, which has fewer")
            data = buffer(header.size)
            await stream.receive_into(data)
            self.take(member, piece, data)

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

    async def _reduce(self, piece: int, arrived: dict[int, memoryview]) -> None:
        generation = self._average.made_in[piece]
        mask, data, refused = await self._compute.in_order(self._sum, piece, arrived)
        for peer in refused:
            said = RemoteDataError(peer, "sent one that is no piece, not finite, or longer than it said")
            self._border.note(said, "left out a contribution")
        header = PieceHeader(piece, generation, mask, len(data))
        self._reduced[piece] = header, data
        self._send_to_all((header, data))
        await self._average.take(self._roster.members[self._me].peer, header, data)
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

    def _sum(self, piece: int, arrived: dict[int, memoryview]) -> tuple[bytes, memoryview, list[str]]:
        """Who is in the average of a piece, its bytes, and whose contributions cannot be."""
        start, stop = self._average.bounds(piece)
        accepted: dict[int, Tensor] = {}
        refused: list[str] = []
        for member in sorted(arrived):
            entry = self._roster.members[member]
            try:
                contribution = self._codec.decode(arrived.pop(member), stop - start)
            except ValueError:
                refused.append(entry.peer)
                continue
            # pieces of a member together must not be longer than the whole gradient it claimed
            length = math.hypot(self._lengths.get(member, 0.0), length_of(contribution))
            if is_acceptable(length, entry):
                self._lengths[member] = length
                accepted[member] = contribution
            else:
                refused.append(entry.peer)
        counted = self._mean_of(accepted)
        mask = mask_of(counted.members)
        if not self._codec.exact:
            return mask, self._codec.encode(counted.average), refused
        self._average.exact[start:stop] = counted.average
        return mask, self._codec.encode(self._average.exact[start:stop]), refused
