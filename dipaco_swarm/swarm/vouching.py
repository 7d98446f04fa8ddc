"""Before a claim is believed, others are asked whether they have had that state. The rules: `algorithm/evidence.py`.

Nobody is asked about a state of another generation than the operator has signed (`algorithm/generations.py`).

Whom we know, or the operator's node, has said so in its announcement, as a rule; then nobody is asked, but who has
contributed, once we have it. Else libp2p proves who answers. What is believed of a state stays so; what is not yet is
asked again, less and less often.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from dipaco_swarm.algorithm.evidence import Evidence, Votes, is_believed
from dipaco_swarm.algorithm.generations import generation_of
from dipaco_swarm.algorithm.paths import ModuleId
from dipaco_swarm.algorithm.plan import Claim
from dipaco_swarm.errors import RemoteDataError
from dipaco_swarm.run.address import RunAddress
from dipaco_swarm.swarm.addresses import name_in
from dipaco_swarm.swarm.circle import Circle
from dipaco_swarm.swarm.directory import Directory
from dipaco_swarm.swarm.familiar import Familiar
from dipaco_swarm.swarm.fields import MAX_CLAIMS, MAX_NAMES
from dipaco_swarm.swarm.had import HadStates, Place
from dipaco_swarm.swarm.interface import Announcement
from dipaco_swarm.swarm.states.store import store_protocol
from dipaco_swarm.swarm.tasks import Tasks
from dipaco_swarm.swarm.transport import Portal, Transport
from dipaco_swarm.swarm.wire import AskHad, HadAre, SaidState

log = logging.getLogger(__name__)

MAX_VOTERS = 15
"""So many members are asked about a claim, drawn from all."""
REMEMBERED_CLAIMS = 1024
MAX_WITNESSES = 3
"""So many of those whom we know are asked who has contributed to a state."""


@dataclass
class Question:
    """What has come of asking about the states of one module."""

    task: asyncio.Task[None] | None = None
    asked: float = float("-inf")
    pause: float = 0.0
    """Until we ask again."""
    open_since: float | None = None
    """Since when nothing was believed, and nobody could say that it is wrong; once that is for long, until we have
    taken something: the next version may come before that, and would have to wait as long again."""


@dataclass(frozen=True)
class Answers:
    """Who has had the states that were asked about."""

    roots: Sequence[HadAre]
    """Of the operator's nodes that can tell."""
    friends: Sequence[str]
    """Who stands for the module and is known: to us, or to the operator's nodes where we know nobody there."""
    known: Sequence[HadAre]
    """What those have answered, and others whom we know: who has left the module holds what it had then."""
    known_elsewhere: bool
    """Whether we, or the operator's nodes, know somebody who has trained any module not long ago."""
    strangers: Sequence[HadAre]


