"""One attempt at a round, with one leader: join it, exchange pieces, hear the decision; or find that it is lost.

    member                              leader (itself a member, over a local channel)
      | -- Join -------------------------> |   the first Join opens the gathering; the leader asks where the missing are
      | <------------------------ Roster --|   closed when every live member is in, or patience is over
      |    exchange of pieces (exchange.py)|
      | <---------------------- Reassign --|   somebody is gone: stop waiting, his pieces get new reducers
      | -- Ready(digest of the average) -> |
      | <------------------------ Commit --|   everybody alive holds the same bytes
      |
      leader lost: ask the other members whether they committed. One did: so do we, for we hold the same bytes. Nobody
      did: nobody ever will (asking forbids it), and the next in line leads a new round of the same version.

Two sides of a partition may commit different averages for one version. That is noticed by the digests in the
announcements and healed above this floor (`algorithm/plan.py`).
"""

import asyncio
import contextlib
import logging
import math
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from functools import partial

from dipaco_swarm.algorithm.paths import ModuleId
from dipaco_swarm.algorithm.plan import Claim
from dipaco_swarm.errors import RemoteDataError
from dipaco_swarm.swarm.encoded_average import EncodedAverage
from dipaco_swarm.swarm.fields import MAX_SECONDS, MAX_SPEED, Message, at_most
from dipaco_swarm.swarm.interface import Agreed, Contribution, NotAgreed, Outcome
from dipaco_swarm.swarm.round.candidates import REFUSAL_SECONDS, Demotions, LeaderFailures
from dipaco_swarm.swarm.round.channels import Channel, HeartbeatReader, LocalChannel
from dipaco_swarm.swarm.round.codecs.codec import Codec
from dipaco_swarm.swarm.round.exchange import PieceExchange
from dipaco_swarm.swarm.round.failure_detector import FailureDetector
from dipaco_swarm.swarm.round.feedback import ErrorFeedback
from dipaco_swarm.swarm.round.leader import Leader
from dipaco_swarm.swarm.round.questions import Questions
from dipaco_swarm.swarm.round.roster import our_index
from dipaco_swarm.swarm.round.standing import Key, Member, Standing
from dipaco_swarm.swarm.round.verdicts import Verdicts
from dipaco_swarm.swarm.transport import Executor, Transport
from dipaco_swarm.swarm.wire import Abort, Alive, Commit, Join, Ready, Reassign, Refuse, Roster

log = logging.getLogger(__name__)

MISTAKE = "a mistake in this program ended it here"


@dataclass(frozen=True)
class LeaderLost:
    """The leader went away before it decided; nobody is known to have committed."""

    leader: str
    answered: bool
    """False: it could not be reached at all, which costs next to nothing."""
    given: bool = False
    """Whether the others may have our outer gradient."""


@dataclass(frozen=True)
class Redirected:
    """The leader knows of another that gathers the same round."""

    leader: str


Decision = Commit | Abort | NotAgreed | LeaderLost


