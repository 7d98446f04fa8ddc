"""The data plane of one round on one peer: pieces go out to their reducers, averages come back.

Every member holds a stream to every reducer: it sends its contributions to the reducer's pieces, and reads the averages
from the same stream as they are made. A contribution counts for a piece when it has arrived completely, once. What this
peer reduces itself is in `reducer.py`, what has come in of the average in `average.py`. Nothing is decided here;
`following.py` and `deciding.py` do that.

Arithmetic and hashing run in the one compute thread of the peer, in the order in which they were asked for; so what an
outdated average may still write is overwritten by the current one, never the other way round.
"""

import asyncio
import contextlib
import hashlib
import itertools
import logging
from collections.abc import Mapping
from collections.abc import Set as AbstractSet

import torch
from torch import Tensor

from dipaco_swarm.algorithm.outer import Vector
from dipaco_swarm.errors import RemoteDataError
from dipaco_swarm.swarm.framing import SEAL, SIGNATURE_BYTES, PieceHeader
from dipaco_swarm.swarm.interface import ModuleGroup
from dipaco_swarm.swarm.round.average import Average, buffer
from dipaco_swarm.swarm.round.codecs.codec import Codec
from dipaco_swarm.swarm.round.counted_streams import CountedStreams
from dipaco_swarm.swarm.round.exchange_tasks import ExchangeTasks, both_ways
from dipaco_swarm.swarm.round.overdue import Moved
from dipaco_swarm.swarm.round.reducer import Input, Reducer, Shown
from dipaco_swarm.swarm.round.reduction import mask_of
from dipaco_swarm.swarm.round.seals import Subject
from dipaco_swarm.swarm.round.suspecting import Fit, fit_of, odd_piece
from dipaco_swarm.swarm.traffic import Purpose
from dipaco_swarm.swarm.transport import Executor, Stream, Transport
from dipaco_swarm.swarm.wire import Alive, Exchange, Reassign, Roster

log = logging.getLogger(__name__)

DIAL_ATTEMPTS = 3
"""How often a stream to a reducer is opened before we leave it to the leader to see that we cannot reach it."""
DIAL_PAUSE_SECONDS = 5
"""A round that waits for everybody tries on, with pauses of so many seconds at most."""


