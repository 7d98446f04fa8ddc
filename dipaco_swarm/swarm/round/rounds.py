"""All rounds of one peer: with whom it makes each, and what it says to others about them.

run            one round of one module: one leader after the other (candidates.py), each an attempt (following.py)
serve          who joins a round that we lead (leader.py), sends pieces (exchange.py), or asks (questions.py)
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from torch import Tensor

from dipaco_swarm.algorithm.paths import ModuleId
from dipaco_swarm.errors import RemoteDataError
from dipaco_swarm.swarm.checks import Accusation, AskInputs, NotShown
from dipaco_swarm.swarm.fields import MAX_NORM
from dipaco_swarm.swarm.interface import Contribution, ModuleGroup, NotAgreed, Outcome
from dipaco_swarm.swarm.proofs import AskSeals, Proof, SealsAre
from dipaco_swarm.swarm.round.attempt import LeaderLost, MadeAgain, Redirected
from dipaco_swarm.swarm.round.auditing import Auditing
from dipaco_swarm.swarm.round.awaiting import Waiting
from dipaco_swarm.swarm.round.candidates import (
    Candidates,
    Demotions,
    LeaderFailures,
    may_redirect,
    next_leader,
)
from dipaco_swarm.swarm.round.codecs.codec import Codec
from dipaco_swarm.swarm.round.entrance import Entrance
from dipaco_swarm.swarm.round.exchange import PieceExchange
from dipaco_swarm.swarm.round.failure_detector import FailureDetector
from dipaco_swarm.swarm.round.feedback import ErrorFeedback
from dipaco_swarm.swarm.round.following import MISTAKE, Follower
from dipaco_swarm.swarm.round.inquiry import Inquiry
from dipaco_swarm.swarm.round.leader import Leader
from dipaco_swarm.swarm.round.questions import Questions
from dipaco_swarm.swarm.round.reduction import claimed_norm
from dipaco_swarm.swarm.round.standing import Key, Standing
from dipaco_swarm.swarm.round.verdicts import Verdicts
from dipaco_swarm.swarm.traffic import Purpose
from dipaco_swarm.swarm.transport import Stream, Transport
from dipaco_swarm.swarm.wire import AskOutcome, Exchange, Here, Join, NotHere, Refuse, Where

MAX_ATTEMPTS = 6


@dataclass
class _Attempts:
    """What one round has cost so far."""

    lost: set[str]
    """Leaders that went away, or could not be reached."""
    waiting: set[str] = field(default_factory=set)
    """Who has sent us to one of them."""
    answered: int = 0
    given: bool = False
    """Whether the others may have our outer gradient."""
    sent_to: str | None = None
    """Whom the last leader told us to join."""
    reason: str = "nobody of the group can be reached from here"


class Rounds:
    """All rounds of one peer, led and followed."""

    def __init__(
        self,
        transport: Transport,
        run: str,
        codec: Codec,
        norm_clip: float,
        standing: Standing,
        zeros: Callable[[int], Tensor],
    ) -> None:
        """`zeros`: room for so many numbers, fp32, that are not in memory where that can be."""
        self._transport = transport
        self._codec = codec
        self._standing = standing
        self._compute = transport.executor()
        self._detector = FailureDetector(transport.clock, transport.timing)
        self._failures = LeaderFailures()
        self._demotions = Demotions()
        self.laggards = Demotions()
        """Members that are not waited for."""
        self._verdicts = Verdicts()
        self._following: dict[Key, str] = {}
        self._lost: dict[Key, set[str]] = {}
        """Leaders that we have left, of rounds that we are making."""
        self._exchanges: dict[tuple[int, ModuleId], PieceExchange] = {}
        self.feedback = ErrorFeedback(codec, zeros)
        protocol = f"dipaco/1/{run}/round"
        sealed = self._verdicts.seals_of
        self._questions = Questions(transport, protocol, self._detector, standing, self._whom_we_follow, sealed)
        self._inquiry = Inquiry(transport, run, self._questions, standing)
        self._auditing = Auditing(transport, protocol, run, codec, self._compute, standing)
        self._lists = self._demotions, self.laggards, self._auditing.hidden
        awake = replace(standing, members_of=self._members_awake, lately=self._lately)
        waiting = Waiting(
            transport, awake, self._questions, self._detector, self.laggards, self._demoted, self._lost_of
        )
        lists = self.laggards, self._auditing.hidden
        self._leader = Leader(transport, norm_clip, awake, self._questions, waiting, self._inquiry, *lists)
        self._protocol = protocol
        self._follower = Follower(
            transport=transport,
            exchange_protocol=f"dipaco/1/{run}/exchange",
            compute=self._compute,
            codec=codec,
            norm_clip=norm_clip,
            feedback=self.feedback,
            standing=standing,
            detector=self._detector,
            questions=self._questions,
            entrance=Entrance(transport, protocol, self._detector, self._questions, self._leader, standing),
            inquiry=self._inquiry,
            auditing=self._auditing,
            failures=self._failures,
            demotions=self._demotions,
            laggards=self.laggards,
            verdicts=self._verdicts,
            following=self._following,
            exchanges=self._exchanges,
        )

    async def serve(self) -> None:
        await self._transport.serve(self._protocol, self._on_round_stream)
        await self._transport.serve(self._follower.exchange_protocol, self._on_exchange_stream)

    async def stop(self) -> None:
        await self._leader.stop()
        await self._inquiry.stop()
        await self._auditing.stop()
        self._compute.close()

    # ------------------------------------------------------------------------------------------------ a round of ours

    async def run(self, contribution: Contribution, patience: float) -> Outcome:
        """One round of one module, with as many leaders as it takes.

        Cancelled after the others have our part, it still returns, and says so.
        """
        norm = await self._compute.in_order(self._norm, contribution)
        if not norm <= MAX_NORM:
            return NotAgreed("our own outer gradient is not finite; training has diverged on this machine")
        for each in self._lists:
            each.round_took(patience)
        group = contribution.group
        key = (group.stage, group.module, contribution.version)
        self._lost[key] = set()
        try:
            return await self._run(contribution, norm, patience, self._lost[key])
        finally:
            del self._lost[key]

    async def _run(self, contribution: Contribution, norm: float, patience: float, lost: set[str]) -> Outcome:
        group = contribution.group
        started = self._transport.clock.monotonic()
        so_far = _Attempts(lost)
        while so_far.answered < MAX_ATTEMPTS:
            candidates = self._candidates(contribution, so_far)
            next_in_line = next_leader(candidates, group.stage, group.module, contribution.version)
            if next_in_line is None:
                break
            leader, so_far.sent_to = so_far.sent_to or next_in_line, None
            try:
                attempt = self._follower.follow(leader, contribution, norm, patience)
                outcome = await self._transport.border.guarded(leader, attempt, NotAgreed(MISTAKE))
            except asyncio.CancelledError:
                if not so_far.given:
                    raise
                outcome = NotAgreed("interrupted")
            if isinstance(outcome, MadeAgain):
                so_far.answered += 1
                so_far.reason = "one culprit after the other was found in it"
                continue
            if isinstance(outcome, Redirected):
                so_far.answered += 1
                if may_redirect(candidates, outcome.leader):
                    so_far.sent_to = outcome.leader
                    continue
                so_far.reason = "others wait for a leader that has gone away"
                leave, without = leader, so_far.waiting
            elif isinstance(outcome, NotAgreed):
                return replace(outcome, given=so_far.given or outcome.given)
            elif isinstance(outcome, LeaderLost):
                so_far.given = so_far.given or outcome.given
                so_far.reason = "the peer that led this round went away"
                so_far.answered += outcome.answered
                leave, without = outcome.leader, so_far.lost
            else:
                return outcome
            waited = self._transport.clock.monotonic() - started
            if group.whole and waited < patience and not self._detector.is_gone(leave):
                await asyncio.sleep(self._transport.timing.ask_again)  # it is only slow: to it again
            else:
                without.add(leave)
        return NotAgreed(so_far.reason, so_far.given)

    def progress(self, group: ModuleGroup) -> float:
        """How far the exchange of the group's round has come here, 0 to 1. From any thread."""
        exchange = self._exchanges.get((group.stage, group.module))
        return 0.0 if exchange is None else exchange.progress

    def _norm(self, contribution: Contribution) -> float:
        return claimed_norm(self._codec, contribution.gradient, self.feedback.left_over(contribution))

    def _candidates(self, contribution: Contribution, so_far: _Attempts) -> Candidates:
        stage, module, us = contribution.group.stage, contribution.group.module, self._transport.peer
        strange = self._standing.is_strange
        dialled = {*self._standing.leaders_of(stage, module)} | ({us} if self._transport.reachable else set())
        of_group = {us, *self._standing.members_of(stage, module)}
        now = self._transport.clock.monotonic()
        doubted = {peer for peer in dialled | of_group if self._detector.doubts(peer)}
        return Candidates(
            dialled=frozenset(dialled),
            of_group=frozenset(of_group),
            lost=frozenset(so_far.lost),
            waiting=frozenset(so_far.waiting),
            failed=self._failures.failed(stage, module, contribution.version, now),
            doubted=frozenset() if contribution.group.whole else frozenset(doubted),
            demoted=frozenset() if contribution.group.whole else self._demoted(now),
            strangers=frozenset() if contribution.group.whole else frozenset(filter(strange, dialled | of_group)),
        )

    def _demoted(self, now: float) -> frozenset[str]:
        """Who does not lead us: it has wasted rounds or keeps them waiting, or does not show what it has reduced."""
        return frozenset[str]().union(*(each.demoted(now) for each in self._lists))

    def _lost_of(self, key: Key) -> frozenset[str]:
        return frozenset(self._lost.get(key, ()))

    def waits_for(self, peer: str) -> bool:
        """Whether a peer has not kept rounds of ours waiting lately. From any thread."""
        return not self.laggards.is_demoted(peer, self._transport.clock.monotonic())

    def _members_awake(self, stage: int, module: ModuleId) -> list[str]:
        """Whom a gathering waits for: where it waits for everybody, also those who leave questions unanswered."""
        members = self._standing.members_of(stage, module)
        whole = self._standing.is_whole(stage, module)
        return [peer for peer in members if whole or not self._is_silent(peer)]

    def _is_silent(self, peer: str) -> bool:
        """Whether nobody waits for it just now. A stranger is asked once: there may be nobody behind that name."""
        strange = self._standing.is_strange(peer)
        return self._detector.was_silent(peer) if strange else self._detector.misses(peer)

    def _lately(self, stage: int, module: ModuleId) -> list[str]:
        """Who was there not long ago; strangers only where everybody is waited for."""
        lately, whole = self._standing.lately(stage, module), self._standing.is_whole(stage, module)
        return [peer for peer in lately if whole or not self._standing.is_strange(peer)]

    def _whom_we_follow(self, key: Key) -> str | None:
        # whom we have joined, also where others have joined us: they find each other there
        return self._following.get(key) or (self._transport.peer if self._leader.leads(key) else None)

    # ------------------------------------------------------------------------------------------------ asked by others

    async def _on_round_stream(self, stream: Stream) -> None:
        """A peer joins a round that we lead, asks where we are, or asks how a round ended."""
        self._detector.heard(stream.peer)
        async with asyncio.timeout(self._transport.timing.silence):
            message = await stream.receive()
        if not self._standing.allows(stream.peer) and not isinstance(message, Join):
            if isinstance(message, Where):  # calls nobody to a round, and need not wait for us
                await stream.send(Here(version=None, follows=None))
            return  # who joins is told why
        match message:
            case AskOutcome(round_id=round_id):
                await stream.send(self._verdicts.outcome_of(round_id))
            case AskSeals(round_id=round_id):
                await stream.send(SealsAre(seals=self._verdicts.seals_of(round_id)))
            case Proof():
                if not self._inquiry.convict([message]):
                    raise RemoteDataError(stream.peer, "accuses somebody of what it does not prove")
            case AskInputs():
                await self._auditing.showing.show(stream, message)
            case NotShown():
                await self._auditing.doubt(stream.peer, message)
            case Accusation():
                await self._auditing.accusing.hear(stream, message)
            case Where():
                await stream.send(self._questions.answer(stream.peer, message))
            case Join():
                answer = self._leader.admit(message, stream)
                if isinstance(answer, Refuse):
                    await stream.send(answer)
                else:
                    await answer.over.wait()
            case _:
                await stream.send(NotHere())
                raise RemoteDataError(stream.peer, f"opens a round with {type(message).__name__}")

    async def _on_exchange_stream(self, stream: Stream) -> None:
        """A member of a round sends us its contributions; its roster may have reached it before ours reached us."""
        async with asyncio.timeout(self._transport.timing.silence):
            message = await stream.receive()
            if not isinstance(message, Exchange):
                raise RemoteDataError(stream.peer, f"opens an exchange with {type(message).__name__}")
            exchange = await self._verdicts.exchange_of(message.round_id)
        stream.purpose = Purpose.ROUND
        if exchange is not None:
            await exchange.serve(stream)
