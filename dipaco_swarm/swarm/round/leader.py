"""The leader's side of a round until it begins: who takes part. What follows is `deciding.py`.

A leader needs no contribution of its own, only a live loop. It keeps a seat for every member, with what the member said
last; every decision is made from the seats, whenever one changes and at least once a pulse.
"""

import asyncio
import logging
import statistics
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from dipaco_swarm.algorithm.paths import ModuleId
from dipaco_swarm.algorithm.plan import Claim
from dipaco_swarm.errors import RemoteDataError
from dipaco_swarm.swarm.interface import ModuleGroup
from dipaco_swarm.swarm.round.channels import Channel, HeartbeatReader
from dipaco_swarm.swarm.round.deciding import RunningRound
from dipaco_swarm.swarm.round.reduction import leader_order
from dipaco_swarm.swarm.round.seats import Seat, or_a_pulse, tell
from dipaco_swarm.swarm.tasks import Tasks
from dipaco_swarm.swarm.transport import Transport
from dipaco_swarm.swarm.wire import MAX_MEMBERS, Alive, Here, Join, Ready, Refuse

log = logging.getLogger(__name__)

MAX_PATIENCE_SECONDS = 6 * 3600.0
MAX_GATHERINGS = 1024
"""Rounds that one peer leads at once, however many strangers open some."""
CLAIM_BELIEVED = 3
"""So often the word of one peer that there is a better state stops the round of a state."""

Key = tuple[int, ModuleId, int]
"""stage, module, version"""


@dataclass(frozen=True)
class Member:
    """Where a peer that trains a module stands with it."""

    path: int
    claim: Claim


@dataclass(frozen=True)
class Standing:
    """What the rounds of a peer must know about it, asked anew each time."""

    ours: Callable[[int, ModuleId], Member | None]
    """Where we stand with a module that we train; None when we do not train it."""
    members_of: Callable[[int, ModuleId], Sequence[str]]
    """Live members that train a module, by announcement."""
    leaders_of: Callable[[int, ModuleId], Sequence[str]]
    """Live members that can be dialled."""
    group_of: Callable[[int, ModuleId], ModuleGroup | None]
    called: Callable[[int, ModuleId, int], None]
    """Somebody gathers the round of this version."""
    lately: Callable[[int, ModuleId], Sequence[str]]
    """Members that were heard before and are not any more: gone, or cut off from us."""
    heard: Callable[[str, int, ModuleId, Member], None]
    """A peer has said itself, over a stream, where it stands."""
    look: Callable[[int, ModuleId], Coroutine[Any, Any, None]]
    """Read now who trains a module."""


@dataclass(eq=False)
class Gathering:
    """A round that this peer leads, from the first Join to the end."""

    key: Key
    group: ModuleGroup
    base: Claim
    """The state that everybody in it starts from."""
    transport: Transport
    opened: float
    is_there: Callable[[str, Key, Claim], Coroutine[Any, Any, bool]]
    """Ask a member that was silent; only where the round waits for everybody."""
    patience: float = 0.0
    """Seconds that the median member so far is willing to wait for the missing."""
    seats: dict[str, Seat] = field(default_factory=dict)
    listeners: Tasks = field(default_factory=Tasks)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    """Somebody joined, left, or said something."""
    closed: bool = False
    over: asyncio.Event = field(default_factory=asyncio.Event)

    def take(self, seat: Seat) -> None:
        self.leave(seat.channel.peer)
        self.seats[seat.channel.peer] = seat
        self.patience = statistics.median(seat.join.patience for seat in self.seats.values())
        self.listeners.start(self._listen(seat))
        self.changed.set()

    def rebase(self, base: Claim, holder: str) -> None:
        """Somebody has come with a better state; whoever is here fetches that first."""
        refusal = ahead_of(self.base, base, holder)
        self.base = base
        for peer in list(self.seats):
            self.listeners.start(tell([self.seats.pop(peer)], refusal, self.transport.timing))
        self.changed.set()

    def leave(self, peer: str) -> None:
        old = self.seats.pop(peer, None)
        if old is not None:
            old.channel.close()
            self.changed.set()

    async def _listen(self, seat: Seat) -> None:
        """Note what a member says until it is gone."""
        ask = partial(self.is_there, seat.channel.peer, self.key, self.base) if self.group.whole else None
        patience = min(seat.join.patience, MAX_PATIENCE_SECONDS)
        ears = HeartbeatReader(seat.channel, self.transport.clock, self.transport.timing, ask, patience)
        try:
            while True:
                message = await ears.hear()
                if isinstance(message, Alive):
                    seat.report = message
                elif isinstance(message, Ready):
                    seat.ready = message
                self.changed.set()
        except (EOFError, TimeoutError, ConnectionError) as error:
            log.debug("member %s is gone: %s", seat.channel.peer[-8:], error)
        except RemoteDataError as error:
            log.warning("dropped a member that broke the protocol: %s", error)
        seat.gone = True
        self.changed.set()