class PieceExchange:
    """One round's pieces on one peer. `run` works until cancelled; `average.complete` is set whenever all is here.

    `gradient`: what we contribute; must not change while the round runs. `left_over`: what the
    codec lost of our last contribution, added to this one. `residual`: where the loss of this one is written; None for
    an exact codec.
    """

    def __init__(
        self,
        transport: Transport,
        protocol: str,
        compute: Executor,
        roster: Roster,
        about: Subject,
        me: int,
        group: ModuleGroup,
        codec: Codec,
        gradient: Vector,
        left_over: Tensor | None,
        residual: Tensor | None,
    ) -> None:
        self._transport = transport
        self._protocol = protocol
        self._compute = compute
        self.roster = roster
        self._me = me
        self._whole = group.whole
        self._codec = codec
        self._gradient = gradient
        self._left_over = left_over
        self._residual = residual
        self._tasks = ExchangeTasks()  # the reducer has them too, and must not hold us: we end when nobody does
        self.average = Average(roster, about, group, codec, len(gradient), compute, transport.is_signed_by)
        self._reducer = Reducer(roster, me, group, codec, self.average, compute, self._tasks, transport)
        self.started = asyncio.Event()
        self.generation = 0
        self.blamed: set[str] = set()
        """Members that are said to have kept this round waiting."""
        self._dropped: set[int] = set()
        """Members the leader said are gone."""
        self._streams = CountedStreams()
        self._to_send: dict[int, asyncio.Queue[int]] = {}
        self._sent: set[int] = set()
        """Pieces of ours that their reducer has, as far as we can tell."""
        self._exchanges: dict[int, asyncio.Task[None]] = {}

    # ------------------------------------------------------------------------------------------- what others see of us

    @property
    def given(self) -> bool:
        """Whether most of our outer gradient is with others, who may count it even if we do not hear of it.

        As a contribution to a piece that they reduce, or in the average of a piece that we reduced.
        """
        owners = self.average.owners
        with_others = [
            self._reducer.has_told(piece) if owner == self._me else piece in self._sent
            for piece, owner in enumerate(owners)
        ]
        return 2 * sum(with_others) >= len(owners)

    @property
    def progress(self) -> float:
        """How much of it is done, 0 to 1: our pieces with other reducers, and pieces of the average that are here."""
        elsewhere = sum(owner != self._me for owner in self.average.owners)
        return self.pieces_moved / (elsewhere + len(self.average.owners))

    @property
    def pieces_moved(self) -> int:
        """Our pieces with other reducers, and pieces of the average that are here."""
        return len(self._sent) + self.average.pieces_here

    @property
    def moved(self) -> Moved:
        """How far it has come, for who waits for its end."""
        pieces = self.pieces_moved + self._reducer.contributions_here
        return Moved(pieces, self.generation, self.average.complete.is_set())

    def attested(self) -> frozenset[str]:
        """Who has signed something about this round, and so has seen this roster: reducers, and who gave us something.

        Once the average is complete.
        """
        sealed = {seal.reducer for seal in self.average.seals()}
        return frozenset(self.roster.members[i].peer for i in sealed | self._reducer.contributors() | {self._me})

    def report(self) -> Alive:
        """Whose bytes we still miss, and how much has moved so far."""
        return Alive(
            awaits_contributions=mask_of(self._reducer.awaited()),
            awaits_averages=mask_of(self.average.awaited() - {self._me}),
            moved=self._streams.arrived,
        )

    def waive(self, members: AbstractSet[int]) -> None:
        """As a reducer, do not wait for these, whoever the leader waits for."""
        self._reducer.waive(members - {self._me})

    @property
    def shown(self) -> Mapping[int, Shown]:
        """The pieces that we have reduced and signed, and from what: for who checks them after the round."""
        return self._reducer.shown()

    @property
    def bytes_sent(self) -> int:
        return self._streams.sent

    @property
    def bytes_received(self) -> int:
        return self._streams.received

    # ------------------------------------------------------------------------------------------------ the work of it

    async def run(self) -> None:
        """Send and receive until cancelled. All tasks of the round on this peer live and end in here."""
        async with self._tasks.group():
            for piece, owner in enumerate(self.average.owners):
                self._send_piece_to(owner, piece)
            self.started.set()
            # a group that an error leaves holds that error, which holds the group, and both hold our vectors
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.Event().wait()
        self._exchanges.clear()

    def reassign(self, order: Reassign) -> None:
        """Members are gone: stop waiting for them, and redo their pieces with the new owners.

        Nobody else's: what a reducer has made and signed once is not asked of it in another way.
        """
        pieces = dict(order.pieces)
        for piece, owner in pieces.items():
            if piece >= len(self.average.owners) or owner >= len(self.roster.members):
                raise RemoteDataError("leader", f"reassigns piece {piece} to member {owner}; there is no such thing")
        if not {*order.late} <= {*order.gone}:
            raise RemoteDataError("leader", "says that members were late, and goes on with them")
        index_of = {member.peer: i for i, member in enumerate(self.roster.members)}
        gone = {index_of[peer] for peer in order.gone if peer in index_of} - {self._me}
        is_news = bool(gone - self._dropped)
        self._dropped |= gone
        its_own = {self.average.owners[p] for p in pieces} <= self._dropped
        if order.generation <= self.generation or not (is_news and its_own):
            raise RemoteDataError("leader", "reassigns pieces of members that are there")
        for member in gone & self._exchanges.keys():
            self._exchanges.pop(member).cancel()
        self.generation = order.generation
        self.average.reassign(pieces, order.generation)
        for piece, owner in pieces.items():
            self._send_piece_to(owner, piece)
        self._reducer.go_on_without(gone, order.generation)

    async def serve(self, stream: Stream) -> None:
        """A member's stream to us as a reducer, until it leaves or the round ends."""
        member = next((i for i, entry in enumerate(self.roster.members) if entry.peer == stream.peer), None)
        if member is None:
            raise RemoteDataError(stream.peer, "takes part in an exchange without being on its roster")
        with self._streams.counted(stream):
            task = self._tasks.start(self._reducer.serve(stream, member))
            if task is not None:
                await asyncio.wait({task})

    def _send_piece_to(self, owner: int, piece: int) -> None:
        if owner == self._me:
            self._tasks.start(self._contribute_locally(piece))
        elif owner in self._to_send:
            self._to_send[owner].put_nowait(piece)
        elif owner not in self._exchanges and owner not in self._dropped:
            task = self._tasks.start(self._exchange_with(owner))
            if task is not None:
                self._exchanges[owner] = task

    async def _contribute_locally(self, piece: int) -> None:
        self._reducer.take(self._me, piece, await self._compute.in_order(self._signed, piece))

    def _signed(self, piece: int) -> Input:
        """Our contribution to a piece, with our signature."""
        data, generation = self.contribution_to(piece), self.average.made_in[piece]
        said = self.average.about.input(generation, piece, hashlib.sha256(data).digest())
        return Input(generation, data, self._transport.sign(said))

    def contribution_to(self, piece: int) -> memoryview:
        """Our contribution to a piece as bytes, the same however often it is made; the loss goes to the residual."""
        start, stop = self.average.bounds(piece)
        part = self._part(start, stop)
        data = self._codec.encode(part)
        if self._residual is not None:
            torch.sub(part, self._codec.decode(data, stop - start), out=self._residual[start:stop])
        return data

    def _part(self, start: int, stop: int) -> Tensor:
        part = self._gradient[start:stop]
        return part if self._left_over is None else part + self._left_over[start:stop]

    async def odd_piece(self) -> int | None:
        """The piece of another reducer that is to be looked at, by how much of ours is in all of them."""
        fits = {
            piece: await self._compute.in_order(self._fit_of, piece)
            for piece in range(len(self.average.owners))
            if self.average.counts(piece, self._me)
        }
        return odd_piece(fits, self.average.owners, self._me)

    def _fit_of(self, piece: int) -> Fit:
        return fit_of(self._part(*self.average.bounds(piece)), self.average.numbers(piece))

    async def _exchange_with(self, owner: int) -> None:
        """Our side of the stream to one reducer, opened again when it breaks."""
        peer = self.roster.members[owner].peer
        for attempt in itertools.count() if self._whole else range(DIAL_ATTEMPTS):
            await asyncio.sleep(min(attempt, DIAL_PAUSE_SECONDS))
            try:
                async with self._transport.dial(peer, self._protocol) as stream:
                    stream.purpose = Purpose.ROUND
                    await stream.send(Exchange(round_id=self.roster.round_id))
                    mine = self._to_send[owner] = asyncio.Queue()
                    for piece, its_owner in enumerate(self.average.owners):
                        if its_owner == owner:
                            mine.put_nowait(piece)
                    with self._streams.counted(stream):
                        await both_ways(self._send_contributions(stream, mine), self._receive_averages(stream, owner))
            except RemoteDataError as error:
                self._transport.border.note(error, "ignored a reducer")
                return
            except (ConnectionError, EOFError) as error:
                log.debug("exchange with a reducer ended: %s", error)

    async def _send_contributions(self, stream: Stream, pieces: "asyncio.Queue[int]") -> None:
        while True:
            piece = await pieces.get()
            ours = await self._compute.in_order(self._signed, piece)
            await stream.send_piece(PieceHeader(piece, ours.generation, ours.signature, len(ours.data)), ours.data)
            self._sent.add(piece)

    async def _receive_averages(self, stream: Stream, owner: int) -> None:
        average = self.average
        while (header := await stream.receive_piece_header()) is not None:
            piece = header.index
            if piece == SEAL and header.size == SIGNATURE_BYTES:
                signature = buffer(header.size)
                await stream.receive_into(signature)
                average.seal(owner, header.generation, bytes(signature))
                continue
            if piece >= len(average.owners) or not average.allows(piece, header.size):
                raise RemoteDataError(stream.peer, f"sends {header.size} bytes as the average of piece {piece}")
            # outdated, or repeated on a new stream: read and forgotten
            wanted = average.is_current(header, owner) and not average.has(piece)
            data = average.destination(piece, header.size) if wanted else buffer(header.size)
            await stream.receive_into(data)
            if wanted and average.is_current(header, owner):
                await average.take(stream.peer, header, data)