class Vouching:
    """Asks and answers. `believed` may be called from any thread."""

    def __init__(
        self, portal: Portal, transport: Transport, address: RunAddress, directory: Directory, circle: Circle
    ) -> None:
        """`circle`: whom we know from lives before this one."""
        names = [name_in(place) for place in address.bootstraps]
        self._portal = portal
        self._transport = transport
        self._timing = transport.timing
        self._protocol = store_protocol(address.fingerprint)
        self.roots = tuple(name for name in names if name != transport.peer)
        """The operator's nodes, but for ourselves."""
        self._directory = directory
        self.had = HadStates()
        self.circle = circle
        self.is_root = transport.peer in names
        """Whether this is a node of the operator's."""
        self.generation: Callable[[int, ModuleId], int] = lambda stage, module: 0
        """How often the operator has gone back with a module of a stage, by the newest manifest."""
        self._makers: dict[tuple[Place, Claim], tuple[str, ...]] = {}
        """Claims that are believed and not taken yet -> who has contributed to the state, as others say."""
        self._questions: dict[Place, Question] = {}
        self._familiar = Familiar(transport, directory, circle)
        self._tasks = Tasks()

    async def stop(self) -> None:
        await self._tasks.end()
        self._familiar.leave()

    # --------------------------------------------------------------------------------------------------- what we know

    def contributed(self, stage: int, module: ModuleId, base: str, contributors: Sequence[str]) -> None:
        """A round of ours that went on from state `base` is agreed: who is in its average."""
        us = self._transport.peer
        if [*contributors] != [us] or not self.circle.has_others(us):  # what one makes alone makes it known to nobody
            self.circle.meet(contributors)
        self.had.note_contributors(stage, module, base, contributors)

    def answer(self, asked: AskHad) -> HadAre:
        """Which of these states we have had, and who made them; of a node of the operator's, whom it knows."""
        stage, module = asked.stage, ModuleId.parse(asked.module)
        had = tuple(self.had.has(stage, module, _claim(state)) for state in asked.states)
        made = (self.had.makers(state.digest) for state, is_ours in zip(asked.states, had, strict=True) if is_ours)
        known = tuple(self._who_stand_for(self._directory.members(stage, module))) if self.is_root else ()
        makers, begun = next(filter(None, made), ()), self.had.begun(stage, module)
        lately = self.is_root and self._familiar.somewhere()
        return HadAre(had=had, begun=begun, makers=makers, known=known[:MAX_NAMES], known_elsewhere=lately)

    def took(self, stage: int, module: ModuleId, claim: Claim, *, made_from: str | None = None) -> None:
        """We have this state now: who has contributed to it is known from here on.

        `made_from`: digest of the state before it, where a round of ours has made it; our program takes it later.
        """
        if made_from is not None:
            self.had.note_step(stage, module, made_from, claim.digest)
        is_new = not self.had.has(stage, module, claim)
        self.had.note(stage, module, claim)
        if is_new and made_from is None and (question := self._questions.get((stage, module))):
            question.open_since = None
        if makers := self._makers.pop(((stage, module), claim), ()):
            self.circle.meet(makers)
        elif is_new and not self.had.makers(claim.digest):
            self._tasks.start(self._meet_makers(stage, module, claim))

    def believes(self, stage: int, module: ModuleId, claim: Claim, announced: Collection[Claim] | None = None) -> bool:
        """As far as has been found out by now. `announced`: as `_announced` says, where it was asked already."""
        return self._is_signed(stage, module, claim) and (
            self.had.has(stage, module, claim)
            or ((stage, module), claim) in self._makers
            or claim in (self._announced(stage, module) if announced is None else announced)
        )

    def _is_signed(self, stage: int, module: ModuleId, claim: Claim) -> bool:
        """Whether the state is of the generation that the operator has signed."""
        return generation_of(claim.work) == self.generation(stage, module)

    def _announced(self, stage: int, module: ModuleId) -> frozenset[Claim]:
        """What the operator's node, or somebody whom we know, announces: its own word that it has the state."""
        heard = self._directory.heard_ourselves(stage, module)
        return frozenset(
            Claim.of(said) for said in heard if said.peer in self.roots or self._familiar.is_known(said.peer)
        )

    # --------------------------------------------------------------------------------------------------------- asking

    def believed(self, stage: int, module: ModuleId, ours: Claim, claims: Sequence[Claim]) -> list[Claim]:
        """Those of the claims that are better than ours and believed by now; the others are asked about meanwhile."""
        better, believed = self._judged(stage, module, ours, claims)
        doubted = self._doubted(stage, module, better, believed)
        if doubted:
            self._portal.soon(self._look_into, stage, module, doubted)
        return believed

    async def check(self, stage: int, module: ModuleId, ours: Claim, claims: Sequence[Claim]) -> list[Claim]:
        """The same in the loop, once everybody has answered or could have."""
        better, believed = self._judged(stage, module, ours, claims)
        doubted = self._doubted(stage, module, better, believed)
        if doubted:
            self._look_into(stage, module, doubted, at_once=True)
            task = self._questions[stage, module].task
            if task is not None:
                await asyncio.wait([task])
        return self._judged(stage, module, ours, better)[1] if doubted else believed

    def _judged(
        self, stage: int, module: ModuleId, ours: Claim, claims: Sequence[Claim]
    ) -> tuple[list[Claim], list[Claim]]:
        """Those that are better than ours, and those of them that are believed by now. What is announced is gathered
        once: a large group may have hundreds of members, and as many claims."""
        better = [claim for claim in dict.fromkeys(claims) if claim.beats(ours)]
        announced = self._announced(stage, module) if better else frozenset[Claim]()
        return better, [claim for claim in better if self.believes(stage, module, claim, announced)]

    def _doubted(
        self, stage: int, module: ModuleId, claims: Sequence[Claim], believed: Collection[Claim]
    ) -> list[Claim]:
        known = frozenset(believed)
        return [claim for claim in claims if claim not in known and self._is_signed(stage, module, claim)]

    def _look_into(self, stage: int, module: ModuleId, claims: Sequence[Claim], *, at_once: bool = False) -> None:
        """Ask about these, if it is time and nobody is being asked. `at_once`: whether it is time or not."""
        question = self._questions.setdefault((stage, module), Question())
        now = self._transport.clock.monotonic()
        if question.task is None and (at_once or now - question.asked >= question.pause):
            question.asked = now
            question.task = self._tasks.start(self._ask_about(stage, module, claims, question))

    async def _ask_about(self, stage: int, module: ModuleId, claims: Sequence[Claim], question: Question) -> None:
        now, told = question.asked, False
        for_long = question.open_since is not None and now - question.open_since >= self._timing.undecided
        try:
            members = [said for said in self._directory.members(stage, module) if said.peer != self._transport.peer]
            claims = self._likeliest(claims, members)
            ask = AskHad(stage=stage, module=str(module), states=tuple(map(_said, claims)))
            said = await self._answers(ask, members)
            known_here = self._familiar.there(stage, module)
            told = known_here or bool(said.friends or said.roots)
            for at, claim in enumerate(claims):
                seen = Evidence(
                    root=any(answer.had[at] for answer in said.roots) if said.roots else None,
                    known=Votes(len(said.friends), sum(answer.had[at] for answer in said.known)),
                    known_here=known_here,
                    known_elsewhere=said.known_elsewhere,
                    strangers=Votes(len(said.strangers), sum(answer.had[at] for answer in said.strangers)),
                    made_here=self.had.made(stage, module),
                    for_long=for_long,
                )
                believed = is_believed(seen)
                log.debug("%s v%d %s: %s, by %s", module, claim.version, claim.digest[:8], believed, seen)
                if believed:
                    had = [answer for answer in said.known if answer.had[at]]
                    had = had or [answer for answer in said.strangers if answer.had[at]]
                    self._note((stage, module), claim, _makers(had, {member.peer for member in members}))
        finally:
            announced = self._announced(stage, module)
            settled = any(self.believes(stage, module, claim, announced) for claim in claims)
            if told or not for_long:
                question.open_since = None if told or settled else question.open_since or now
            floor = self._timing.ask_again
            question.pause = floor if settled else min(self._timing.heartbeat, max(floor, 2 * question.pause))
            question.task = None

    async def _meet_makers(self, stage: int, module: ModuleId, claim: Claim) -> None:
        """Who has contributed to a state that was believed because somebody whom we know announced it, or a node of the
        operator's has had it. Where nobody whom we know there can tell, the node says whom it knows."""
        there = [said.peer for said in self._directory.members(stage, module)]
        ask = AskHad(stage=stage, module=str(module), states=(_said(claim),))
        witnesses = [peer for peer in there if self._familiar.is_known(peer)]
        if witnesses and not claim.version:
            return
        said = await self._ask_all(witnesses, ask, most=MAX_WITNESSES)
        makers = _makers([answer for answer in said if answer.had[0]], there)
        if not makers and not self.is_root:
            makers = tuple(name for answer in await self._ask_all(self.roots, ask) for name in answer.known)
        self.circle.meet(makers)

    def _likeliest(self, claims: Sequence[Claim], members: Sequence[Announcement]) -> list[Claim]:
        """What is asked about first: what those announce whom we know, then what most announce."""
        said = Counter(Claim.of(member) for member in members)
        by_known = Counter(Claim.of(member) for member in members if self._familiar.is_known(member.peer))
        ranked = sorted(claims, key=lambda claim: (-by_known[claim], -said[claim], -claim.work, claim.digest))
        return ranked[:MAX_CLAIMS]

    async def _answers(self, ask: AskHad, members: Sequence[Announcement]) -> "Answers":
        """Of the operator's nodes, of members that we know and, where there are none of these, of strangers.

        A node or a stranger that has had no version of the module, and none of these states, can tell nothing: it has
        only come before us. A friend that has come before us says all the same that nobody need go by strangers.
        """
        others = [said.peer for said in members if said.peer not in self.roots]
        witnesses = [peer for peer in others if self._familiar.is_known(peer)]
        roots, known = await asyncio.gather(self._ask_all(self.roots, ask), self._ask_all(witnesses, ask))
        friends = self._who_stand_for(members)
        if not friends:
            named = {name for answer in roots for name in answer.known}
            friends = [peer for peer in others if peer in named]
            known += await self._ask_all(friends, ask)
        elsewhere = self._familiar.somewhere() or any(answer.known_elsewhere for answer in roots)
        roots = [answer for answer in roots if _can_tell(answer)]
        unknown = [] if roots or friends else [peer for peer in others if peer not in witnesses]
        strangers = await self._ask_all(unknown, ask)
        return Answers(roots, friends, known, elsewhere, [answer for answer in strangers if _can_tell(answer)])

    async def _ask_all(self, peers: Sequence[str], ask: AskHad, most: int = MAX_VOTERS) -> list[HadAre]:
        drawn = self._transport.random.sample(peers, most) if len(peers) > most else peers
        answers = await asyncio.gather(*(self._ask(peer, ask) for peer in drawn))
        return [answer for answer in answers if answer is not None]

    async def _ask(self, peer: str, ask: AskHad) -> HadAre | None:
        """None: it does not answer, or not to what was asked."""
        try:
            async with asyncio.timeout(self._timing.answer), self._transport.dial(peer, self._protocol) as stream:
                await stream.send(ask)
                answer = await stream.receive()
        except (ConnectionError, EOFError, TimeoutError, RemoteDataError) as error:
            log.debug("peer %s does not say what it has had: %s", peer[-8:], error)
            return None
        return answer if isinstance(answer, HadAre) and len(answer.had) == len(ask.states) else None

    def _note(self, place: Place, claim: Claim, makers: tuple[str, ...]) -> None:
        """Remember that a claim is believed, and whom we know once we have taken it."""
        self._makers[place, claim] = makers
        while len(self._makers) > REMEMBERED_CLAIMS:
            del self._makers[next(iter(self._makers))]

    def _who_stand_for(self, members: Sequence[Announcement]) -> list[str]:
        """Whom we know of those who are there: who trains the module, or pauses; not who trains another one instead and
        holds what it had."""
        moved = self._directory.training() - {said.peer for said in members if said.trains}
        return [said.peer for said in members if self._familiar.is_known(said.peer) and said.peer not in moved]

    def knows(self, peer: str) -> bool:
        """Whether its word counts with us: it has contributed, or we have met nobody yet and must take all alike.

        We ourselves too: who has contributed to nothing is a stranger to all the others. From any thread.
        """
        return peer in self.circle or not self.circle.has_others(self._transport.peer)


def _can_tell(answer: HadAre) -> bool:
    return answer.begun or any(answer.had)


def _makers(had: Sequence[HadAre], there: Collection[str]) -> tuple[str, ...]:
    """Who has contributed to a state, as more than half of those say who have had it and can tell. Only names that are
    there: or one of them would make us know whom it likes."""
    telling = [answer.makers for answer in had if answer.makers]
    named = Counter(name for makers in telling for name in dict.fromkeys(makers) if name in there)
    return tuple(name for name, times in named.items() if 2 * times > len(telling))


def _said(claim: Claim) -> SaidState:
    return SaidState(version=claim.version, digest=claim.digest, work=claim.work)


def _claim(state: SaidState) -> Claim:
    return Claim(state.version, state.digest, state.work)
