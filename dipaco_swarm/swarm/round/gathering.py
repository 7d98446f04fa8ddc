"""A round that a peer leads, from the first Join to the end: its seats, and what their members say."""

import asyncio
import statistics
from collections import Counter
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from functools import partial

from dipaco_swarm.algorithm.plan import Claim
from dipaco_swarm.swarm.addresses import site_of
from dipaco_swarm.swarm.interface import ModuleGroup
from dipaco_swarm.swarm.proofs import Proof
from dipaco_swarm.swarm.round.candidates import most_joined
from dipaco_swarm.swarm.round.channels import Channel, HeartbeatReader
from dipaco_swarm.swarm.round.inquiry import Inquiry
from dipaco_swarm.swarm.round.questions import Questions
from dipaco_swarm.swarm.round.roster import at_most_half
from dipaco_swarm.swarm.round.seats import Seat, tell
from dipaco_swarm.swarm.round.standing import Key
from dipaco_swarm.swarm.tasks import Tasks
from dipaco_swarm.swarm.transport import Transport
from dipaco_swarm.swarm.wire import Alive, Ready, Refuse

MAX_PATIENCE_SECONDS = 6 * 3600.0
LEAST_PATIENCE = 6
"""Pulses: one that comes first, and has none, would have rounds begin without all others."""
NEWCOMERS_OF_A_SITE = 8
"""In one round, from one place (`site_of`): a household or a class joins, fifty names of one machine wait their turn.
Who has contributed is no newcomer."""


