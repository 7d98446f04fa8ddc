"""The data plane of one round on one peer: pieces go out to their reducers, averages come back.

Every member holds a stream to every reducer: it sends its contributions to the reducer's pieces, and reads the averages
from the same stream as they are made. A contribution counts for a piece when it has arrived completely, once. Each
average is encoded once, and everybody, its reducer included, takes the same bytes. Nothing is decided here; `rounds.py`
and `leading.py` do that.

Arithmetic and hashing run in the one compute thread of the peer, in the order in which they were asked for; so what an
outdated average may still write is overwritten by the current one, never the other way round.
"""

import asyncio
import contextlib
import hashlib
import itertools
import logging
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import torch
from torch import Tensor

from dipaco_swarm.algorithm.state import vector_bytes
from dipaco_swarm.errors import RemoteDataError
from dipaco_swarm.swarm.interface import ModuleGroup, PeerName, Span
from dipaco_swarm.swarm.round.codecs.codec import Codec
from dipaco_swarm.swarm.round.reduction import (
    effective_paths_of,
    is_acceptable,
    length_of,
    mask_of,
    piece_average,
    piece_bounds,
    present_in,
)
from dipaco_swarm.swarm.transport import Executor, Stream, Transport
from dipaco_swarm.swarm.wire import Alive, Exchange, PieceHeader, Reassign, Roster

log = logging.getLogger(__name__)

DIAL_ATTEMPTS = 3
"""How often a stream to a reducer is opened before we leave it to the leader to see that we cannot reach it."""
DIAL_PAUSE_SECONDS = 5
"""A round that waits for everybody tries on, with pauses of so many seconds at most."""

Finished = tuple[PieceHeader, memoryview]
"""A reduced piece as it is sent."""

T = TypeVar("T")