@dataclass(frozen=True, eq=False)
class Follower:
    """A member of rounds. Its parts belong to all rounds of the peer."""

    transport: Transport
    round_protocol: str
    exchange_protocol: str
    compute: Executor
    codec: Codec
    norm_clip: float
    feedback: ErrorFeedback
    standing: Standing
    detector: FailureDetector
    questions: Questions
    leader: Leader
    failures: LeaderFailures
    demotions: Demotions
    verdicts: Verdicts
    following: dict[Key, str]
    """With whom we wait for which round; others are told of it."""
    exchanges: dict[tuple[int, ModuleId], PieceExchange]
    """Those that are going on, by stage and module: how far they are is shown."""

    async def follow(
        self, leader: str, contribution: Contribution, norm: float, patience: float
    ) -> Outcome | LeaderLost | Redirected:
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
            parameters=len(contribution.gradient),
            reduces=self.transport.reachable,
            uplink=at_most(MAX_SPEED, self.transport.meter.uplink),
            patience=at_most(MAX_SECONDS, patience),
        )
        answered, began = False, self._now()
        outcome: Outcome | LeaderLost | None = None
        key = (group.stage, group.module, contribution.version)
        self.following[key] = leader
        try:
            async with self._channel_to(leader, join, whole=group.whole) as channel:
                answered, joined = True, self._now()
                ears = self._ears(channel, join, contribution)
                message = await self._until_gathered(channel, ears, join)
                if isinstance(message, Refuse):
                    return await self._refused(message, channel.peer, contribution)
                if not isinstance(message, Roster):
                    raise RemoteDataError(leader, f"sends {type(message).__name__} instead of a roster")
                outcome = await self._take_part(channel, ears, message, join, contribution)
                if isinstance(outcome, Agreed):
                    self.demotions.forgive(leader)
                    return replace(outcome, seconds=self._now() - joined)
                if not isinstance(outcome, LeaderLost):
                    return outcome
        except (ConnectionError, EOFError, TimeoutError) as error:
            log.debug("leader %s lost: %s", leader[-8:], error)
            if not answered:
                self.detector.silent(leader, began, error)
        except RemoteDataError as error:
            self.transport.border.note(error, "ignored a leader")
        finally:
            self.following.pop(key, None)
        if answered and leader != self.transport.peer:
            self.demotions.note(leader, self._now(), 2)
        return outcome if isinstance(outcome, LeaderLost) else LeaderLost(leader, answered)

    # -------------------------------------------------------------------------------------------------- until a roster

    @contextlib.asynccontextmanager
    async def _channel_to(self, leader: str, join: Join, *, whole: bool) -> AsyncIterator[Channel]:
        us = self.transport.peer
        if leader != us:
            patience = self.transport.timing.max_answer if whole else self.detector.allowed(leader)
            async with self.transport.dial(leader, self.round_protocol, timeout=patience) as stream:
                await stream.send(join)
                yield stream
            return
        ours, theirs = LocalChannel.pair(us)
        answer = self.leader.admit(join, theirs)
        if isinstance(answer, Refuse):
            await theirs.send(answer)
        try:
            yield ours
        finally:
            ours.close()

    def _ears(self, channel: Channel, join: Join, contribution: Contribution) -> HeartbeatReader:
        """How we hear our leader; in a round that waits for everybody, silence is asked about."""
        if not contribution.group.whole:
            return HeartbeatReader(channel, self.transport.clock, self.transport.timing)
        key = join.stage, contribution.group.module, join.version
        ask = partial(self.questions.is_there, channel.peer, key, Claim.of(join))
        return HeartbeatReader(channel, self.transport.clock, self.transport.timing, ask, join.patience)

    async def _until_gathered(self, channel: Channel, ears: HeartbeatReader, join: Join) -> Message:
        """What the leader says when it has waited for the others: a roster, or why there is none."""
        message = await self._first_word(ears, channel.peer)
        async with asyncio.timeout(3 * join.patience + self.transport.timing.silence):
            while isinstance(message, Alive):
                await channel.send(Alive())
                message = await ears.hear()
        return message

    async def _first_word(self, ears: HeartbeatReader, leader: str) -> Message:
        """A leader that is awake says at once that it is; libp2p opens streams to those who sleep as well."""
        if leader == self.transport.peer or ears.patience:
            message = await ears.hear()
            self.detector.heard(leader)
            return message
        asked = self._now()
        try:
            async with asyncio.timeout(self.detector.allowed(leader)):
                message = await ears.hear()
        except TimeoutError:
            self.detector.silent(leader, asked)
            raise
        self.detector.answered(leader, self._now() - asked)
        return message

    async def _refused(self, message: Refuse, leader: str, contribution: Contribution) -> NotAgreed | Redirected:
        stage, module, version = contribution.group.stage, contribution.group.module, contribution.version
        if message.leader not in (None, leader):
            return Redirected(message.leader)
        if message.digest is None:
            forgiven = self._now() + REFUSAL_SECONDS if contribution.group.whole else math.inf
            self.failures.note(stage, module, version, leader, until=forgiven)
        else:
            claim, ours = Claim(message.version, message.digest, message.work), Claim.of(contribution)
            believed = self.standing.is_believed(stage, module, ours, claim)
            # who has said so before, and we are where we were: nobody has sent us that state
            if self.demotions.sent_from(leader, ours.digest) or not believed:
                self.demotions.note(leader, self._now())
            if message.holder in (None, leader):
                self.standing.heard(leader, stage, module, Member(int(contribution.path), claim))
            else:  # its own word counts, and not what somebody says in its name
                await self.questions.where(message.holder, (stage, module, version), ours)
        return NotAgreed(message.reason)

    # ------------------------------------------------------------------------------------------------ until a decision

    async def _take_part(
        self, channel: Channel, ears: HeartbeatReader, roster: Roster, join: Join, contribution: Contribution
    ) -> Outcome | LeaderLost:
        """From the roster to the outcome."""
        group = contribution.group
        me = our_index(roster, join, self.transport.peer, group, self.norm_clip, channel.peer)
        residual = self.feedback.room_for(contribution)
        exchange = PieceExchange(
            self.transport,
            self.exchange_protocol,
            self.compute,
            roster,
            me,
            group,
            self.codec,
            contribution.gradient,
            self.feedback.left_over(contribution),
            residual,
        )
        outcome: Decision
        try:
            key = group.stage, group.module, join.version
            outcome = await self.transport.border.guarded(
                channel.peer, self._exchange_until_decided(channel, ears, exchange, key), NotAgreed(MISTAKE)
            )
        except asyncio.CancelledError:
            outcome = NotAgreed("interrupted")
        except RemoteDataError as error:
            self.transport.border.note(error, "ignored a leader")
            outcome = LeaderLost(channel.peer, answered=True)
        if isinstance(outcome, Abort):
            self.failures.note(group.stage, group.module, join.version, channel.peer)
            return NotAgreed(outcome.reason, given=outcome.others_go_on and exchange.given)
        if not isinstance(outcome, Commit):
            return replace(outcome, given=exchange.given)
        if residual is not None:
            self.feedback.keep(contribution, residual)
        return _agreed(exchange, contribution, self.codec.name)

    async def _exchange_until_decided(
        self, channel: Channel, ears: HeartbeatReader, exchange: PieceExchange, key: Key
    ) -> Decision:
        """The exchange works and others find it until there is a decision."""
        stage, module, _ = key
        async with self.verdicts.round_of(exchange):
            self.exchanges[stage, module] = exchange
            work = asyncio.create_task(exchange.run())
            decision = asyncio.create_task(self._until_decided(channel, ears, exchange, key))
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
        self, channel: Channel, ears: HeartbeatReader, exchange: PieceExchange, key: Key
    ) -> Decision:
        """Keep the leader informed until it decides; when it is lost, ask the others."""
        reporter = asyncio.create_task(_report(channel, exchange, self.transport.timing.pulse))
        began, ready_at = self._now(), float("inf")
        try:
            while True:
                message = await ears.hear()
                if isinstance(message, Reassign):
                    exchange.reassign(message)
                elif isinstance(message, Abort):
                    return message
                elif isinstance(message, Commit):
                    return self.verdicts.take(message, exchange)
                now = self._now()
                ready_at = min(ready_at, now) if exchange.average.complete.is_set() else float("inf")
                if now - ready_at > max(10 * (ready_at - began) + self.transport.timing.leader_grace, ears.patience):
                    raise TimeoutError  # alive, and decides nothing
        except (EOFError, TimeoutError, ConnectionError):
            # while we ask about, nobody should be sent to a leader that is lost
            self.following.pop(key, None)
            return await self._outcome_without_leader(channel.peer, exchange)
        finally:
            reporter.cancel()
            await asyncio.gather(reporter, return_exceptions=True)

    async def _outcome_without_leader(self, leader: str, exchange: PieceExchange) -> Commit | NotAgreed | LeaderLost:
        """The leader is lost. If any other member committed, we do too; if none did, none of us ever will."""
        round_id = exchange.roster.round_id
        self.verdicts.give_up(round_id)
        others = [m.peer for m in exchange.roster.members if m.peer not in (leader, self.transport.peer)]
        answers = await asyncio.gather(*(self.questions.outcome(peer, round_id) for peer in others))
        for commit in answers:
            if commit is not None:
                return self.verdicts.take_of_member(commit, exchange)
        return LeaderLost(leader, answered=True)

    def _now(self) -> float:
        return self.transport.clock.monotonic()


def _agreed(exchange: PieceExchange, contribution: Contribution, codec: str) -> Agreed:
    """The round is committed: what its members have now."""
    average = exchange.average
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