@dataclass(eq=False)
class Gathering:
    """Who has joined, and who was asked."""

    key: Key
    group: ModuleGroup
    base: Claim
    """The state that everybody in it starts from."""
    transport: Transport
    questions: Questions
    inquiry: Inquiry
    since: float
    """When the first one joined; the first that is no stranger, if any is: a crowd would have used up all patience."""
    patience: float = 0.0
    """Seconds that the median member so far is willing to wait for the missing; of those that are no strangers, if any
    are here: a crowd would have all wait for hours."""
    seats: dict[str, Seat] = field(default_factory=dict)
    unanswered: Counter[str] = field(default_factory=Counter)
    """Questions to the missing that came to nothing."""
    elsewhere: set[str] = field(default_factory=set)
    """Who has said that it does not come."""
    listeners: Tasks = field(default_factory=Tasks)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    """Somebody joined, left, or said something."""
    closed: bool = False
    over: asyncio.Event = field(default_factory=asyncio.Event)
    _most_joined: str | None = field(default=None, init=False)

    def is_crowded(self, channel: Channel, is_strange: Callable[[str], bool]) -> bool:
        """Whether as many strangers are here as are let in from where this one comes from."""
        site = site_of(channel.address)
        if not site or self.group.whole or not is_strange(channel.peer):
            return False
        there = [peer for peer, seat in self.seats.items() if site_of(seat.channel.address) == site]
        return len([peer for peer in there if peer != channel.peer and is_strange(peer)]) >= NEWCOMERS_OF_A_SITE

    def take(self, seat: Seat, is_strange: Callable[[str], bool] = lambda peer: False) -> None:
        self.leave(seat.channel.peer)
        before = self._friends(is_strange)
        self.seats[seat.channel.peer] = seat
        friends = self._friends(is_strange)
        if friends and not before:
            self.since = self.transport.clock.monotonic()
        patience = statistics.median(seat.join.patience for seat in friends or self.seats.values())
        self.patience = min(max(patience, LEAST_PATIENCE * self.transport.timing.pulse), MAX_PATIENCE_SECONDS)
        self.listeners.start(self._listen(seat))
        self.changed.set()

    def _friends(self, is_strange: Callable[[str], bool]) -> list[Seat]:
        """Who is here and no stranger."""
        return [seat for peer, seat in self.seats.items() if self.group.whole or not is_strange(peer)]

    def rebase(self, base: Claim, refusal: Refuse) -> None:
        """Somebody has come with another state, which the round goes on from; who was here is told `refusal`."""
        self.base = base
        for peer in list(self.seats):
            self.listeners.start(tell([self.seats.pop(peer)], refusal, self.transport.timing))
        self.changed.set()

    def leave(self, peer: str) -> None:
        old = self.seats.pop(peer, None)
        if old is not None:
            old.channel.close()
            self.changed.set()

    def clear_away(self) -> None:
        """Seats of those who are gone."""
        for peer in [peer for peer, seat in self.seats.items() if seat.gone]:
            self.leave(peer)

    def more_elsewhere(self, follows: Mapping[str, str], *, at_once: bool) -> str | None:
        """Another leader, whom more have joined than are here: now, and when we asked before.

        Once is not enough: whoever comes after us may be about to send them here. It is (`at_once`) for who has just
        come to the module: they may take it for a stranger, and do not wait for it. Who has joined us is on its way.
        """
        elsewhere = {peer: leader for peer, leader in follows.items() if leader != self.transport.peer}
        here = len(self.seats) + len(follows) - len(elsewhere)
        most = None if self.group.whole else most_joined(elsewhere, here)
        before, self._most_joined = self._most_joined, most
        return most if most == before or at_once else None

    async def pulse(self) -> None:
        """Who waits is told that we are alive, whatever else we wait for; until cancelled."""
        while True:
            await tell(list(self.seats.values()), Alive(), self.transport.timing)
            await asyncio.sleep(self.transport.timing.pulse)

    async def seats_of_one_size(self, is_strange: Callable[[str], bool]) -> list[Seat]:
        """The members that agree on the length of the vector; the others are sent away.

        We know it ourselves, if we are one of them; else most do, of those that are no strangers if anybody is none.
        """
        seats = [seat for seat in self.seats.values() if not seat.gone]
        if not seats:
            return []
        friends = [seat for seat in seats if not is_strange(seat.channel.peer)]
        lengths = Counter(seat.join.parameters for seat in friends or seats)
        ours = self.seats.get(self.transport.peer)
        most = max(lengths, key=lambda length: (lengths[length], length))
        parameters = most if ours is None else ours.join.parameters
        others = [seat for seat in seats if seat.join.parameters != parameters]
        reason = "the group's module has another size than ours; is it the same run?"
        await tell(others, Refuse(reason=reason, version=self.key[2]), self.transport.timing)
        return [seat for seat in seats if seat.join.parameters == parameters]

    async def without_a_crowd(
        self, seats: list[Seat], waived: AbstractSet[str], is_strange: Callable[[str], bool]
    ) -> list[Seat]:
        """These without strangers whom nobody is to wait for, where they are more than half: then all would wait."""
        crowd = [seat for seat in seats if seat.channel.peer in waived and is_strange(seat.channel.peer)]
        others = [seat for seat in seats if seat not in crowd]
        if not others or at_most_half(waived, {seat.channel.peer for seat in seats}):
            return seats
        reason = "strangers have kept rounds waiting lately; trying again later"
        await tell(crowd, Refuse(reason=reason, version=self.key[2]), self.transport.timing)
        return others

    def hide(self, reducers: AbstractSet[str]) -> None:
        """These make no averages in this round."""
        for seat in self.seats.values():
            if seat.channel.peer in reducers:
                seat.join = seat.join.model_copy(update={"reduces": False})

    async def _listen(self, seat: Seat) -> None:
        """Note what a member says until it is gone."""
        ask = partial(self.questions.is_there, seat.channel.peer, self.key, self.base) if self.group.whole else None
        patience = min(seat.join.patience, MAX_PATIENCE_SECONDS)
        ears = HeartbeatReader(seat.channel, self.transport.clock, self.transport.timing, ask, patience)
        try:
            with self.transport.border.guard(seat.channel.peer, "goes on without a member"):
                while True:
                    message = await ears.hear()
                    if isinstance(message, Alive):
                        seat.report = message
                    elif isinstance(message, Ready):
                        seat.ready = message
                    elif isinstance(message, Proof):
                        self.inquiry.convict([message])
                    self.changed.set()
        finally:
            seat.gone = True
            self.changed.set()


def ahead_of(base: Claim, better: Claim, holder: str) -> Refuse:
    """What a peer is told that would go on from a state although somebody has a better one."""
    if better.version > base.version:
        reason = f"the group is at version {better.version} already; catching up"
    else:
        reason = f"others have trained more on another version {better.version}; taking theirs"
    return Refuse(reason=reason, version=better.version, digest=better.digest, work=better.work, holder=holder)


def unconfirmed(version: int) -> Refuse:
    """What a peer is told whose state nobody is known to have had, while others go on from one that somebody had."""
    return Refuse(reason="nobody has confirmed the state that this peer goes on from", version=version)
