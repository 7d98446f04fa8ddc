"""A round that has begun, as its leader runs it: from the roster to Commit or Abort.

What is decided, and when, is in `decision.py`. Here the view for it is built, and what it says is carried out and told.
"""

import asyncio
import logging
import statistics
from collections.abc import Iterable, Sequence

from dipaco_swarm.swarm.fields import Message
from dipaco_swarm.swarm.round import decision
from dipaco_swarm.swarm.round.decision import decide
from dipaco_swarm.swarm.round.roster import make_roster
from dipaco_swarm.swarm.round.seats import Seat, or_a_pulse, tell
from dipaco_swarm.swarm.transport import Transport
from dipaco_swarm.swarm.wire import Abort, Alive, Commit, Reassign

log = logging.getLogger(__name__)


class RunningRound:
    """The leader's second half. Made for one round, used once."""

    def __init__(
        self, transport: Transport, seats: Sequence[Seat], changed: asyncio.Event, norm_clip: float, *, whole: bool
    ) -> None:
        """`seats`: members that agree on the length of the vector. `changed`: set whenever one has said something.

        `whole`: the round waits for everybody.
        """
        self._whole = whole
        self._clock = transport.clock
        self._timing = transport.timing
        joins = {seat.channel.peer: seat.join for seat in seats}
        self._roster = make_roster(joins, norm_clip, round_id=transport.random.randbytes(16))
        seat_of = {seat.channel.peer: seat for seat in seats}
        self._seats = [seat_of[member.peer] for member in self._roster.members]
        self._owners = list(self._roster.owners)
        self._changed = changed
        self._patience = statistics.median(join.patience for join in joins.values())
        self._alive = frozenset(range(len(self._seats)))
        self._generation = 0
        self._began = self._clock.monotonic()
        self._memory = decision.Memory(moved_since=self._began)

    async def reach_decision(self) -> None:
        """Send the roster, watch the members, decide; whenever one says something, and at least once a pulse."""
        for seat in self._seats:
            seat.report = None
        await self._tell_all(self._roster)
        pulsed = self._clock.monotonic()
        while True:
            self._changed.clear()
            now = self._clock.monotonic()
            decided, self._memory = decide(self._view(now), self._memory, self._timing)
            match decided:
                case decision.Drop(members, why):
                    await self._drop(members, why)
                    continue
                case decision.Abort(reason):
                    await self._tell_all(Abort(reason=reason))
                    return
                case decision.Commit(digest, generation):
                    await self._tell_all(Commit(round_id=self._roster.round_id, generation=generation, digest=digest))
                    return
                case decision.Wait():
                    pass
            if now - pulsed >= self._timing.pulse:
                pulsed = now
                await self._tell_all(Alive())
            if await self._slept_while_waiting() and not self._whole:
                # this machine was asleep, and the others have long gone on without us
                await self._tell_all(Abort(reason="the peer that led this round was asleep"))
                return

    async def _slept_while_waiting(self) -> bool:
        """Wait for a change, or a pulse. Whether that took far longer than a pulse."""
        waited_from = self._clock.monotonic()
        await or_a_pulse(self._changed, self._timing)
        return self._clock.monotonic() - waited_from > self._timing.silence

    def _view(self, now: float) -> decision.RoundView:
        return decision.RoundView(
            members=tuple(
                decision.MemberView(seat.channel.peer, seat.gone, seat.report, seat.ready) for seat in self._seats
            ),
            alive=self._alive,
            generation=self._generation,
            now=now,
            began=self._began,
            patience=self._patience,
            whole=self._whole,
        )

    async def _drop(self, members: frozenset[int], why: str) -> None:
        """Go on without them: tell everybody, and give their pieces to others."""
        self._alive -= members
        names = [self._seats[i].channel.peer for i in sorted(members)]
        log.info("went on without %s, which %s", _some(name[-8:] for name in names), why)
        off = Abort(reason=f"this peer {why}", others_go_on=True)
        await tell([self._seats[i] for i in members if not self._seats[i].gone], off, self._timing)
        if not self._alive:
            return
        heirs = [i for i in sorted(self._alive) if self._roster.members[i].reduces] or sorted(self._alive)
        orphans = [piece for piece, owner in enumerate(self._owners) if owner in members]
        moved = {piece: heirs[k % len(heirs)] for k, piece in enumerate(orphans)}
        for piece, owner in moved.items():
            self._owners[piece] = owner
        self._generation += 1
        await self._tell_all(Reassign(gone=tuple(names), generation=self._generation, pieces=tuple(moved.items())))

    async def _tell_all(self, message: Message) -> None:
        await tell([self._seats[i] for i in sorted(self._alive)], message, self._timing)


def _some(names: Iterable[str]) -> str:
    """Names for one line of a log, however many there are."""
    listed = list(names)
    more = f" and {len(listed) - 3} more" if len(listed) > 3 else ""
    return ", ".join(listed[:3]) + more
