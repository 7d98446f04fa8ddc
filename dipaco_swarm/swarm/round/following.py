"""One attempt at a round, with one leader: join it, exchange pieces, hear the decision; or find that it is lost.

    member                              leader (itself a member, over a local channel)
      | -- Join -------------------------> |   the first Join opens the gathering; the leader asks where the missing are
      | <------------------------ Roster --|   closed when every live member is in, or patience is over
      |    exchange of pieces (exchange.py)|
      | <---------------------- Reassign --|   somebody is gone: stop waiting, his pieces get new reducers
      | -- Ready(digest of the average) -> |
      | <------------------------ Commit --|   everybody alive holds the same bytes
      |
      leader lost: ask the other members whether they committed. One did: so do we, for we hold the same bytes. Some
      hear it still: they are asked again, as long as they may commit. Nobody does: nobody ever will, and the next in
      line leads a new round of the same version.

Two sides of a partition may commit different averages for one version. That is noticed by the digests in the
announcements and healed above this floor (`algorithm/plan.py`).
"""

import asyncio
import contextlib
import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from dipaco_swarm.algorithm.paths import ModuleId
from dipaco_swarm.algorithm.plan import Claim
from dipaco_swarm.errors import RemoteDataError
from dipaco_swarm.swarm.encoded_average import EncodedAverage
from dipaco_swarm.swarm.fields import MAX_SECONDS, MAX_SPEED, at_most
from dipaco_swarm.swarm.interface import Agreed, Contribution, NotAgreed, Outcome
from dipaco_swarm.swarm.reduced import Reduced, ReducedPiece
from dipaco_swarm.swarm.round.attempt import LeaderLost, MadeAgain, Redirected
from dipaco_swarm.swarm.round.auditing import Auditing
from dipaco_swarm.swarm.round.candidates import (
    DEMOTED_AT,
    REFUSAL_SECONDS,
    STRANGERS,
    Demotions,
    LeaderFailures,
    voices,
    with_strangers,
)
from dipaco_swarm.swarm.round.channels import Channel, HeartbeatReader
from dipaco_swarm.swarm.round.codecs.codec import Codec
from dipaco_swarm.swarm.round.entrance import Entrance, NeverBeginsError
from dipaco_swarm.swarm.round.exchange import PieceExchange
from dipaco_swarm.swarm.round.failure_detector import FailureDetector
from dipaco_swarm.swarm.round.feedback import ErrorFeedback
from dipaco_swarm.swarm.round.inquiry import Inquiry
from dipaco_swarm.swarm.round.overdue import NeverEndsError, Overdue
from dipaco_swarm.swarm.round.questions import Questions
from dipaco_swarm.swarm.round.reducer import Shown
from dipaco_swarm.swarm.round.roster import laggards_of_most, our_index
from dipaco_swarm.swarm.round.seals import Subject
from dipaco_swarm.swarm.round.standing import Key, Member, Standing
from dipaco_swarm.swarm.round.verdicts import Verdicts
from dipaco_swarm.swarm.tasks import to_its_end
from dipaco_swarm.swarm.transport import Executor, Transport
from dipaco_swarm.swarm.wire import MAX_LAGGARDS, Abort, Commit, Join, Ready, Reassign, Refuse, Roster

log = logging.getLogger(__name__)
MISTAKE = "a mistake in this program ended it here"

Decision = Commit | Abort | NotAgreed | LeaderLost


