"""The leader's side of a round until it begins: who takes part. What follows is `deciding.py`.

A leader needs no contribution of its own, only a live loop. It keeps a seat for every member, with what the member said
last; every decision is made from the seats, whenever one changes and at least once a pulse.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping
from collections.abc import Set as AbstractSet
from functools import partial
from typing import Any, TypeVar

from dipaco_swarm.algorithm.paths import ModuleId
from dipaco_swarm.algorithm.plan import Claim
from dipaco_swarm.swarm.fields import MAX_MEMBERS
from dipaco_swarm.swarm.round import closing
from dipaco_swarm.swarm.round.calling import where_they_are
from dipaco_swarm.swarm.round.candidates import STRANGERS, Demotions, outnumbered, with_strangers
from dipaco_swarm.swarm.round.channels import Channel
from dipaco_swarm.swarm.round.closing import GatheringView, close
from dipaco_swarm.swarm.round.deciding import RunningRound
from dipaco_swarm.swarm.round.failure_detector import FailureDetector
from dipaco_swarm.swarm.round.gathering import Gathering, ahead_of, unconfirmed
from dipaco_swarm.swarm.round.inquiry import Inquiry
from dipaco_swarm.swarm.round.meeting import where_all_meet
from dipaco_swarm.swarm.round.questions import Questions
from dipaco_swarm.swarm.round.reduction import leader_order
from dipaco_swarm.swarm.round.roster import at_most_half
from dipaco_swarm.swarm.round.seats import Seat, or_a_pulse, tell
from dipaco_swarm.swarm.round.standing import Key, Member, Standing
from dipaco_swarm.swarm.tasks import Tasks
from dipaco_swarm.swarm.transport import Transport
from dipaco_swarm.swarm.wire import Here, Join, Refuse

Answer = TypeVar("Answer")

MAX_GATHERINGS = 1024
"""Rounds that one peer leads at once."""
LAST_WORD = 2
"""So many questions before their patience is over, members are sent even to a leader that is demoted here, if not more
have come here than to it: two rounds of one version would be worse than one that is lost."""
CLAIM_BELIEVED = 3
"""So often the word of one peer that there is a better state stops the round of a state."""


class Doubts:
    """Who has kept us from going on from a state before, by a better one that nobody could fetch.

    Without certificates a claim is only a word: it is believed for some rounds' tries, not for ever.
    """

    def __init__(self) -> None:
        self._stops: dict[tuple[int, ModuleId], tuple[str, Counter[str]]] = {}
        """Stage and module -> digest of a state, and how often each peer has stopped a round that starts from it."""

    def note(self, key: Key, base: Claim, peer: str) -> None:
        """This peer says that there is a better state than `base`."""
        digest, stops = self._stops.get(key[:2], (base.digest, Counter[str]()))
        if digest != base.digest:
            stops = Counter()
        stops[peer] += 1
        self._stops[key[:2]] = base.digest, stops

    def believes(self, key: Key, base: Claim, peer: str) -> bool:
        """Whether its word still counts."""
        digest, stops = self._stops.get(key[:2], (base.digest, Counter[str]()))
        return digest != base.digest or stops[peer] <= CLAIM_BELIEVED


class Leader:
    """The rounds that this peer leads."""

    def __init__(
        self,
        transport: Transport,
        norm_clip: float,
        standing: Standing,
        questions: Questions,
        detector: FailureDetector,
        inquiry: Inquiry,
        laggards: Demotions,
        hidden: Demotions,
        demoted: Callable[[float], frozenset[str]],
        lost: Callable[[Key], AbstractSet[str]],
    ) -> None:
        """`standing`: its members are those that are awake. `laggards`: who has kept others waiting lately.

        `hidden`: reducers. `demoted`: whom nobody follows now. `lost`: leaders of a round that we have left.
        """
        self._transport = transport
        self._clock, self._timing = transport.clock, transport.timing
        self._norm_clip = norm_clip
        self._standing = standing
        self._questions = questions
        self._detector = detector
        self._inquiry = inquiry
        self._laggards, self._hidden = laggards, hidden
        self._demoted, self._lost = demoted, lost
        self._gatherings: dict[Key, Gathering] = {}
        self._tasks = Tasks()
        self._doubts = Doubts()

    async def stop(self) -> None:
        await self._tasks.end()

    def gathers(self, key: Key) -> bool:
        return key in self._gatherings and not self._gatherings[key].closed

    def leads(self, key: Key) -> bool:
        """Whether we gather that round, or it has begun: we need not be in it ourselves."""
        return key in self._gatherings

    def admit(self, join: Join, channel: Channel) -> Gathering | Refuse:
        """Let a member into the gathering of its round, opening it if it is the first."""
        key = stage, module, version = join.stage, ModuleId.parse(join.module), join.version
        theirs = Claim.of(join)
        if not self._standing.allows(channel.peer):
            return Refuse(reason="this peer has not been admitted by the run's operator, or is banned", version=0)
        self._standing.heard(channel.peer, stage, module, Member(join.path, theirs))
        gathering = self._gatherings.get(key)
        # who has moved to another path leads what it has begun to its end: those who are here wait for the others
        group = self._standing.group_of(stage, module) if gathering is None else gathering.group
        if group is None:
            return Refuse(reason="we do not take part in this module", version=0)
        ours = self._standing.ours(stage, module)
        if ours is not None and ours.claim.beats(theirs):
            return ahead_of(theirs, ours.claim, self._transport.peer)
        if join.path not in group.path_weights:
            return Refuse(reason=f"path {join.path} does not use {module}", version=version)
        if gathering is None:
            # for every gathering we ask all who are there, again and again
            if self._standing.is_strange(channel.peer) and not group.whole and not self._is_real(stage, module, theirs):
                return unconfirmed(version)
            if len(self._gatherings) >= MAX_GATHERINGS:
                return Refuse(reason="too many peers at once; trying the next round", version=version)
            now = self._clock.monotonic()
            gathering = Gathering(key, group, theirs, self._transport, self._questions, self._inquiry, now)
            self._gatherings[key] = gathering
            self._tasks.start(self._lead(gathering))
            if ours is not None and ours.claim == theirs:
                self._standing.called(stage, module, version, not self._standing.heeds(stage, module, channel.peer))
        if gathering.closed:
            return Refuse(reason="came after the round had begun; the next one counts our progress", version=version)
        if len(gathering.seats) >= MAX_MEMBERS or gathering.is_crowded(channel, self._standing.is_strange):
            return Refuse(reason="too many peers at once; trying the next round", version=version)
        refusal = self._settle_base(gathering, theirs, channel.peer)
        if refusal is not None:
            return refusal
        # nobody waits in two rounds of one module
        for other in self._gatherings.values():
            if other is not gathering and other.key[:2] == key[:2] and not other.closed:
                other.leave(channel.peer)
        gathering.take(Seat(join, channel), self._standing.is_strange)
        return gathering

    def _is_real(self, stage: int, module: ModuleId, claim: Claim) -> bool:
        """Whether we have that state, or believe that somebody has it."""
        ours = self._standing.ours(stage, module)
        return ours is not None and (
            ours.claim == claim or self._standing.is_believed(stage, module, ours.claim, claim)
        )

    def _settle_base(self, gathering: Gathering, theirs: Claim, peer: str) -> Refuse | None:
        """Who comes goes on from another state than those who are here: one of them is told to fetch the better one.

        Unless nobody confirms that one: then it is theirs who came with it to find that out.
        """
        base, (stage, module, version) = gathering.base, gathering.key
        if base == theirs:
            return None
        worse, better = (theirs, base) if base.beats(theirs) else (base, theirs)
        believed = self._standing.is_believed(stage, module, worse, better)
        if better == base and (believed or not self._standing.has_had(stage, module, theirs)):
            first = next(iter(gathering.seats), self._transport.peer)
            return ahead_of(theirs, base, first) if believed else unconfirmed(version)
        if better == theirs and not believed:
            return unconfirmed(version)
        gathering.rebase(theirs, ahead_of(base, theirs, peer) if better == theirs else unconfirmed(version))
        return None

    async def _lead(self, gathering: Gathering) -> None:
        try:
            pulse = gathering.listeners.start(gathering.pulse())
            refusal = await self._until_closed(gathering)
            gathering.closed = True
            pulse.cancel()
            if refusal is not None:
                await tell(list(gathering.seats.values()), refusal, self._timing)
                return
            seats = await gathering.seats_of_one_size(self._standing.is_strange)
            if seats:
                now = self._clock.monotonic()
                waived = with_strangers(self._laggards.demoted(now), {*gathering.seats}, self._standing.is_strange)
                seats = await gathering.without_a_crowd(seats, waived, self._standing.is_strange)
                gathering.hide(self._hidden.demoted(now))
                running = RunningRound(
                    self._transport, gathering, seats, self._norm_clip, self._standing, self._inquiry, waived
                )
                await running.reach_decision()
        finally:
            gathering.closed = True
            self._gatherings.pop(gathering.key, None)
            await gathering.listeners.end()
            for seat in gathering.seats.values():
                seat.channel.close()
            gathering.over.set()

    async def _until_closed(self, gathering: Gathering) -> Refuse | None:
        """Wait for the missing; None when the round begins, else what those who are here are told instead.

        Who is missing is asked directly: an announcement may be old, an answer is not.
        """
        version, asked = gathering.key[2], float("-inf")
        ahead: tuple[Claim, str] | None = None
        first: str | None = None
        looking = gathering.listeners.start(self._standing.look(*gathering.key[:2]))
        while True:
            gathering.changed.clear()
            gathering.clear_away()
            view = self._view(gathering, ahead, first)
            if not view.missing and not looking.done():
                # what was read before may be old: who goes on without a newcomer leaves its tokens out, or makes a fork
                await asyncio.wait([looking])
                continue
            match close(view):
                case closing.Begin():
                    return None
                case closing.CatchUpFirst(better, holder):
                    return ahead_of(gathering.base, better, holder)
                case closing.JoinThere(leader):
                    return Refuse(reason=f"{leader[-8:]} leads this round", version=version, leader=leader)
                case closing.Wait():
                    now = self._clock.monotonic()
                    # of strangers alone, who may gather for long, all the others need not hear every second
                    pause = self._timing.heartbeat if view.is_of_strangers else self._timing.ask_again
                    if now - asked >= pause:
                        asked = now
                        ahead, first = await self._ask(gathering, view)
                    else:
                        await or_a_pulse(gathering.changed, self._timing)

    def _view(self, gathering: Gathering, ahead: tuple[Claim, str] | None, first: str | None) -> GatheringView:
        stage, module, _ = gathering.key
        now = self._clock.monotonic()
        live, lately = self._standing.members_of(stage, module), self._standing.lately(stage, module)
        demoted = frozenset[str]() if gathering.group.whole else self._laggards.demoted(now)
        known = frozenset(peer for peer in (*live, *lately, *gathering.seats) if not self._standing.is_strange(peer))
        # who has just come to a module may take its members for strangers, and make a version beside theirs
        tells_strangers = self._standing.has_made(*gathering.key) and not gathering.group.whole
        return GatheringView(
            seated=frozenset(gathering.seats),
            live=frozenset(live),
            waited=now - gathering.since,
            patience=gathering.patience,
            lately=frozenset(lately),
            elsewhere=frozenset(gathering.elsewhere),
            unanswered=gathering.unanswered,
            gone=frozenset(peer for peer in (*live, *lately) if self._detector.is_gone(peer)),
            whole=gathering.group.whole,
            waived=at_most_half(demoted, {*live, *gathering.seats}),
            known=frozenset() if gathering.group.whole else known,
            strangers=frozenset(live) - known if tells_strangers else frozenset(),
            moment=self._timing.pulse,
            ahead=ahead,
            first=first,
        )

    async def _ask(self, gathering: Gathering, view: GatheringView) -> tuple[tuple[Claim, str] | None, str | None]:
        """Ask the missing where they are: who is ahead, and who leads the same round and comes first, if anybody."""
        key, base = gathering.key, gathering.base
        # who did not come may do so by now; who is not waited for is called like all others
        missing = sorted(view.missing | (gathering.elsewhere | view.waived | view.strangers) & view.live - view.seated)
        seconds = max(self._timing.answer, view.patience - view.waited)
        of_strangers = not any(self._standing.heeds(*key[:2], peer) for peer in gathering.seats)
        answers = await where_they_are(
            missing, gathering, seconds, self._standing, self._detector, for_strangers=of_strangers
        )
        better = {peer: _better(answer, base) for peer, answer in zip(missing, answers, strict=True)}
        claims = [claim for claim in better.values() if claim is not None]
        believed = await _within(seconds, self._standing.ask_about(*key[:2], base, claims), []) if claims else []
        if gathering.base != base:
            return None, None
        follows, undecided = dict[str, str](), 0
        for peer, answer in zip(missing, answers, strict=True):
            if answer is None:
                gathering.unanswered[peer] += 1
            elif answer.version is None or answer.digest is None:
                gathering.elsewhere.add(peer)
            elif (claim := better[peer]) is not None:
                if claim in believed:
                    self._doubts.note(key, base, peer)
                    if self._doubts.believes(key, base, peer):
                        return (claim, peer), None
                gathering.elsewhere.add(peer)
            elif answer.path is None:
                gathering.elsewhere.add(peer)
            else:
                gathering.elsewhere.discard(peer)
                if answer.follows is None:
                    undecided += 1
                else:
                    follows[peer] = answer.follows
        now = self._clock.monotonic()
        demoted = frozenset[str]() if gathering.group.whole else self._demoted(now)
        here, time = len(gathering.seats), view.patience - view.waited
        gathering.elsewhere |= {peer for peer in outnumbered(demoted, follows, here) if follows.get(peer) == peer}
        is_last_word = time <= LAST_WORD * self._timing.ask_again
        left = outnumbered(demoted, follows, here if is_last_word else here + undecided) | self._lost(key)
        strange = self._standing.is_strange
        left |= {*filter(strange, follows.values())} if STRANGERS in demoted else set()
        rivals = _rivals({peer: leader for peer, leader in follows.items() if leader not in left}, view, self._detector)
        known = {peer: leader for peer, leader in rivals.items() if not (strange(peer) or strange(leader))}
        more = gathering.more_elsewhere(known)
        ask = partial(self._questions.follows, key=key, base=base, for_strangers=of_strangers)
        order = partial(leader_order, *key)
        meeting = where_all_meet(self._transport.peer, rivals, more if is_last_word else None, order, ask)
        return None, await _within(self._timing.max_answer, meeting, None)


def _better(answer: Here | None, base: Claim) -> Claim | None:
    """The state that somebody says it has, where that is a better one."""
    if answer is None or answer.version is None or answer.digest is None:
        return None
    claim = Claim(answer.version, answer.digest, answer.work)
    return claim if claim.beats(base) else None


def _rivals(follows: Mapping[str, str], view: GatheringView, detector: FailureDetector) -> dict[str, str]:
    """Whose word on whom it has joined is looked into: that of a stranger only where it names somebody who is here, if
    strangers can be told from others. Who is not would be asked in vain, again and again."""
    there = {peer for peer in view.known & view.live if not detector.doubts(peer)}
    return {peer: leader for peer, leader in follows.items() if peer not in view.strangers or leader in there}


async def _within(seconds: float, question: Coroutine[Any, Any, Answer], otherwise: Answer) -> Answer:
    """The members have only so much patience, however many have to be asked."""
    try:
        async with asyncio.timeout(seconds):
            return await question
    except TimeoutError:
        return otherwise
