"""Before a claim is believed, others are asked whether they have had that state. The rules: `algorithm/evidence.py`.

Nothing of it is stored in the directory, and nobody collects signatures: libp2p proves who answers. What is believed of
a state stays so; what is not yet is asked again, less and less often.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from dipaco_swarm.algorithm.evidence import Belief, Evidence, Votes, belief, is_open
from dipaco_swarm.algorithm.paths import ModuleId
from dipaco_swarm.algorithm.plan import Claim
from dipaco_swarm.errors import RemoteDataError
from dipaco_swarm.run.address import RunAddress
from dipaco_swarm.swarm.addresses import name_in
from dipaco_swarm.swarm.circle import Circle
from dipaco_swarm.swarm.directory import Directory
from dipaco_swarm.swarm.had import HadStates, Place
from dipaco_swarm.swarm.interface import Announcement
from dipaco_swarm.swarm.states.store import store_protocol
from dipaco_swarm.swarm.tasks import Tasks
from dipaco_swarm.swarm.transport import Portal, Transport
from dipaco_swarm.swarm.wire import MAX_CLAIMS, MAX_NAMES, AskHad, HadAre, SaidState

log = logging.getLogger(__name__)

MAX_VOTERS = 15
"""So many members are asked about a claim, drawn from all."""
REMEMBERED_CLAIMS = 1024


@dataclass
class Question:
    """What has come of asking about the states of one module."""

    task: asyncio.Task[None] | None = None
    asked: float = float("-inf")
    pause: float = 0.0
    """Until we ask again."""
    open_since: float | None = None
    """Since when no answer was right."""


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
        self._roots = tuple(name for name in names if name != transport.peer)
        """The operator's nodes."""
        self._directory = directory
        self.had = HadStates()
        self.circle = circle
        self.is_root = transport.peer in names
        """Whether this is a node of the operator's."""
        self._beliefs: dict[tuple[Place, Claim], Belief] = {}
        self._questions: dict[Place, Question] = {}
        self._tasks = Tasks()

    async def stop(self) -> None:
        await self._tasks.end()

    # --------------------------------------------------------------------------------------------------- what we know

    def contributed(self, stage: int, module: ModuleId, base: str, contributors: Sequence[str]) -> None:
        """A round of ours that went on from state `base` is agreed: who is in its average."""
        self.circle.meet(contributors)
        self.had.note_contributors(stage, module, base, contributors)

    def answer(self, asked: AskHad) -> HadAre:
        """Which of these states we have had, and who made them; of a node of the operator's, whom it knows."""
        stage, module = asked.stage, ModuleId.parse(asked.module)
        had = tuple(self.had.has(stage, module, _claim(state)) for state in asked.states)
        made = (self.had.makers(state.digest) for state, is_ours in zip(asked.states, had, strict=True) if is_ours)
        known = self._known_members(stage, module) if self.is_root else ()
        makers, is_maker = next(filter(None, made), ()), self.had.made(stage, module)
        return HadAre(had=had, made=is_maker, makers=makers, known=known[:MAX_NAMES])

    def belief_in(self, stage: int, module: ModuleId, claim: Claim) -> Belief:
        """As far as has been found out by now."""
        if self.had.has(stage, module, claim):
            return Belief.WHOLE
        return self._beliefs.get(((stage, module), claim), Belief.NO)

    def comes_whole(self, stage: int, module: ModuleId, digest: str) -> bool:
        """In the loop: whether a state may be taken as it is sent; else only what averages make of ours."""
        place = stage, module
        found = [belief for (about, claim), belief in self._beliefs.items() if (about, claim.digest) == (place, digest)]
        return not found or Belief.WHOLE in found

    # --------------------------------------------------------------------------------------------------------- asking

    def believed(self, stage: int, module: ModuleId, ours: Claim, claims: Sequence[Claim]) -> list[Claim]:
        """Those of the claims that are better than ours and believed by now; the others are asked about meanwhile."""
        better = [claim for claim in dict.fromkeys(claims) if claim.beats(ours)]
        doubted = [claim for claim in better if self.belief_in(stage, module, claim) is not Belief.WHOLE]
        if doubted:
            self._portal.soon(self._look_into, stage, module, ours, doubted)
        return [claim for claim in better if self.belief_in(stage, module, claim) is not Belief.NO]

    async def check(self, stage: int, module: ModuleId, ours: Claim, claims: Sequence[Claim]) -> list[Claim]:
        """The same in the loop, once everybody has answered or could have."""
        better = [claim for claim in dict.fromkeys(claims) if claim.beats(ours)]
        if any(self.belief_in(stage, module, claim) is not Belief.WHOLE for claim in better):
            self._look_into(stage, module, ours, better)
            task = self._questions[stage, module].task
            if task is not None:
                await asyncio.wait([task])
        return [claim for claim in better if self.belief_in(stage, module, claim) is not Belief.NO]

    def _look_into(self, stage: int, module: ModuleId, ours: Claim, claims: Sequence[Claim]) -> None:
        """Ask about these, if it is time and nobody is being asked."""
        question = self._questions.setdefault((stage, module), Question())
        now = self._transport.clock.monotonic()
        if question.task is None and now - question.asked >= question.pause:
            question.asked = now
            question.task = self._tasks.start(self._ask_about(stage, module, ours, list(claims), question))

    async def _ask_about(
        self, stage: int, module: ModuleId, ours: Claim, claims: list[Claim], question: Question
    ) -> None:
        now = question.asked
        try:
            members = [said for said in self._directory.members(stage, module) if said.peer != self._transport.peer]
            claims = self._likeliest(claims, members)
            ask = AskHad(stage=stage, module=str(module), states=tuple(map(_said, (*claims, ours))))
            root, known, strangers = await self._answers(ask, members)
            for_long = question.open_since is not None and now - question.open_since >= self._timing.undecided
            unsettled = False
            for at, claim in enumerate(claims):
                seen = Evidence(
                    root=None if root is None else root.had[at],
                    known=_votes(known, at),
                    strangers=_votes(strangers, at),
                    made_here=self.had.made(stage, module),
                    is_root=self.is_root,
                    for_long=for_long,
                )
                found = belief(seen)
                unsettled = unsettled or is_open(seen)
                log.debug("%s v%d %s: %s, by %s", module, claim.version, claim.digest[:8], found.name, seen)
                self._note((stage, module), claim, found, [*known, *strangers], at)
            question.open_since = (question.open_since or now) if unsettled else None
        finally:
            settled = any(self.belief_in(stage, module, claim) is Belief.WHOLE for claim in claims)
            floor = self._timing.ask_again
            question.pause = floor if settled else min(self._timing.heartbeat, max(floor, 2 * question.pause))
            question.task = None

    def _likeliest(self, claims: Sequence[Claim], members: Sequence[Announcement]) -> list[Claim]:
        """What is asked about first: what those announce whom we know, then what most announce."""
        said = Counter(Claim.of(member) for member in members)
        by_known = Counter(Claim.of(member) for member in members if self._is_known(member.peer))
        ranked = sorted(claims, key=lambda claim: (-by_known[claim], -said[claim], -claim.work, claim.digest))
        return ranked[: MAX_CLAIMS - 1]

    async def _answers(
        self, ask: AskHad, members: Sequence[Announcement]
    ) -> tuple[HadAre | None, list[HadAre], list[HadAre]]:
        """Of the operator's node, of members that we know and, where there are none of these, of strangers."""
        others = [said.peer for said in members if said.peer not in self._roots]
        ours = [self.answer(ask)] if self.had.made(ask.stage, ModuleId.parse(ask.module)) else []
        asked = [peer for peer in others if self._is_known(peer)]
        roots, known = await asyncio.gather(self._ask_all(self._roots, ask), self._ask_all(asked, ask))
        root = next((answer for answer in roots if any(answer.had[:-1])), roots[0] if roots else None)
        if root is not None and not known:
            known = await self._ask_all([peer for peer in others if peer in root.known], ask)
        strangers = [] if root is not None or known else await self._ask_all(others, ask)
        return root, [*known, *ours], [*strangers, *ours]

    async def _ask_all(self, peers: Sequence[str], ask: AskHad) -> list[HadAre]:
        drawn = self._transport.random.sample(peers, MAX_VOTERS) if len(peers) > MAX_VOTERS else peers
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

    def _note(self, place: Place, claim: Claim, found: Belief, answers: Sequence[HadAre], at: int) -> None:
        """Remember what is believed of a claim, and whom we know by it: whom half of those name who have had it."""
        if found is Belief.NO:
            self._beliefs.pop((place, claim), None)
            return
        self._beliefs[place, claim] = found
        while len(self._beliefs) > REMEMBERED_CLAIMS:
            del self._beliefs[next(iter(self._beliefs))]
        had = [answer for answer in answers if answer.had[at]]
        named = Counter(name for answer in had for name in dict.fromkeys(answer.makers))
        self.circle.meet(name for name, times in named.items() if 2 * times >= len(had))

    def _known_members(self, stage: int, module: ModuleId) -> tuple[str, ...]:
        return tuple(said.peer for said in self._directory.members(stage, module) if self._is_known(said.peer))

    def knows(self, peer: str) -> bool:
        """Whether its word counts with us: it has contributed, or we have met nobody yet and must take all alike.

        From any thread.
        """
        us = self._transport.peer
        return peer == us or peer in self.circle or not self.circle.has_others(us)

    def _is_known(self, peer: str) -> bool:
        return peer in self.circle and peer != self._transport.peer


def _votes(answers: Sequence[HadAre], at: int) -> Votes:
    """The last state of a question is ours."""
    return Votes(
        asked=len(answers),
        for_it=sum(answer.had[at] for answer in answers),
        for_ours=sum(answer.had[-1] for answer in answers),
        makers=sum(answer.had[at] or answer.made for answer in answers),
    )


def _said(claim: Claim) -> SaidState:
    """A guest has none: it asks about one that nobody has had."""
    return SaidState(version=max(0, claim.version), digest=claim.digest or "0" * 64, work=claim.work)


def _claim(state: SaidState) -> Claim:
    return Claim(state.version, state.digest, state.work)