@dataclass(frozen=True, eq=False)
class Follower:
    """A member of rounds. Its parts belong to all rounds of the peer."""

    transport: Transport
    exchange_protocol: str
    compute: Executor
    codec: Codec
    norm_clip: float
    feedback: ErrorFeedback
    standing: Standing
    detector: FailureDetector
    questions: Questions
    entrance: Entrance
    inquiry: Inquiry
    auditing: Auditing
    failures: LeaderFailures
    demotions: Demotions
    """Of leaders."""
    laggards: Demotions
    """Of members."""
    verdicts: Verdicts
    following: dict[Key, str]
    """With whom we wait for which round; others are told of it."""
    exchanges: dict[tuple[int, ModuleId], PieceExchange]
    """Those that are going on, by stage and module: how far they are is shown."""

    async def follow(
        self, leader: str, contribution: Contribution, norm: float, patience: float
    ) -> Outcome | LeaderLost | Redirected | MadeAgain:
        """From the first word to the outcome. `norm`: length of the outer gradient, as it is claimed."""
        group = contribution.group
        join = Join(
            stage=group.stage,
            module=str(group.module),
            version=contribution.version,
            digest=contribution.digest,
            work=contribution.work,
            path=contribution.path,
            tokens=contribution.tokens,
            norm=norm,
            decay=contribution.decay,
            doubts=contribution.doubts,
            laggards=tuple(peer for peer in self.laggards.found(self._now()) if peer != STRANGERS)[:MAX_LAGGARDS],
            parameters=len(contribution.gradient),
            nonce=self.transport.random.randbytes(16),
            reduces=self.transport.reachable,
            uplink=at_most(MAX_SPEED, self.transport.meter.uplink),
            patience=at_most(MAX_SECONDS, patience),
        )
        answered, began, points = False, self._now(), 2
        outcome: Outcome | LeaderLost | MadeAgain | None = None
        key = (group.stage, group.module, contribution.version)
        self.following[key] = leader
        try:
            async with self.entrance.channel_to(leader, join, whole=group.whole) as channel:
                answered, joined = True, self._now()
                ears = self.entrance.ears(channel, join, contribution)
                message = await self.entrance.until_gathered(channel, ears, join)
                if isinstance(message, Refuse):
                    return await self._refused(message, channel.peer, contribution)
                if not isinstance(message, Roster):
                    raise RemoteDataError(leader, f"sends {type(message).__name__} instead of a roster")
                outcome = await self._take_part(channel, ears, message, join, contribution)
                if isinstance(outcome, Agreed):
                    self.demotions.forgive(STRANGERS if self.standing.is_strange(leader) else leader)
                    return replace(outcome, seconds=self._now() - joined)
                if not isinstance(outcome, LeaderLost):
                    return outcome
        except (ConnectionError, EOFError, TimeoutError) as error:
            log.debug("leader %s lost: %s", leader[-8:], error)
            points = DEMOTED_AT if isinstance(error, NeverBeginsError) else points
            if not answered:
                self.detector.silent(leader, began, error)
        except RemoteDataError as error:
            self.transport.border.note(error, "ignored a leader")
        finally:
            self.following.pop(key, None)
        if answered and leader != self.transport.peer:
            self._wasted(leader, points)
        return outcome if isinstance(outcome, LeaderLost) else LeaderLost(leader, answered)

    def _wasted(self, leader: str, points: int) -> None:
        """A round of this leader has come to nothing. If strangers go on with that, nobody is sent to another one."""
        self.demotions.note(leader, self._now(), points)
        if self.standing.is_strange(leader):
            self.demotions.note(STRANGERS, self._now(), max(2, points))

    async def _refused(self, message: Refuse, leader: str, contribution: Contribution) -> NotAgreed | Redirected:
        stage, module, version = contribution.group.stage, contribution.group.module, contribution.version
        if message.leader not in (None, leader):
            return Redirected(message.leader)
        if message.digest is None:
            forgiven = self._now() + REFUSAL_SECONDS if contribution.group.whole else math.inf
            self.failures.note(stage, module, version, leader, until=forgiven)
            if self.standing.is_strange(leader):
                self.demotions.note(STRANGERS, self._now(), 2)
        else:
            claim, ours = Claim(message.version, message.digest, message.work), Claim.of(contribution)
            # who has said so before, and we are where we were: nobody has sent us that state
            again = self.demotions.sent_from(leader, ours.digest)
            if again or not self.standing.is_believed(stage, module, ours, claim):
                self._wasted(leader, 2 if again else 1)
            if message.holder in (None, leader):
                self.standing.heard(leader, stage, module, Member(int(contribution.path), claim))
            else:  # its own word counts, and not what somebody says in its name
                await self.questions.where(message.holder, (stage, module, version), ours)
        return NotAgreed(message.reason)

    # ------------------------------------------------------------------------------------------------ until a decision

    async def _take_part(
        self, channel: Channel, ears: HeartbeatReader, roster: Roster, join: Join, contribution: Contribution
    ) -> Outcome | LeaderLost | MadeAgain:
        """From the roster to the outcome."""
        group = contribution.group
        me = our_index(roster, join, self.transport.peer, group, self.norm_clip, channel.peer)
        residual = await self.compute.aside(self.feedback.room_for, contribution)
        exchange = PieceExchange(
            self.transport,
            self.exchange_protocol,
            self.compute,
            roster,
            Subject.of(self.inquiry.run, group.stage, group.module, join.version, roster),
            me,
            group,
            self.codec,
            contribution.gradient,
            self.feedback.left_over(contribution),
            residual,
        )
        let_in = {member.peer for member in roster.members if self.standing.allows(member.peer)}
        self.standing.seat(let_in)
        if not group.whole:  # a leader waits for itself, whatever all others know of it
            waived = with_strangers(self.laggards.demoted(self._now()), let_in, self.standing.is_strange)
            exchange.waive({i for i, member in enumerate(roster.members) if member.peer in waived})
        outcome: Decision
        try:
            size = self.codec.most_bytes(join.parameters)
            overdue = Overdue(self._now(), join.patience, size, self.transport.timing, whole=group.whole)
            for member in roster.members:  # our leader may not have heard of it
                if (proof := self.standing.proof_of(member.peer)) is not None:
                    await channel.send(proof)
            self.auditing.accusing.show(channel.peer, [member.peer for member in roster.members])
            outcome = await self.transport.border.guarded(
                channel.peer, self._exchange_until_decided(channel, ears, exchange, overdue), NotAgreed(MISTAKE)
            )
        except asyncio.CancelledError:
            outcome = NotAgreed("interrupted")
        except RemoteDataError as error:
            self.transport.border.note(error, "ignored a leader")
            outcome = LeaderLost(channel.peer, answered=True)
        await to_its_end(self.auditing.showing.keep(exchange, group, len(contribution.gradient)))
        if isinstance(outcome, Abort):
            self.inquiry.convict(outcome.proofs)
            culprits = {proof.reducer for proof in outcome.proofs if not self.standing.allows(proof.reducer)}
            if culprits & let_in or (not outcome.others_go_on and await self.inquiry.look_into(exchange)):
                return MadeAgain()
            self.failures.note(group.stage, group.module, join.version, channel.peer)
            if not outcome.others_go_on and channel.peer != self.transport.peer:
                self._wasted(channel.peer, 1)
            return NotAgreed(outcome.reason, given=outcome.others_go_on and exchange.given)
        if not isinstance(outcome, Commit):
            return replace(outcome, given=exchange.given)
        await to_its_end(self.auditing.check(exchange))
        known = {self.transport.peer, *self.standing.known_of(group.stage, group.module)}
        for laggard in laggards_of_most(roster, known, exchange.attested()) - {self.transport.peer}:
            self.laggards.believe(laggard, self._now())
        if residual is not None:
            self.feedback.keep(contribution, residual)
        agreed = _agreed(exchange, contribution, self.codec.name, self.auditing.showing.made(roster.round_id))
        # a round that does not wait for somebody does not show that it is in time, as a reducer least of all
        awaited = {member.peer for member in roster.members if member.awaited}
        for peer in awaited & {*agreed.contributors} - {*agreed.left_out} - exchange.blamed:
            self.laggards.forgive(peer)
        return agreed

    async def _exchange_until_decided(
        self, channel: Channel, ears: HeartbeatReader, exchange: PieceExchange, overdue: Overdue
    ) -> Decision:
        """The exchange works and others find it until there is a decision."""
        stage, module, _ = exchange.average.about.key
        async with self.verdicts.round_of(exchange):
            self.exchanges[stage, module] = exchange
            work = asyncio.create_task(exchange.run())
            decision = asyncio.create_task(self._until_decided(channel, ears, exchange, overdue))
            try:
                await self.verdicts.say_started(exchange)
                await asyncio.wait({work, decision}, return_when=asyncio.FIRST_COMPLETED)
                if not decision.done():
                    work.result()  # a bug in the exchange shows here, instead of hanging the round
                return decision.result()
            finally:
                self.exchanges.pop((stage, module), None)
                work.cancel()
                decision.cancel()
                await asyncio.gather(work, decision, return_exceptions=True)
                del work, decision  # an error of theirs holds this frame, and with it the exchange

    async def _until_decided(
        self, channel: Channel, ears: HeartbeatReader, exchange: PieceExchange, overdue: Overdue
    ) -> Decision:
        """Keep the leader informed until it decides; when it is lost, ask the others."""
        reporter = asyncio.create_task(_report(channel, exchange, self.transport.timing.pulse))
        try:
            while True:
                message = await ears.hear()
                if isinstance(message, Reassign):
                    exchange.reassign(message)
                    _note_blame(
                        message, exchange, self.transport.peer, self.laggards, self.standing.is_strange, self._now()
                    )
                elif isinstance(message, Abort):
                    return message
                elif isinstance(message, Commit):
                    return self.verdicts.take(message, exchange)
                overdue.check(self._now(), exchange.moved)
        except (EOFError, TimeoutError, ConnectionError) as error:
            if isinstance(error, NeverEndsError):  # worse than to be lost
                self.demotions.note(channel.peer, self._now())
            # while we ask about, nobody should be sent to a leader that is lost
            self.following.pop(exchange.average.about.key, None)
            return await self._outcome_without_leader(channel.peer, exchange)
        finally:
            reporter.cancel()
            await asyncio.gather(reporter, return_exceptions=True)

    async def _outcome_without_leader(self, leader: str, exchange: PieceExchange) -> Commit | NotAgreed | LeaderLost:
        """The leader is lost. If any other member committed, we do too.

        Some may hear it still: while they and the leader could be half of those who decide (`decision.py`), they may
        commit without us.
        """
        roster, lost = exchange.roster, self._now()
        self.verdicts.give_up(roster.round_id)
        members = {member.peer for member in roster.members}
        others, decide = sorted(members - {leader, self.transport.peer}), voices(members, self.standing.is_strange)
        while True:
            answers = await asyncio.gather(*(self.questions.outcome(peer, roster.round_id) for peer in others))
            for answer in answers:
                if answer is not None and answer.commit is not None:
                    return self.verdicts.take_of_member(answer.commit, exchange)
            said = {peer: answer for peer, answer in zip(others, answers, strict=True) if answer is not None}
            undecided = sum(answer.undecided for peer, answer in said.items() if peer in decide)
            may_commit, timing = 2 * (undecided + 1) >= len(decide), self.transport.timing
            if not undecided or self._now() - lost > (timing.leader_grace if may_commit else timing.answer):
                return LeaderLost(leader, answered=True)
            await asyncio.sleep(timing.ask_again)

    def _now(self) -> float:
        return self.transport.clock.monotonic()


