"""The newest state of a module that others announce: which one to ask for, and what to do when nobody sends it.

Whoever is known may announce a state that it never sends, a new one each time, or sends so slowly that it never is
there; meanwhile the module goes no further. So it counts who has announced what came to nothing, and for how long: what
others announce is asked for before that, though it is not as new.
"""

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum

from dipaco_swarm.algorithm.forgetting import put_last
from dipaco_swarm.algorithm.paths import ModuleId
from dipaco_swarm.algorithm.plan import Claim, better_claim
from dipaco_swarm.algorithm.state import ModuleState
from dipaco_swarm.swarm.encoded_average import MAX_CHAIN
from dipaco_swarm.swarm.fetching import FetchUnderWay, Follow, Older
from dipaco_swarm.swarm.interface import Announcement, PeerName, Swarm

STATE_SECONDS = 600.0
"""A holder that has not sent a state by then is not sending it."""
SOON_SECONDS = 5.0
"""Who could not send a state any more, because its group has gone on, says so by then."""
REST_SECONDS = 10.0
"""Whoever has announced such a one is asked after others for so long. The third time in a row it is not asked for so
long, while others are there; each time after that twice as long."""
OFTEN = 3
DOUBLINGS = 6
"""Of that, at most."""
FORGIVEN_SECONDS = 120.0
"""So long after its rest is over, it begins anew."""
REST = 10.0
"""Whoever has kept us waiting for longer is not asked for so many times as long, while others are there of whom that is
not so: it takes a tenth of a module's time at most."""
MOST_NAMES = 4096
LONGER = 16
"""Times the first pause before a state is asked for again, at most."""


@dataclass(frozen=True)
class InVain:
    """When a state was asked for and nobody sent it, in seconds of the monotonic clock."""

    first: float
    last: float
    times: int = 1


class Trust(IntEnum):
    """Of who announces a state, that it will come."""

    NONE = 0
    LESS = 1
    FULL = 2


@dataclass(frozen=True)
class Rest:
    """Of one who has announced what did not come."""

    until: float
    trust: Trust
    """Until then."""
    times: int
    """In a row; what did come counts against it."""


class InVainBy:
    """Who has announced states that did not come, lately. Times are of the monotonic clock."""

    def __init__(self) -> None:
        self._rests: dict[PeerName, Rest] = {}

    def note(self, peers: Collection[PeerName], seconds: float, now: float) -> None:
        """Nothing came of what these have announced, after so many seconds."""
        for peer in peers:
            before = self._rests.get(peer)
            times = 1 if before is None or now > before.until + FORGIVEN_SECONDS else before.times + 1
            if seconds <= SOON_SECONDS and times < OFTEN:
                rest = Rest(now + REST_SECONDS, Trust.LESS, times)
            else:
                often = REST_SECONDS * 2 ** min(DOUBLINGS, max(0, times - OFTEN))
                rest = Rest(now + max(often, REST * seconds), Trust.NONE, times)
            if before is not None and before.until > rest.until:
                rest = replace(before, times=times)
            put_last(self._rests, peer, rest, MOST_NAMES)

    def note_sent(self, peers: Collection[PeerName]) -> None:
        """What these have announced has come."""
        for peer in peers:
            if (before := self._rests.get(peer)) is not None:
                self._rests[peer] = replace(before, times=max(0, before.times - 1))

    def trust(self, peers: Collection[PeerName], now: float) -> Trust:
        """The most of all who announce the same."""
        return max((self._trust_in(peer, now) for peer in peers), default=Trust.FULL)

    def _trust_in(self, peer: PeerName, now: float) -> Trust:
        rest = self._rests.get(peer)
        return Trust.FULL if rest is None or now >= rest.until else rest.trust


