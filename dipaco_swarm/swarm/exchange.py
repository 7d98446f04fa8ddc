"""The data plane of one round on one peer: pieces go out to their reducers, averages come back.

Every member holds a stream to every reducer: it sends its contributions to the reducer's pieces, and reads the averages
from the same stream as they are made. A contribution counts for a piece when it has arrived completely. Each average is
encoded once, and everybody, its reducer included, takes the same bytes. Nothing is decided here; `rounds.py` does that.
"""

import asyncio
import hashlib
import logging
from collections.abc import Coroutine
from typing import Any

import torch
from torch import Tensor

from dipaco_swarm.errors import RemoteDataError
from dipaco_swarm.swarm.codec import Codec, decode, encode, encoded_size
from dipaco_swarm.swarm.interface import ModuleGroup, Span
from dipaco_swarm.swarm.node import Node
from dipaco_swarm.swarm.reduction import (
    effective_paths_of,
    is_acceptable,
    mask_of,
    piece_bounds,
    present_in,
    reduce_piece,
)
from dipaco_swarm.swarm.wire import Exchange, Piece, Reassign, Roster, Stream

log = logging.getLogger(__name__)

Finished = tuple[int, int, bytes, memoryview]
"""A reduced piece: index, generation, mask, encoded mean."""


class PieceExchange:
    """One round's pieces on one peer. `run` works until cancelled; `complete` is set whenever every average is here.

    `outgoing`: what we contribute, fp32 (parameters,). `residual`: None for an exact codec, else where the encoding
    error of each piece is written, fp32 (parameters,).
    """

    def __init__(
        self,
        node: Node,
        protocol: str,
        roster: Roster,
        me: int,
        group: ModuleGroup,
        codec: Codec,
        outgoing: Tensor,
        residual: Tensor | None,
    ) -> None:
        self._node = node
        self._protocol = protocol
        self.roster = roster
        self._me = me
        self._group = group
        self._codec: Codec = codec
        self._outgoing = outgoing
        self._residual = residual
        self.mean = torch.empty_like(outgoing)
        self.started = asyncio.Event()
        self.complete = asyncio.Event()
        self.generation = 0
        self.bytes_sent = 0
        self.bytes_received = 0
        self._size = roster.piece_parameters
        self._owners = list(roster.owners)
        self._made_in = [0] * len(self._owners)
        """The generation in which each piece was last given an owner."""
        self._digests: dict[int, bytes] = {}
        self._masks: dict[int, bytes] = {}
        self._encoded: dict[int, memoryview] = {}
        self._gone: set[int] = set()
        # as a reducer
        self._arrived: dict[tuple[int, int], dict[int, memoryview]] = {}
        self._reduced: dict[tuple[int, int], Finished] = {}
        self._summing: set[tuple[int, int]] = set()
        self._outlets: dict[int, asyncio.Queue[Finished]] = {}
        # as a contributor
        self._to_send: dict[int, asyncio.Queue[int]] = {}
        self._tasks: asyncio.TaskGroup | None = None

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
            n_eff = effective_paths_of(present, self.roster.members, self._group.path_weights)
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

    def waiting_for(self) -> tuple[str, ...]:
        """Members whose bytes we still miss: owners of averages, and contributors to our own pieces."""
        missing = {self._owners[piece] for piece in range(len(self._owners)) if piece not in self._digests}
        missing.discard(self._me)
        for piece, owner in enumerate(self._owners):
            key = (piece, self._made_in[piece])
            if owner == self._me and key not in self._reduced:
                missing.update(self._expected() - set(self._arrived.get(key, {})))
        missing.discard(self._me)
        return tuple(self.roster.members[i].peer for i in sorted(missing))

    # ------------------------------------------------------------------------------------------------ the work of it

    async def run(self) -> None:
        """Send and receive until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            self.started.set()
            for piece, owner in enumerate(self._owners):
                self._send_piece_to(owner, piece)
            await asyncio.Event().wait()

    def reassign(self, order: Reassign) -> None:
        """Members are gone: stop waiting for them, and redo their pieces with the new owners."""
        index_of = {member.peer: i for i, member in enumerate(self.roster.members)}
        for peer in order.gone:
            if peer in index_of and index_of[peer] != self._me:
                self._gone.add(index_of[peer])
        self.generation = order.generation
        for piece, owner in order.pieces.items():
            if not (0 <= piece < len(self._owners) and 0 <= owner < len(self.roster.members)):
                raise RemoteDataError("leader", f"reassigns piece {piece} to member {owner}; there is no such thing")
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
            return
        if owner in self._gone:
            return
        if owner not in self._to_send:
            self._to_send[owner] = asyncio.Queue()
            self._spawn(self._exchange_with(owner))
        self._to_send[owner].put_nowait(piece)

    async def _contribute_locally(self, piece: int) -> None:
        data = await self._encoded_piece(piece)
        self._take_contribution(self._me, piece, self._made_in[piece], data)

    async def _encoded_piece(self, piece: int) -> memoryview:
        """Our contribution to a piece as bytes; what the encoding lost goes to the residual."""
        if piece not in self._encoded:
            start, stop = self._bounds(piece)
            self._encoded[piece] = await asyncio.to_thread(self._encode, start, stop)
        return self._encoded[piece]

    def _encode(self, start: int, stop: int) -> memoryview:
        part = self._outgoing[start:stop]
        data = encode(self._codec, part)
        if self._residual is not None:
            torch.sub(part, decode(self._codec, data, stop - start), out=self._residual[start:stop])
        return data

    async def _exchange_with(self, owner: int) -> None:
        """Our side of the stream to one reducer. When it breaks, the leader notices too and reassigns."""
        peer = self.roster.members[owner].peer
        try:
            async with self._node.dial(peer, self._protocol) as stream:
                await stream.send(Exchange(round_id=self.roster.round_id))
                sender = asyncio.create_task(self._send_contributions(stream, owner))
                try:
                    while (average := await stream.receive_piece(self._max_piece_bytes())) is not None:
                        self.bytes_received += len(average.data)
                        await self._take_average(peer, average)
                finally:
                    sender.cancel()
                    await asyncio.gather(sender, return_exceptions=True)
        except RemoteDataError as error:
            log.warning("ignored a reducer that broke the protocol: %s", error)
        except (ConnectionError, EOFError) as error:
            log.debug("exchange with a reducer ended: %s", error)

    async def _send_contributions(self, stream: Stream, owner: int) -> None:
        while True:
            piece = await self._to_send[owner].get()
            data = await self._encoded_piece(piece)
            await stream.send_piece(piece, self._made_in[piece], b"", data)
            self.bytes_sent += len(data)

    async def _take_average(self, peer: str, average: Piece) -> None:
        """An average has arrived, from its reducer or from ourselves. Outdated generations are dropped."""
        piece = average.index
        if piece >= len(self._owners) or average.generation != self._made_in[piece]:
            return
        start, stop = self._bounds(piece)
        try:
            present_in(average.mask, len(self.roster.members))
            digest = await asyncio.to_thread(self._decode_average, average, start, stop)
        except ValueError as error:
            raise RemoteDataError(peer, f"sends a malformed average of piece {piece}: {error}") from None
        if average.generation != self._made_in[piece]:
            return  # reassigned while we were decoding; the new owner's bytes will overwrite these
        self._digests[piece], self._masks[piece] = digest, average.mask
        if len(self._digests) == len(self._owners):
            self.complete.set()

    def _decode_average(self, average: Piece, start: int, stop: int) -> bytes:
        self.mean[start:stop] = decode(self._codec, average.data, stop - start)
        digest = hashlib.sha256(len(average.mask).to_bytes(4, "little") + average.mask)
        digest.update(average.data)
        return digest.digest()

    # --------------------------------------------------------------------------------------------------- as a reducer

    async def serve(self, stream: Stream) -> None:
        """A member's stream to us: take its contributions, send it our averages. Returns when it leaves."""
        member = next((i for i, entry in enumerate(self.roster.members) if entry.peer == stream.peer), None)
        if member is None:
            raise RemoteDataError(stream.peer, "takes part in an exchange without being on its roster")
        outlet: asyncio.Queue[Finished] = asyncio.Queue()
        for finished in self._reduced.values():
            outlet.put_nowait(finished)
        self._outlets[member] = outlet
        sender = asyncio.create_task(self._send_averages(stream, outlet))
        try:
            while (piece := await stream.receive_piece(self._max_piece_bytes())) is not None:
                self.bytes_received += len(piece.data)
                if piece.index >= len(self._owners):
                    raise RemoteDataError(stream.peer, f"contributes to piece {piece.index}, which does not exist")
                self._take_contribution(member, piece.index, piece.generation, memoryview(piece.data))
        finally:
            # whatever it had not sent completely does not count
            self._gone.add(member)
            self._outlets.pop(member, None)
            sender.cancel()
            await asyncio.gather(sender, return_exceptions=True)
            self._reduce_what_is_ready()

    async def _send_averages(self, stream: Stream, outlet: "asyncio.Queue[Finished]") -> None:
        while True:
            index, generation, mask, data = await outlet.get()
            await stream.send_piece(index, generation, mask, data)
            self.bytes_sent += len(data)

    def _take_contribution(self, member: int, piece: int, generation: int, data: memoryview) -> None:
        self._arrived.setdefault((piece, generation), {})[member] = data
        self._reduce_if_ready(piece)

    def _expected(self) -> set[int]:
        return set(range(len(self.roster.members))) - self._gone

    def _reduce_what_is_ready(self) -> None:
        for piece, owner in enumerate(self._owners):
            if owner == self._me:
                self._reduce_if_ready(piece)

    def _reduce_if_ready(self, piece: int) -> None:
        """Start summing a piece of ours once everybody who is still here has contributed to it."""
        key = (piece, self._made_in[piece])
        arrived = self._arrived.get(key)
        if self._owners[piece] != self._me or key in self._summing:
            return
        if arrived and self._expected() <= set(arrived):
            self._summing.add(key)
            self._spawn(self._reduce(key, arrived))

    async def _reduce(self, key: tuple[int, int], arrived: dict[int, memoryview]) -> None:
        piece, generation = key
        start, stop = self._bounds(piece)
        mask, data = await asyncio.to_thread(self._sum, arrived, stop - start)
        del self._arrived[key]
        finished = (piece, generation, mask, data)
        self._reduced[key] = finished
        for outlet in self._outlets.values():
            outlet.put_nowait(finished)
        mine = Piece(piece, generation, mask, data)
        await self._take_average(self.roster.members[self._me].peer, mine)

    def _sum(self, arrived: dict[int, memoryview], count: int) -> tuple[bytes, memoryview]:
        accepted: dict[int, Tensor] = {}
        for member in sorted(arrived):
            entry = self.roster.members[member]
            try:
                contribution = decode(self._codec, arrived[member], count)
            except ValueError as error:
                log.warning("left out a contribution of peer %s: %s", entry.peer[-8:], error)
                continue
            if is_acceptable(contribution, entry):
                accepted[member] = contribution
            else:
                log.warning("left out a contribution of peer %s: not finite, or longer than it said", entry.peer[-8:])
        mean = reduce_piece(accepted, self.roster.members, self._group.path_weights)
        return mask_of(list(accepted)), encode(self._codec, mean)

    # -------------------------------------------------------------------------------------------------------- details

    def _bounds(self, piece: int) -> tuple[int, int]:
        return piece_bounds(piece, self._size, len(self._outgoing))

    def _max_piece_bytes(self) -> int:
        return encoded_size(self._codec, min(self._size, len(self._outgoing)))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        assert self._tasks is not None, "run() has not started"
        self._tasks.create_task(work)
