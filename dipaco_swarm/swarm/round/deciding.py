"""A round that has begun, as its leader runs it: from the roster to Commit or Abort.

What is decided, and when, is in `decision.py`. Here the view for it is built, and what it says is carried out and told.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from collections.abc import Set as AbstractSet

from dipaco_swarm.swarm.fields import Message
from dipaco_swarm.swarm.proofs import MAX_PROOFS
from dipaco_swarm.swarm.round import decision
from dipaco_swarm.swarm.round.decision import decide
from dipaco_swarm.swarm.round.gathering import Gathering
from dipaco_swarm.swarm.round.inquiry import Inquiry
from dipaco_swarm.swarm.round.overdue import USUAL_LINE
from dipaco_swarm.swarm.round.roster import make_roster
from dipaco_swarm.swarm.round.seals import Subject, compare
from dipaco_swarm.swarm.round.seats import Seat, or_a_pulse, tell
from dipaco_swarm.swarm.round.standing import Standing
from dipaco_swarm.swarm.transport import Transport
from dipaco_swarm.swarm.wire import Abort, Alive, Commit, Reassign

log = logging.getLogger(__name__)


class RunningRound:
    """The leader's second half. Made for one round, used once."""

    def __init__(
        self,
        transport: Transport,
        gathering: Gathering,
        seats: Sequence[Seat],
        norm_clip: float,
        standing: Standing,
        inquiry: Inquiry,
        waived: AbstractSet[str],
        is_strange: Callable[[str], bool],
    ) -> None:
        """`seats`: members that agree on the length of the vector. `waived`: whom nobody is to wait for.

        `is_strange`: who has no say in who is late.
        """
        self._whole = gathering.group.whole
        self._transport = transport
        self._standing = standing
        self._inquiry = inquiry
        self._key = gathering.key
        self._clock = transport.clock
        self._timing = transport.timing
        joins = {seat.channel.peer: seat.join for seat in seats}
        waived = frozenset() if self._whole else waived
        self._roster = make_roster(joins, norm_clip, waived)
        seat_of = {seat.channel.peer: seat for seat in seats}
        self._seats = [seat_of[member.peer] for member in self._roster.members]
        self._owners = list(self._roster.owners)
        self._made_in = [0] * len(self._owners)
        """The generation in which each piece was last given an owner."""
        self._changed = gathering.changed
        self._patience = gathering.patience
        self._usual = 2 * next(iter(joins.values())).parameters / USUAL_LINE
        self._alive = frozenset(range(len(self._seats)))
        strangers = frozenset(i for i in self._alive if is_strange(self._name(i)))
        self._strangers = strangers if strangers < self._alive else frozenset()
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
            if banned := [name for i in sorted(self._alive) if not self._standing.allows(name := self._name(i))]:
                proofs = tuple(proof for name in banned if (proof := self._standing.proof_of(name)) is not None)
                await self._tell_all(Abort(reason=f"{_some(banned)} may not take part", proofs=proofs[:MAX_PROOFS]))
                return
            now = self._clock.monotonic()
            decided, self._memory = decide(self._view(now), self._memory, self._timing)
            match decided:
                case decision.Drop(members, why, late, apart):
                    await self._drop(members, why, late=late, apart=apart)
                    continue
                case decision.Abort(reason):
                    await self._tell_all(Abort(reason=reason))
                    return
                case decision.Commit(digest, generation):
                    await self._tell_all(Commit(round_id=self._roster.round_id, generation=generation, digest=digest))
                    return
                case decision.Compare():
                    if await self._ends_by_comparing():
                        return
                    continue
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
            waived=frozenset(i for i, member in enumerate(self._roster.members) if not member.awaited),
            strangers=self._strangers,
            usual=self._usual,
        )

    async def _ends_by_comparing(self) -> bool:
        """The averages differ: look who is to blame, and go on without, if that is enough; whether the round is off."""
        await self._tell_all(Alive())
        awaited = {i for i in self._alive if self._roster.members[i].awaited}
        ready = {i: said.digest for i in awaited if (said := self._seats[i].ready) is not None}
        shown = await self._inquiry.shown({i: self._name(i) for i in awaited}, self._roster.round_id)
        stage, module, version = self._key
        about = Subject.of(self._inquiry.run, stage, module, version, self._roster)
        made = set(zip(self._owners, self._made_in, strict=True))
        found = compare(about, self._roster, made, shown, ready, self._transport.is_signed_by)
        if self._inquiry.convict(found.proofs):
            names = _some(proof.reducer[-8:] for proof in found.proofs)
            await self._tell_all(Abort(reason=f"{names} sent different averages to us", proofs=found.proofs))
            return True
        if found.liars and found.liars < awaited:
            await self._drop(found.liars, "said that it holds another average than it shows", late=True)
            return False
        await self._tell_all(Abort(reason="the peers did not get the same average; nothing was taken"))
        return True

    def _name(self, member: int) -> str:
        return self._seats[member].channel.peer

    async def _drop(
        self, members: frozenset[int], why: str, *, late: bool, apart: frozenset[int] = frozenset()
    ) -> None:
        """Go on without them: tell everybody, and give their pieces to others."""
        self._alive -= members
        names = [self._seats[i].channel.peer for i in sorted(members)]
        log.info("went on without %s, which %s", _some(name[-8:] for name in names), why)
        off = Abort(reason=f"this peer {why}", others_go_on=True)
        await tell([self._seats[i] for i in members if not self._seats[i].gone], off, self._timing)
        if not self._alive:
            return
        entries = self._roster.members
        heirs = [i for i in sorted(self._alive) if entries[i].awaited and entries[i].reduces]
        heirs = heirs or [i for i in sorted(self._alive) if entries[i].awaited] or sorted(self._alive)
        orphans = [piece for piece, owner in enumerate(self._owners) if owner in members]
        moved = {piece: heirs[k % len(heirs)] for k, piece in enumerate(orphans)}
        for piece, owner in moved.items():
            self._owners[piece] = owner
        self._generation += 1
        for piece in moved:
            self._made_in[piece] = self._generation
        await self._tell_all(
            Reassign(
                gone=tuple(names),
                late=tuple(names) if late else (),
                apart=tuple(self._name(i) for i in sorted(apart)),
                generation=self._generation,
                pieces=tuple(moved.items()),
            )
        )

    async def _tell_all(self, message: Message) -> None:
        await tell([self._seats[i] for i in sorted(self._alive)], message, self._timing)


def _some(names: Iterable[str]) -> str:
    """Names for one line of a log, however many there are."""
    listed = list(names)
    more = f" and {len(listed) - 3} more" if len(listed) > 3 else ""
    return ", ".join(listed[:3]) + more