def _note_blame(
    order: Reassign,
    exchange: PieceExchange,
    us: str,
    laggards: Demotions,
    is_strange: Callable[[str], bool],
    now: float,
) -> None:
    """Some have kept us waiting. Who is in time in the next round is forgiven, so one leader's word is not much."""
    members = {member.peer for member in exchange.roster.members}
    among, late = voices(members, is_strange), {*order.late}
    if 2 * len(among & late) > len(among):  # it may be its own line
        return
    for names, points in (late, 2), ({*order.apart}, 1):
        for peer in (members & names) - exchange.blamed - {us}:
            exchange.blamed.add(peer)
            laggards.note(peer, now, points)
    if members & late - among:
        laggards.note(STRANGERS, now, 2)


def _agreed(exchange: PieceExchange, contribution: Contribution, codec: str, ours: Mapping[int, Shown]) -> Agreed:
    """The round is committed: what its members have now. `ours`: the pieces that we have made."""
    average, members = exchange.average, exchange.roster.members
    tokens = average.tokens()
    encoded = EncodedAverage(
        base=contribution.digest,
        work=sum(tokens.values()),
        spans=average.spans(),
        codec=codec,
        parameters=len(contribution.gradient),
        piece_parameters=exchange.roster.piece_parameters,
        pieces=average.pieces(),
    )
    return Agreed(
        encoded=encoded,
        contributors=average.contributors(),
        tokens=tokens,
        left_out=average.left_out(),
        bytes_sent=exchange.bytes_sent,
        bytes_received=exchange.bytes_received,
        reduced=Reduced(
            codec,
            scales={member.peer: member.scale for member in members},
            tokens={member.peer: member.tokens for member in members},
            pieces=[
                ReducedPiece(*average.bounds(piece), {members[i].peer: given.data for i, given in made.inputs.items()})
                for piece, made in sorted(ours.items())
            ],
        ),
    )


async def _report(channel: Channel, exchange: PieceExchange, pulse: float) -> None:
    """Tell the leader that we are alive and, whenever all averages are here, that we are ready."""
    said: int | None = None
    with contextlib.suppress(ConnectionError):  # the reader of the same channel sees its end
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pulse):
                    if said == exchange.generation:
                        await asyncio.Event().wait()
                    await exchange.average.complete.wait()
            if exchange.average.complete.is_set() and said != exchange.generation:
                said = exchange.generation
                await channel.send(Ready(generation=said, digest=exchange.average.digest()))
            else:
                await channel.send(exchange.report())
