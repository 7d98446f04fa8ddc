"""The rounds that this peer is in, and how they ended: what it tells a member that asks, it keeps to."""

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator

from dipaco_swarm.swarm.interface import NotAgreed
from dipaco_swarm.swarm.round.exchange import PieceExchange
from dipaco_swarm.swarm.wire import Commit

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
        """Rounds in progress that we promised somebody not to commit any more."""
        self._given_up_early: deque[bytes] = deque(maxlen=REMEMBERED_ROUNDS)
        """The same of rounds that we had not heard of when we were asked."""

    @contextlib.asynccontextmanager
    async def round_of(self, exchange: PieceExchange) -> AsyncIterator[None]:
        """Within the block the round is in progress, and others find its exchange once that has started."""
        round_id = exchange.roster.round_id
        if round_id in self._given_up_early:
            self._given_up.add(round_id)
        self._running[round_id] = exchange
        try:
            yield
        finally:
            del self._running[round_id]
            self._given_up.discard(round_id)

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
            return NotAgreed("the others finished without us; catching up")
        self._commits[exchange.roster.round_id] = commit
        while len(self._commits) > REMEMBERED_ROUNDS:
            self._commits.pop(next(iter(self._commits)))
        return commit

    def give_up(self, round_id: bytes) -> None:
        """The leader is lost: we will not commit, unless another member has."""
        self._given_up.add(round_id)

    def take_of_member(self, commit: Commit, exchange: PieceExchange) -> Commit | NotAgreed:
        """Another member has committed the round that we gave up, so we may."""
        self._given_up.discard(exchange.roster.round_id)
        return self.take(commit, exchange)

    def outcome_of(self, round_id: bytes, asking: str) -> Commit | None:
        """Our decision, if there is one; if not, and a member asks, there will be none."""
        commit = self._commits.get(round_id)
        exchange = self._running.get(round_id)
        if commit is not None:
            return commit
        if exchange is None:
            self._given_up_early.append(round_id)
        elif any(member.peer == asking for member in exchange.roster.members):
            self._given_up.add(round_id)
        return None