class Leader:
    """The rounds that this peer leads."""

    def __init__(
        self,
        transport: Transport,
        norm_clip: float,
        standing: Standing,
        where: Callable[[str, Key, Claim], Coroutine[Any, Any, Here | None]],
        is_gone: Callable[[str], bool],
    ) -> None:
        """`is_gone`: whether a peer that has not answered `where` is gone, for a round that waits for everybody."""
        self._transport = transport
        self._clock = transport.clock
        self._timing = transport.timing
        self._peer = transport.peer
        self._norm_clip = norm_clip
        self._standing = standing
        self._where = where
        self._is_gone = is_gone
        self._gatherings: dict[Key, Gathering] = {}
        self._tasks = Tasks()
        self._stopped_by: dict[tuple[int, ModuleId], tuple[str, Counter[str]]] = {}
        """Digest of a state, and how often each peer has kept a round that starts from it from being made."""

    async def stop(self) -> None:
        await self._tasks.end()

    def gathers(self, key: Key) -> bool:
        return key in self._gatherings and not self._gatherings[key].closed

    def admit(self, join: Join, channel: Channel) -> Gathering | Refuse:
        """Let a member into the gathering of its round, opening it if it is the first."""
        key = stage, module, version = join.stage, ModuleId.parse(join.module), join.version
        theirs = Claim.of(join)
        self._standing.heard(channel.peer, stage, module, Member(join.path, theirs))
        group = self._standing.group_of(stage, module)
        if group is None:
            return Refuse(reason="we do not take part in this module", version=0)
        ours = self._standing.ours(stage, module)
        if ours is not None and ours.claim.beats(theirs):
            return ahead_of(theirs, ours.claim, self._peer)
        if join.path not in group.path_weights:
            return Refuse(reason=f"path {join.path} does not use {module}", version=version)
        gathering = self._gatherings.get(key)
        if gathering is None:
            if len(self._gatherings) >= MAX_GATHERINGS:
                return Refuse(reason="too many peers at once; trying the next round", version=version)
            gathering = self._gatherings[key] = Gathering(
                key, group, theirs, self._transport, self._clock.monotonic(), self.is_there
            )
            self._tasks.start(self._lead(gathering))
            if ours is not None and ours.claim == theirs:
                self._standing.called(stage, module, version)
        if gathering.closed:
            return Refuse(reason="came after the round had begun; the next one counts our progress", version=version)
        if len(gathering.seats) >= MAX_MEMBERS:
            return Refuse(reason="too many peers at once; trying the next round", version=version)
        if gathering.base.beats(theirs):
            return ahead_of(theirs, gathering.base, next(iter(gathering.seats), self._peer))
        if theirs.beats(gathering.base):
            gathering.rebase(theirs, channel.peer)
        # nobody waits in two rounds of one module
        for other in self._gatherings.values():
            if other is not gathering and other.key[:2] == key[:2] and not other.closed:
                other.leave(channel.peer)
        gathering.take(Seat(join, channel))
        return gathering

    async def _lead(self, gathering: Gathering) -> None:
        try:
            pulse = gathering.listeners.start(self._pulse(gathering))
            refusal = await self._until_everybody_is_in(gathering)
            gathering.closed = True
            pulse.cancel()
            if refusal is not None:
                await tell(list(gathering.seats.values()), refusal, self._timing)
                return
            seats = await self._of_one_size(gathering)
            if seats:
                running = RunningRound(
                    self._transport, seats, gathering.changed, self._norm_clip, whole=gathering.group.whole
                )
                await running.reach_decision()
        finally:
            gathering.closed = True
            self._gatherings.pop(gathering.key, None)
            await gathering.listeners.end()
            for seat in gathering.seats.values():
                seat.channel.close()
            gathering.over.set()

    async def is_there(self, peer: str, key: Key, base: Claim) -> bool:
        """Ask a peer that is silent where it stands; False when it is gone, and not only slow."""
        return await self._where(peer, key, base) is not None or not self._is_gone(peer)

    async def _pulse(self, gathering: Gathering) -> None:
        """Who waits is told that we are alive, whatever else we wait for."""
        while True:
            await tell(list(gathering.seats.values()), Alive(), self._timing)
            await asyncio.sleep(self._timing.pulse)

    async def _until_everybody_is_in(self, gathering: Gathering) -> Refuse | None:
        """Wait for every live member that stands at this version; longest for what the members' patience allows.

        Who is missing is asked directly: an announcement may be old, an answer is not. The answers may say that there
        is nothing to lead: somebody is at a state with more work behind it, or a leader who comes first gathers the
        same round (members that had not heard of each other yet chose differently).
        """
        version = gathering.key[2]
        failures: Counter[str] = Counter()
        elsewhere: set[str] = set()
        asked, looked = float("-inf"), False
        while True:
            gathering.changed.clear()
            for peer in [peer for peer, seat in gathering.seats.items() if seat.gone]:
                gathering.leave(peer)
            missing = self._missing(gathering, failures, elsewhere)
            if not looked and not missing and len(gathering.seats) == 1:
                looked = True  # what was read last may be old, and who goes on alone makes a fork if it is
                await self._standing.look(*gathering.key[:2])
                continue
            now = self._clock.monotonic()
            patience = min(gathering.patience, MAX_PATIENCE_SECONDS)
            if not gathering.seats or not missing or now - gathering.opened > patience:
                return None
            if now - asked >= self._timing.ask_again:
                asked = now
                left = max(self._timing.answer, gathering.opened + patience - now)
                base = gathering.base
                answers = await self._where_they_are(missing, gathering, left)
                if gathering.base != base:
                    continue
                leaders: set[str] = set()
                for peer, answer in zip(missing, answers, strict=True):
                    if answer is None:
                        failures[peer] += 1
                        if gathering.group.whole and self._is_gone(peer):
                            elsewhere.add(peer)
                    elif answer.version is None or answer.digest is None:
                        elsewhere.add(peer)
                    elif (claim := Claim(answer.version, answer.digest, answer.work)).beats(base):
                        if not self._is_doubted(gathering.key, base, peer):
                            return ahead_of(base, claim, peer)
                        elsewhere.add(peer)
                    elif answer.follows is not None:
                        leaders.add(answer.follows)
                first = await self._who_comes_first(gathering, leaders)
                if first is not None:
                    reason = f"{first[-8:]} leads this round"
                    return Refuse(reason=reason, version=version, leader=first)
                continue
            await or_a_pulse(gathering.changed, self._timing)

    def _missing(self, gathering: Gathering, failures: Counter[str], elsewhere: set[str]) -> list[str]:
        """Live members that have not joined; and, where hardly anybody is live, those that were there lately.

        Who hears nobody may be the one that is parted from the others: it asks before it goes on alone. A round that
        waits for everybody misses all who were there lately, however silent.
        """
        stage, module, _ = gathering.key
        seated = set(gathering.seats)
        live, lately = set(self._standing.members_of(stage, module)), set(self._standing.lately(stage, module))
        if gathering.group.whole:
            lately = {peer for peer in lately if not self._is_gone(peer)}
        else:
            live = {peer for peer in live if failures[peer] < 2}
            lately = {peer for peer in lately if failures[peer] < 1}
            if 2 * len(seated) > len(seated | lately):
                lately = set()
        return sorted((live | lately) - seated - elsewhere)

    def _is_doubted(self, key: Key, base: Claim, peer: str) -> bool:
        """Whether a peer has kept us from going on from this state before, by a better one that nobody could fetch.

        Without certificates a claim is only a word: it is believed for some rounds' tries, not for ever.
        """
        about, stopped = self._stopped_by.get(key[:2], (base.digest, Counter[str]()))
        if about != base.digest:
            stopped = Counter()
        self._stopped_by[key[:2]] = base.digest, stopped
        stopped[peer] += 1
        return stopped[peer] > CLAIM_BELIEVED

    async def _where_they_are(self, peers: Sequence[str], gathering: Gathering, seconds: float) -> list[Here | None]:
        """The answers of all, asked at once; None for those who have not answered by then."""
        asking = [asyncio.create_task(self._where(peer, gathering.key, gathering.base)) for peer in peers]
        try:
            await asyncio.wait(asking, timeout=seconds)
            return [question.result() if question.done() else None for question in asking]
        finally:
            for question in asking:
                question.cancel()
            await asyncio.gather(*asking, return_exceptions=True)

    async def _who_comes_first(self, gathering: Gathering, leaders: set[str]) -> str | None:
        """The leader among these that comes before us and says itself that it gathers the round."""
        first = leader_order(*gathering.key, sorted(leaders | {self._peer}))[0]
        if first == self._peer:
            return None
        answer = await self._where(first, gathering.key, gathering.base)
        return first if answer is not None and answer.follows == first else None

    async def _of_one_size(self, gathering: Gathering) -> list[Seat]:
        """The members that agree on the length of the vector; the others are sent away."""
        seats = [seat for seat in gathering.seats.values() if not seat.gone]
        if not seats:
            return []
        lengths = Counter(seat.join.parameters for seat in seats)
        parameters = max(lengths, key=lambda length: (lengths[length], length))
        others = [seat for seat in seats if seat.join.parameters != parameters]
        reason = "the group's module has another size than ours; is it the same run?"
        await tell(others, Refuse(reason=reason, version=gathering.key[2]), self._timing)
        return [seat for seat in seats if seat.join.parameters == parameters]


def ahead_of(base: Claim, better: Claim, holder: str) -> Refuse:
    """What a peer is told that would go on from a state although somebody has a better one."""
    if better.version > base.version:
        reason = f"the group is at version {better.version} already; catching up"
    else:
        reason = f"others have trained more on another version {better.version}; taking theirs"
    return Refuse(reason=reason, version=better.version, digest=better.digest, work=better.work, holder=holder)
