"""The rounds that this peer is in, and how they ended: what it tells a member that asks, it keeps to.

Who asks makes nobody leave a round: only who has lost its leader itself leaves it, and says so.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator

from dipaco_swarm.algorithm.forgetting import keep_last
from dipaco_swarm.swarm.interface import NotAgreed
from dipaco_swarm.swarm.proofs import Seal
from dipaco_swarm.swarm.round.exchange import PieceExchange
from dipaco_swarm.swarm.wire import Commit, OutcomeIs

REMEMBERED_ROUNDS = 64


class Verdicts:
    """Every round that this peer has begun is committed here once, or never: who has said "not committed" will not.

    Each method is one step; nothing else of this peer runs within it.
    """

    def __init__(self) -> None:
        self._running: dict[bytes, PieceExchange] = {}
        self._opened = asyncio.Condition()
        self._commits: dict[bytes, Commit] = {}
        self._given_up: set[bytes] = set()
        """Rounds in progress whose leader we have lost: we commit them only if another member has."""
        self._seals: dict[bytes, tuple[Seal, ...]] = {}
        """Of rounds that are over."""

    @contextlib.asynccontextmanager
    async def round_of(self, exchange: PieceExchange) -> AsyncIterator[None]:
        """Within the block the round is in progress, and others find its exchange once that has started."""
        round_id = exchange.roster.round_id
        self._running[round_id] = exchange
        try:
            yield
        finally:
            del self._running[round_id]
            self._given_up.discard(round_id)
            self._seals[round_id] = exchange.average.seals()
            keep_last(self._seals, REMEMBERED_ROUNDS)

    async def say_started(self, exchange: PieceExchange) -> None:
        """Others may send us contributions as soon as the exchange takes them."""
        await exchange.started.wait()
        async with self._opened:
            self._opened.notify_all()

    async def exchange_of(self, round_id: bytes) -> PieceExchange | None:
        """The exchange of a round, once it begins here; None when it has ended by then."""
        async with self._opened:
            await self._opened.wait_for(lambda: round_id in self._running)
        return self._running.get(round_id)

    def take(self, commit: Commit, exchange: PieceExchange) -> Commit | NotAgreed:
        """Decide: from here on whoever asks is told what we did."""
        if not exchange.average.complete.is_set() or exchange.average.digest() != commit.digest:
            return NotAgreed("the others agreed on an average that we do not have; catching up")
        if exchange.roster.round_id in self._given_up:
            return NotAgreed("the peer that led this round went away; catching up")
        self._commits[exchange.roster.round_id] = commit
        keep_last(self._commits, REMEMBERED_ROUNDS)
        return commit

    def seals_of(self, round_id: bytes) -> tuple[Seal, ...]:
        """What the reducers of a round have signed to us; nothing while some of it is missing."""
        exchange = self._running.get(round_id)
        return exchange.average.seals() if exchange is not None else self._seals.get(round_id, ())

    def give_up(self, round_id: bytes) -> None:
        """The leader is lost: we will not commit, unless another member has."""
        self._given_up.add(round_id)

    def take_of_member(self, commit: Commit, exchange: PieceExchange) -> Commit | NotAgreed:
        """Another member has committed the round that we gave up, so we may."""
        self._given_up.discard(exchange.roster.round_id)
        return self.take(commit, exchange)

    def outcome_of(self, round_id: bytes) -> OutcomeIs:
        """Our decision; if there is none, whether there may be one yet."""
        undecided = round_id in self._running and round_id not in self._given_up
        commit = self._commits.get(round_id)
        return OutcomeIs(commit=commit, undecided=undecided and commit is None)