class PieceExchange:
    """One round's pieces on one peer. `run` works until cancelled; `complete` is set whenever every average is here.

    `gradient`: what we contribute, fp32 (parameters,); must not change while the round runs. `left_over`: what the
    codec lost of our last contribution, added to this one. `residual`: where the loss of this one is written; None for
    an exact codec.
    """

    def __init__(
        self,
        transport: Transport,
        protocol: str,
        compute: Executor,
        roster: Roster,
        me: int,
        group: ModuleGroup,
        codec: Codec,
        gradient: Tensor,
        left_over: Tensor | None,
        residual: Tensor | None,
    ) -> None:
        self._transport = transport
        self._protocol = protocol
        self._compute = compute
        self.roster = roster
        self._me = me
        self._group = group
        self._average = piece_average(roster.members, group)
        self._codec = codec
        self._gradient = gradient
        self._left_over = left_over
        self._residual = residual
        self.mean = torch.empty_like(gradient)
        self._mean_bytes = vector_bytes(self.mean)
        self.started = asyncio.Event()
        self.complete = asyncio.Event()
        self.generation = 0
        self._size = roster.piece_parameters
        self._owners = list(roster.owners)
        self._made_in = [0] * len(self._owners)
        """The generation in which each piece was last given an owner."""
        self._digests: dict[int, bytes] = {}
        self._masks: dict[int, bytes] = {}
        self._dropped: set[int] = set()
        """Members the leader said are gone."""
        self._streams: list[Stream] = []
        # as a reducer
        self._arrived: dict[int, dict[int, memoryview]] = {}
        """piece -> member -> its contribution; the first one counts."""
        self._lengths: dict[int, float] = {}
        """member -> squared length of what we accepted of it so far."""
        self._left: set[int] = set()
        """Members whose stream to us ended: nothing more is to come."""
        self._reduced: dict[int, Finished] = {}
        self._summing: set[int] = set()
        self._outlets: dict[int, asyncio.Queue[Finished]] = {}
        self._told: set[int] = set()
        """Pieces of ours whose average somebody has, as far as we can tell."""
        # as a contributor
        self._to_send: dict[int, asyncio.Queue[int]] = {}
        self._sent: set[int] = set()
        """Pieces of ours that their reducer has, as far as we can tell."""
        self._exchanges: dict[int, asyncio.Task[None]] = {}
        self._tasks: asyncio.TaskGroup | None = None
        self._running: dict[asyncio.Task[None], None] = {}  # in the order in which they began

    # ------------------------------------------------------------------------------------------- what others see of us

    def digest(self) -> bytes:
        """SHA-256 over all averages and their masks: what members must agree on before anybody commits."""
        whole = hashlib.sha256()
        for piece in range(len(self._owners)):
            whole.update(self._digests[piece])
        return whole.digest()

    def spans(self) -> tuple[Span, ...]:
        """The effective number of paths along the vector; neighbours that agree are one span."""
        spans: list[Span] = []
        for piece in range(len(self._owners)):
            start, stop = self._bounds(piece)
            present = present_in(self._masks[piece], len(self.roster.members))
            n_eff = effective_paths_of(present, self.roster.members, self._group)
            if spans and spans[-1].effective_paths == n_eff:
                spans[-1] = Span(spans[-1].start, stop, n_eff)
            else:
                spans.append(Span(start, stop, n_eff))
        return tuple(spans)

    def contributors(self) -> tuple[int, ...]:
        """Roster indices of everybody who is in some piece of the average."""
        present: set[int] = set()
        for mask in self._masks.values():
            present.update(present_in(mask, len(self.roster.members)))
        return tuple(sorted(present))

    def left_out(self) -> tuple[PeerName, ...]:
        """Members that are not in every piece of the average."""
        everywhere = set(range(len(self.roster.members)))
        for mask in self._masks.values():
            everywhere &= set(present_in(mask, len(self.roster.members)))
        return tuple(PeerName(m.peer) for i, m in enumerate(self.roster.members) if i not in everywhere)

    def tokens(self) -> dict[PeerName, int]:
        """Tokens of the members that are in most of the averages: the work of the version that they make."""
        pieces: Counter[int] = Counter()
        for mask in self._masks.values():
            pieces.update(present_in(mask, len(self.roster.members)))
        most = (self.roster.members[i] for i, count in sorted(pieces.items()) if 2 * count > len(self._masks))
        return {PeerName(member.peer): member.tokens for member in most}

    @property
    def given(self) -> bool:
        """Whether most of our outer gradient is with others, who may count it even if we do not hear of it.

        As a contribution to a piece that they reduce, or in the average of a piece that we reduced.
        """
        with_others = [
            piece in (self._told if owner == self._me else self._sent) for piece, owner in enumerate(self._owners)
        ]
        return 2 * sum(with_others) >= len(with_others)

    def report(self) -> Alive:
        """Whose bytes we still miss, and how much has moved so far."""
        contributors: set[int] = set()
        for piece, owner in enumerate(self._owners):
            if owner == self._me and piece not in self._reduced:
                contributors |= self._expected() - set(self._arrived.get(piece, {}))
        reducers = {owner for piece, owner in enumerate(self._owners) if piece not in self._digests}
        name = [member.peer for member in self.roster.members]
        return Alive(
            awaits_contributions=tuple(name[i] for i in sorted(contributors - {self._me})),
            awaits_averages=tuple(name[i] for i in sorted(reducers - {self._me})),
            moved=sum(stream.arrived for stream in self._streams),
        )

    @property
    def bytes_sent(self) -> int:
        return sum(stream.sent for stream in self._streams)

    @property
    def bytes_received(self) -> int:
        return sum(stream.received for stream in self._streams)

    # ------------------------------------------------------------------------------------------------ the work of it

    async def run(self) -> None:
        """Send and receive until cancelled. All tasks of the round on this peer live and end in here."""
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            try:
                for piece, owner in enumerate(self._owners):
                    self._send_piece_to(owner, piece)
                self.started.set()
                # a group that an error leaves holds that error, which holds the group, and both hold our vectors
                with contextlib.suppress(asyncio.CancelledError):
                    await asyncio.Event().wait()
            finally:
                self._tasks = None
                for task in list(self._running):
                    task.cancel()
        self._exchanges.clear()

    def reassign(self, order: Reassign) -> None:
        """Members are gone: stop waiting for them, and redo their pieces with the new owners."""
        for piece, owner in order.pieces.items():
            if not (0 <= piece < len(self._owners) and 0 <= owner < len(self.roster.members)):
                raise RemoteDataError("leader", f"reassigns piece {piece} to member {owner}; there is no such thing")
        index_of = {member.peer: i for i, member in enumerate(self.roster.members)}
        for gone in {index_of[peer] for peer in order.gone if peer in index_of} - {self._me}:
            self._dropped.add(gone)
            if gone in self._exchanges:
                self._exchanges.pop(gone).cancel()
        self.generation = order.generation
        for piece, owner in order.pieces.items():
            self._owners[piece] = owner
            self._made_in[piece] = order.generation
            self._digests.pop(piece, None)
            self._masks.pop(piece, None)
            self.complete.clear()
            self._send_piece_to(owner, piece)
        self._reduce_what_is_ready()

    def _send_piece_to(self, owner: int, piece: int) -> None:
        if owner == self._me:
            self._spawn(self._contribute_locally(piece))
        elif owner in self._to_send:
            self._to_send[owner].put_nowait(piece)
        elif owner not in self._exchanges and owner not in self._dropped:
            task = self._spawn(self._exchange_with(owner))
            if task is not None:
                self._exchanges[owner] = task

    async def _contribute_locally(self, piece: int) -> None:
        self._take_contribution(self._me, piece, await self._in_order(self._encode, piece))

    def _encode(self, piece: int) -> memoryview:
        """Our contribution to a piece as bytes, the same however often it is made; the loss goes to the residual."""
        start, stop = self._bounds(piece)
        part = self._gradient[start:stop]
        if self._left_over is not None:
            part = part + self._left_over[start:stop]
        data = self._codec.encode(part)
        if self._residual is not None:
            torch.sub(part, self._codec.decode(data, stop - start), out=self._residual[start:stop])
        return data

    async def _exchange_with(self, owner: int) -> None:
        """Our side of the stream to one reducer, opened again when it breaks."""
        peer = self.roster.members[owner].peer
        for attempt in itertools.count() if self._group.whole else range(DIAL_ATTEMPTS):
            await asyncio.sleep(min(attempt, DIAL_PAUSE_SECONDS))
            try:
                async with self._transport.dial(peer, self._protocol) as stream:
                    await stream.send(Exchange(round_id=self.roster.round_id))
                    self._streams.append(stream)
                    to_send = self._to_send[owner] = asyncio.Queue()
                    for piece, its_owner in enumerate(self._owners):
                        if its_owner == owner:
                            to_send.put_nowait(piece)
                    await self._both_ways(
                        self._send_contributions(stream, to_send), self._receive_averages(stream, owner)
                    )
            except RemoteDataError as error:
                log.warning("ignored a reducer that broke the protocol: %s", error)
                return
            except (ConnectionError, EOFError) as error:
                log.debug("exchange with a reducer ended: %s", error)

    async def _send_contributions(self, stream: Stream, pieces: "asyncio.Queue[int]") -> None:
        while True:
            piece = await pieces.get()
            data = await self._in_order(self._encode, piece)
            await stream.send_piece(PieceHeader(piece, self._made_in[piece], b"", len(data)), data)
            self._sent.add(piece)

    async def _receive_averages(self, stream: Stream, owner: int) -> None:
        while (header := await stream.receive_piece_header()) is not None:
            piece = header.index
            if piece >= len(self._owners) or header.size != self._encoded_size(piece):
                raise RemoteDataError(stream.peer, f"sends {header.size} bytes as the average of piece {piece}")
            # outdated, or repeated on a new stream: read and forgotten
            wanted = self._is_current(header, owner) and piece not in self._digests
            data = self._destination(piece) if wanted else memoryview(bytearray(header.size))
            await stream.receive_into(data)
            if wanted and self._is_current(header, owner):
                await self._take_average(stream.peer, header, data)

    def _is_current(self, header: PieceHeader, owner: int) -> bool:
        return self._owners[header.index] == owner and self._made_in[header.index] == header.generation

    def _destination(self, piece: int) -> memoryview:
        """Where the bytes of an average go: with an exact codec they are the mean itself."""
        if self._codec.exact:
            start, stop = self._bounds(piece)
            return self._mean_bytes[4 * start : 4 * stop]
        return _buffer(self._encoded_size(piece))

    async def _take_average(self, peer: str, header: PieceHeader, data: memoryview) -> None:
        """An average has arrived, from its reducer or from ourselves."""
        try:
            present_in(header.mask, len(self.roster.members))
        except ValueError as error:
            raise RemoteDataError(peer, f"sends a malformed average of piece {header.index}: {error}") from None
        digest = await self._in_order(self._settle, header, data)
        if header.generation == self._made_in[header.index]:
            self._digests[header.index], self._masks[header.index] = digest, header.mask
            if len(self._digests) == len(self._owners):
                self.complete.set()

    def _settle(self, header: PieceHeader, data: memoryview) -> bytes:
        """Decode an average into the mean; returns the digest of its bytes and mask."""
        if not self._codec.exact:
            start, stop = self._bounds(header.index)
            self.mean[start:stop] = self._codec.decode(data, stop - start)
        digest = hashlib.sha256(len(header.mask).to_bytes(4, "little") + header.mask)
        digest.update(data)
        return digest.digest()

    # --------------------------------------------------------------------------------------------------- as a reducer

    async def serve(self, stream: Stream) -> None:
        """A member's stream to us, until it leaves or the round ends."""
        member = next((i for i, entry in enumerate(self.roster.members) if entry.peer == stream.peer), None)
        if member is None:
            raise RemoteDataError(stream.peer, "takes part in an exchange without being on its roster")
        task = self._spawn(self._serve(stream, member))
        if task is not None:
            await asyncio.wait({task})

    async def _serve(self, stream: Stream, member: int) -> None:
        self._streams.append(stream)
        outlet: asyncio.Queue[Finished] = asyncio.Queue()
        for finished in self._reduced.values():
            outlet.put_nowait(finished)
        self._outlets[member] = outlet
        try:
            await self._both_ways(self._send_averages(stream, outlet), self._receive_contributions(stream, member))
        except RemoteDataError as error:
            log.warning("left out a contributor that broke the protocol: %s", error)
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

    async def _receive_contributions(self, stream: Stream, member: int) -> None:
        while (header := await stream.receive_piece_header()) is not None:
            piece = header.index
            if piece >= len(self._owners):
                raise RemoteDataError(stream.peer, f"contributes to piece {piece}, which does not exist")
            if self._owners[piece] != self._me and header.generation <= self.generation:
                raise RemoteDataError(stream.peer, f"contributes to piece {piece}, which is not ours to reduce")
            if header.size != self._encoded_size(piece):
                raise RemoteDataError(
                    stream.peer, f"contributes {header.size} bytes to piece {piece} of {self._encoded_size(piece)}"
                )
            data = _buffer(header.size)
            await stream.receive_into(data)
            self._take_contribution(member, piece, data)

    async def _send_averages(self, stream: Stream, outlet: "asyncio.Queue[Finished]") -> None:
        while True:
            header, data = await outlet.get()
            await stream.send_piece(header, data)
            self._told.add(header.index)

    def _take_contribution(self, member: int, piece: int, data: memoryview) -> None:
        if piece not in self._summing:
            self._arrived.setdefault(piece, {}).setdefault(member, data)
            self._reduce_if_ready(piece)

    def _expected(self) -> set[int]:
        return set(range(len(self.roster.members))) - self._left - self._dropped

    def _reduce_what_is_ready(self) -> None:
        for piece in list(self._arrived):
            self._reduce_if_ready(piece)

    def _reduce_if_ready(self, piece: int) -> None:
        """Start summing a piece of ours once everybody who is still here has contributed to it."""
        arrived = self._arrived.get(piece)
        if self._owners[piece] == self._me and arrived and self._expected() <= set(arrived):
            self._summing.add(piece)
            self._spawn(self._reduce(piece, self._arrived.pop(piece)))

    async def _reduce(self, piece: int, arrived: dict[int, memoryview]) -> None:
        generation = self._made_in[piece]
        mask, data = await self._in_order(self._sum, piece, arrived)
        header = PieceHeader(piece, generation, mask, len(data))
        self._reduced[piece] = header, data
        for outlet in self._outlets.values():
            outlet.put_nowait((header, data))
        await self._take_average(self.roster.members[self._me].peer, header, data)

    def _sum(self, piece: int, arrived: dict[int, memoryview]) -> tuple[bytes, memoryview]:
        start, stop = self._bounds(piece)
        accepted: dict[int, Tensor] = {}
        for member in sorted(arrived):
            entry = self.roster.members[member]
            contribution = self._codec.decode(arrived.pop(member), stop - start)
            # pieces of a member together must not be longer than the whole gradient it claimed
            squared = self._lengths.get(member, 0.0) + length_of(contribution) ** 2
            if is_acceptable(squared, entry):
                self._lengths[member] = squared
                accepted[member] = contribution
            else:
                log.warning("left out a contribution of peer %s: not finite, or longer than it said", entry.peer[-8:])
        mean = self._average(accepted)
        mask = mask_of(list(accepted))
        if not self._codec.exact:
            return mask, self._codec.encode(mean)
        self.mean[start:stop] = mean
        return mask, self._destination(piece)

    # -------------------------------------------------------------------------------------------------------- details

    def _bounds(self, piece: int) -> tuple[int, int]:
        return piece_bounds(piece, self._size, len(self._gradient))

    def _encoded_size(self, piece: int) -> int:
        start, stop = self._bounds(piece)
        return self._codec.encoded_size(stop - start)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None] | None:
        """A task of this round; None when the round is over."""
        if self._tasks is None:
            work.close()
            return None
        task = self._tasks.create_task(work)
        self._running[task] = None
        task.add_done_callback(self._running.pop)
        return task

    async def _in_order(self, work: Callable[..., T], *args: Any) -> T:
        return await self._compute.in_order(work, *args)

    @staticmethod
    async def _both_ways(sending: Coroutine[Any, Any, None], receiving: Coroutine[Any, Any, None]) -> None:
        """Both at once, until the other side closes its stream; a stream that takes nothing any more ends it too."""
        tasks = {asyncio.create_task(sending), asyncio.create_task(receiving)}
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.gather(*(task for task in tasks if task.done()))
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            del task  # what has failed holds this frame by its traceback, and must not be held by it
            tasks.clear()


def _buffer(size: int) -> memoryview:
    """Room for `size` bytes, not cleared."""
    return vector_bytes(torch.empty(size, dtype=torch.uint8))
