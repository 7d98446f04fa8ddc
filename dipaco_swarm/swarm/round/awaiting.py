"""A gathering until it closes: who is missing is asked where it is, and the round begins, or all go elsewhere.

When it closes is a pure function of who is there: `closing.py`. Here what it depends on is found out.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping
from collections.abc import Set as AbstractSet
from functools import partial
from typing import Any, TypeVar

from dipaco_swarm.algorithm.paths import ModuleId
from dipaco_swarm.algorithm.plan import Claim
from dipaco_swarm.swarm.round import closing
from dipaco_swarm.swarm.round.calling import where_they_are
from dipaco_swarm.swarm.round.candidates import STRANGERS, Demotions, outnumbered
from dipaco_swarm.swarm.round.closing import GatheringView, close
from dipaco_swarm.swarm.round.failure_detector import FailureDetector
from dipaco_swarm.swarm.round.gathering import Gathering, ahead_of
from dipaco_swarm.swarm.round.meeting import where_all_meet
from dipaco_swarm.swarm.round.questions import Questions
from dipaco_swarm.swarm.round.reduction import leader_order
from dipaco_swarm.swarm.round.roster import at_most_half
from dipaco_swarm.swarm.round.seats import or_a_pulse
from dipaco_swarm.swarm.round.standing import Key, Standing
from dipaco_swarm.swarm.transport import Transport
from dipaco_swarm.swarm.wire import Here, Refuse

Answer = TypeVar("Answer")

LAST_WORD = 2
"""So many questions before their patience is over, members are sent even to a leader that is demoted here, if not more
have come here than to it: two rounds of one version would be worse than one that is lost."""
STRANGERS_EVERY = 32
"""Versions between two whose rounds wait for strangers as for everybody."""
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


class Waiting:
    """For the missing of all rounds that a peer leads."""

    def __init__(
        self,
        transport: Transport,
        standing: Standing,
        questions: Questions,
        detector: FailureDetector,
        laggards: Demotions,
        demoted: Callable[[float], frozenset[str]],
        lost: Callable[[Key], AbstractSet[str]],
    ) -> None:
        """`standing`: its members are those that are awake. `laggards`: who has kept others waiting lately.

        `demoted`: whom nobody follows now. `lost`: leaders of a round that we have left.
        """
        self._us = transport.peer
        self._clock, self._timing = transport.clock, transport.timing
        self._standing = standing
        self._questions = questions
        self._detector = detector
        self._laggards = laggards
        self._demoted, self._lost = demoted, lost
        self._doubts = Doubts()

    async def until_closed(self, gathering: Gathering) -> Refuse | None:
        """Wait for the missing; None when the round begins, else what those who are here are told instead.

        Who is missing is asked directly: an announcement may be old, an answer is not.
        """
        version, asked = gathering.key[2], float("-inf")
        ahead: tuple[Claim, str] | None = None
        first: str | None = None
        looking = gathering.listeners.start(self._standing.look(*gathering.key[:2]))
        asked_last = False
        while True:
            gathering.changed.clear()
            gathering.clear_away()
            view = self._view(gathering, ahead, first)
            if not view.missing and not looking.done():
                # what was read before may be old: who goes on without a newcomer leaves its tokens out, or makes a fork
                await asyncio.wait([looking])
                continue
            match close(view):
                case closing.Begin() if view.is_of_few and not asked_last and not gathering.group.whole:
                    # most are somewhere else, and may have come to another leader a moment ago
                    asked_last = True
                    ahead, first = await self._ask(gathering, view)
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

    def strange_in(self, gathering: Gathering) -> Callable[[str], bool]:
        """Who is a stranger in a round of ours. Nobody, where we cannot tell: who has just come to a module does not
        know its members, and who has contributed to nothing is one itself."""
        key, us, strange = gathering.key, self._us, self._standing.is_strange
        others = {*self._standing.members_of(*key[:2]), *gathering.seats} - {us}
        tells = self._standing.has_made(*key) or not all(map(strange, others))
        return strange if tells and not strange(us) and not gathering.group.whole else lambda peer: False

    def _view(self, gathering: Gathering, ahead: tuple[Claim, str] | None, first: str | None) -> GatheringView:
        stage, module, _ = gathering.key
        now = self._clock.monotonic()
        live, lately = self._standing.members_of(stage, module), self._standing.lately(stage, module)
        demoted = frozenset[str]() if gathering.group.whole else self._laggards.demoted(now)
        known = frozenset(peer for peer in (*live, *lately, *gathering.seats) if not self._standing.is_strange(peer))
        # who has just come to a module may take its members for strangers, and make a version beside theirs
        tells = self._standing.has_made(*gathering.key) and self._us in known
        # now and then it waits for all: two circles of members, each of strangers to the other, would never meet
        tells = tells and not gathering.group.whole and gathering.key[2] % STRANGERS_EVERY != 0
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
            strangers=frozenset(live) - known if tells else frozenset(),
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
        strange = self.strange_in(gathering)
        left |= {*filter(strange, follows.values())} if STRANGERS in demoted else set()
        rivals = _rivals({peer: leader for peer, leader in follows.items() if leader not in left}, view, self._detector)
        known = {peer: leader for peer, leader in rivals.items() if not (strange(peer) or strange(leader))}
        has_come = not self._standing.has_made(*key)
        more = gathering.more_elsewhere(known, at_once=has_come)
        ask = partial(self._questions.follows, key=key, base=base, for_strangers=of_strangers)
        order = partial(leader_order, *key)
        meeting = where_all_meet(self._us, rivals, more if is_last_word or has_come else None, order, ask)
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