class NewestStates:
    """Fetches states of modules, and remembers which ones were asked for in vain."""

    def __init__(
        self,
        swarm: Swarm,
        *,
        follow: Callable[[ModuleId], Follow] | None = None,
        again_after: float = 0.0,
        give_up_after: float = math.inf,
    ) -> None:
        """`follow`: the outer steps of each module; None: states are fetched whole, never made of averages.

        `again_after`: seconds in which a state that nobody sent is not asked for again, twice as many each time that it
        is not. `give_up_after`: seconds after
        which a state that nobody sends is not believed to exist; 0: it is asked for once.
        """
        self._swarm = swarm
        self._follow = follow
        self._again_after = again_after
        self._give_up_after = give_up_after
        self._unsent: dict[ModuleId, dict[Claim, InVain]] = {}
        """States that nobody sent, by module."""
        self._by = InVainBy()
        self._said: dict[ModuleId, dict[Claim, set[PeerName]]] = {}
        """What was announced when we looked last, and by whom."""
        self._begun: dict[tuple[ModuleId, Claim], tuple[float, Collection[PeerName]]] = {}
        """When a state was asked for, and who had announced it."""

    def better(
        self, stage: int, module: ModuleId, ours: Claim, others: Sequence[Announcement], *, timeout: float = 0.0
    ) -> Claim | None:
        """The state that we should have instead of ours, and can ask for now; None when there is none.

        `others`: without ourselves. `timeout`: seconds to wait for others to confirm what we hear.
        """
        now = self._swarm.clock.monotonic()
        said = self._said[module] = _by_claim(others)
        sent = [claim for claim in said if self._may_be_sent(module, claim, now)]
        if better_claim(ours, sent) is None:
            return None
        believed = self._swarm.believed(stage, module, ours, sent, timeout=timeout)
        trust = {claim: self._by.trust(peers, now) for claim, peers in said.items()}
        most = max((trust[claim] for claim in believed), default=Trust.NONE)
        if most is Trust.NONE and Trust.FULL in trust.values():
            return None  # where nobody is trusted, it may have been our line
        return better_claim(ours, [claim for claim in believed if trust[claim] is most])

    def fetch(
        self,
        stage: int,
        module: ModuleId,
        claim: Claim,
        *,
        parameters: int | None = None,
        ours: ModuleState | None = None,
    ) -> ModuleState | None:
        """That state; None when nobody sent it. Arguments as those of `begin`."""
        return self.take(module, claim, self.begin(stage, module, claim, parameters=parameters, ours=ours))

    def begin(
        self,
        stage: int,
        module: ModuleId,
        claim: Claim,
        *,
        parameters: int | None = None,
        ours: ModuleState | None = None,
    ) -> FetchUnderWay:
        """Begin to fetch that state, and return at once; `take` comes afterwards.

        `parameters`: how many the module has, where that is known. `ours`: the state that we have; where it is but a
        few versions behind, the averages since are less than the state.
        """
        older = None
        if self._follow is not None and ours is not None and claim.version - ours.version <= MAX_CHAIN:
            older = Older(ours, self._follow(module))
        said = self._said.get(module, {}).get(claim, ())
        self._begun[module, claim] = self._swarm.clock.monotonic(), said
        return self._swarm.begin_fetch(
            stage, module, claim.digest, timeout=STATE_SECONDS, parameters=parameters, older=older
        )

    def take(self, module: ModuleId, claim: Claim, under_way: FetchUnderWay) -> ModuleState | None:
        """What came of it, once it is over; None when nobody sent it."""
        state = under_way.state()
        unsent, now = self._unsent.setdefault(module, {}), self._swarm.clock.monotonic()
        begun, announced_by = self._begun.pop((module, claim), (now, ()))
        if state is None:
            self._by.note(announced_by, now - begun, now)
            before = unsent.get(claim, InVain(now, now, times=0))
            unsent[claim] = InVain(before.first, now, before.times + 1)
        else:
            self._by.note_sent(announced_by)
            self._unsent[module] = {other: times for other, times in unsent.items() if other.beats(claim)}
        return state

    def _may_be_sent(self, module: ModuleId, claim: Claim, now: float) -> bool:
        asked = self._unsent.get(module, {}).get(claim)
        if asked is None:
            return True
        pause = self._again_after * min(2 ** (asked.times - 1), LONGER)
        return now - asked.last >= pause and now - asked.first < self._give_up_after


def _by_claim(members: Sequence[Announcement]) -> dict[Claim, set[PeerName]]:
    said: dict[Claim, set[PeerName]] = {}
    for member in members:
        said.setdefault(Claim.of(member), set()).add(member.peer)
    return said
