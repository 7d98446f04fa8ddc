"""A round of one module on one peer: gather, exchange, agree, commit; and what to do when somebody is lost.

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
from collections import Counter, deque
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from functools import partial

from dipaco_swarm.algorithm.paths import ModuleId
from dipaco_swarm.algorithm.plan import Claim
from dipaco_swarm.errors import RemoteDataError
from dipaco_swarm.swarm.interface import Agreed, Contribution, NotAgreed, Outcome, PeerName
from dipaco_swarm.swarm.round.candidates import LEADER_FAILURES, Candidates, may_redirect, next_leader
from dipaco_swarm.swarm.round.channels import Channel, HeartbeatReader, LocalChannel
from dipaco_swarm.swarm.round.codecs.codec import Codec
from dipaco_swarm.swarm.round.exchange import PieceExchange
from dipaco_swarm.swarm.round.failure_detector import FailureDetector
from dipaco_swarm.swarm.round.feedback import ErrorFeedback
from dipaco_swarm.swarm.round.leader import Key, Leader, Member, Standing
from dipaco_swarm.swarm.round.reduction import claimed_norm, leader_order
from dipaco_swarm.swarm.round.roster import our_index
from dipaco_swarm.swarm.transport import Stream, Transport
from dipaco_swarm.swarm.wire import (
    Abort,
    Alive,
    AskOutcome,
    Commit,
    Exchange,
    Here,
    Join,
    Message,
    NotHere,
    OutcomeIs,
    Ready,
    Reassign,
    Refuse,
    Roster,
    Where,
)

log = logging.getLogger(__name__)

MAX_ATTEMPTS = 6
REMEMBERED_ROUNDS = 64


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
    """The leader knows of one who comes first and gathers the same round."""

    leader: str


class Rounds:
    """All rounds of one peer, led and followed."""

    def __init__(self, transport: Transport, run: str, codec: Codec, norm_clip: float, standing: Standing) -> None:
        self._transport = transport
        self._clock = transport.clock
        self._timing = transport.timing
        self._peer = transport.peer
        self._round_protocol = f"dipaco/1/{run}/round"
        self._exchange_protocol = f"dipaco/1/{run}/exchange"
        self._codec = codec
        self._norm_clip = norm_clip
        self._standing = standing
        self._detector = FailureDetector(transport.clock, transport.timing)
        awake = replace(standing, members_of=self._members_awake)
        self._leader = Leader(transport, norm_clip, awake, self._where, self._detector.is_gone)
        self._compute = transport.executor()
        self._exchanges: dict[bytes, PieceExchange] = {}
        self._exchange_opened = asyncio.Condition()
        self._commits: dict[bytes, Commit] = {}
        self._given_up: set[bytes] = set()
        """Rounds in progress that we promised somebody not to commit any more."""
        self._given_up_early: deque[bytes] = deque(maxlen=REMEMBERED_ROUNDS)
        """The same of rounds that we had not heard of when we were asked."""
        self.feedback = ErrorFeedback(codec)
        self._following: dict[Key, str] = {}
        self._failures: dict[tuple[int, ModuleId], tuple[int, Counter[str]]] = {}
        """Version, and how often each leader refused or aborted its round."""

    async def serve(self) -> None:
        await self._transport.serve(self._round_protocol, self._on_round_stream)
        await self._transport.serve(self._exchange_protocol, self._on_exchange_stream)

    async def stop(self) -> None:
        await self._leader.stop()
        self._compute.close()

    # -------------------------------------------------------------------------------------------------- as a member

    async def run(self, contribution: Contribution, patience: float) -> Outcome:
        """One round of one module, with as many leaders as it takes.

        Cancelled after the others have our part, it still returns, and says so.
        """
        norm = await self._compute.in_order(self._norm, contribution)
        if not norm < float("inf"):
            return NotAgreed("our own outer gradient is not finite; training has diverged on this machine")
        group = contribution.group
        started = self._clock.monotonic()
        lost: set[str] = set()
        reason = "nobody of the group can be reached from here"
        attempts, given = 0, False
        sent_to: str | None = None
        while attempts < MAX_ATTEMPTS:
            candidates = self._candidates(contribution, lost)
            next_in_line = next_leader(candidates, group.stage, group.module, contribution.version)
            if next_in_line is None:
                break
            leader = sent_to or next_in_line
            sent_to = None
            try:
                outcome = await self._follow(leader, contribution, norm, patience)
            except asyncio.CancelledError:
                if not given:
                    raise
                outcome = NotAgreed("interrupted")
            if isinstance(outcome, Redirected):
                attempts += 1
                if may_redirect(candidates, outcome.leader):
                    sent_to = outcome.leader
                    continue
                outcome = LeaderLost(leader, answered=True)
            if isinstance(outcome, NotAgreed):
                return replace(outcome, given=given or outcome.given)
            if not isinstance(outcome, LeaderLost):
                return outcome
            given = given or outcome.given
            reason = "the peer that led this round went away"
            attempts += outcome.answered
            waited = self._clock.monotonic() - started
            if group.whole and waited < patience and not self._detector.is_gone(outcome.leader):
                await asyncio.sleep(self._timing.ask_again)  # it is only slow: to it again
            else:
                lost.add(outcome.leader)
        return NotAgreed(reason, given)

    def _candidates(self, contribution: Contribution, lost: set[str]) -> Candidates:
        stage, module, whole = contribution.group.stage, contribution.group.module, contribution.group.whole
        dialled = {*self._standing.leaders_of(stage, module)} | ({self._peer} if self._transport.reachable else set())
        of_group = {self._peer, *self._standing.members_of(stage, module)}
        failures = self._failures_of(contribution)
        return Candidates(
            dialled=frozenset(dialled),
            of_group=frozenset(of_group),
            lost=frozenset(lost),
            failed=frozenset(peer for peer, count in failures.items() if count >= LEADER_FAILURES),
            doubted=frozenset(peer for peer in dialled | of_group if not whole and self._detector.doubts(peer)),
        )

    def _is_whole(self, stage: int, module: ModuleId) -> bool:
        group = self._standing.group_of(stage, module)
        return group is not None and group.whole

    def _members_awake(self, stage: int, module: ModuleId) -> list[str]:
        members = self._standing.members_of(stage, module)
        if self._is_whole(stage, module):
            return list(members)
        return [peer for peer in members if not self._detector.misses(peer)]

    def _norm(self, contribution: Contribution) -> float:
        return claimed_norm(self._codec, contribution.gradient, self.feedback.left_over(contribution))

    def _failures_of(self, contribution: Contribution) -> Counter[str]:
        about = (contribution.group.stage, contribution.group.module)
        version, failures = self._failures.get(about, (-1, Counter()))
        if version != contribution.version:
            failures = Counter()
            self._failures[about] = contribution.version, failures
        return failures

    async def _follow(
        self, leader: str, contribution: Contribution, norm: float, patience: float
    ) -> Outcome | LeaderLost | Redirected:
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
            reduces=self._transport.reachable,
            uplink=self._transport.meter.uplink,
            patience=patience,
        )
        answered, began = False, self._clock.monotonic()
        key = (group.stage, group.module, contribution.version)
        self._following[key] = leader
        try:
            async with self._channel_to(leader, join) as channel:
                answered = True
                return await self._take_part(channel, join, contribution)
        except (ConnectionError, EOFError, TimeoutError) as error:
            log.debug("leader %s lost: %s", leader[-8:], error)
            if not answered:
                self._detector.silent(leader, began, error)
        except RemoteDataError as error:
            log.warning("ignored a leader that broke the protocol: %s", error)
        finally:
            self._following.pop(key, None)
        return LeaderLost(leader, answered)

    @contextlib.asynccontextmanager
    async def _channel_to(self, leader: str, join: Join) -> AsyncIterator[Channel]:
        if leader != self._peer:
            whole = self._is_whole(join.stage, ModuleId.parse(join.module))
            patience = self._timing.max_answer if whole else self._detector.allowed(leader)
            async with self._transport.dial(leader, self._round_protocol, timeout=patience) as stream:
                await stream.send(join)
                yield stream
            return
        ours, theirs = LocalChannel.pair(self._peer)
        answer = self._leader.admit(join, theirs)
        if isinstance(answer, Refuse):
            await theirs.send(answer)
        try:
            yield ours
        finally:
            ours.close()

    async def _take_part(
        self, channel: Channel, join: Join, contribution: Contribution
    ) -> Outcome | LeaderLost | Redirected:
        """From Join to the outcome, as a member."""
        started = self._clock.monotonic()
        ears = self._ears(channel, join, contribution)
        message = await self._first_word(ears, channel.peer)
        async with asyncio.timeout(3 * join.patience + self._timing.leader_grace):
            while isinstance(message, Alive):
                await channel.send(Alive())
                message = await ears.hear()
        if isinstance(message, Refuse) and message.leader is not None:
            order = leader_order(join.stage, contribution.group.module, join.version, [channel.peer, message.leader])
            if order[0] == message.leader:  # which also ends the chase
                return Redirected(message.leader)
        if isinstance(message, Refuse):
            if message.digest is None:
                self._failures_of(contribution)[channel.peer] += 1
            else:
                claim = Claim(message.version, message.digest, message.work)
                there = Member(int(contribution.path), claim)
                self._standing.heard(message.holder or channel.peer, join.stage, contribution.group.module, there)
            return NotAgreed(message.reason)
        if not isinstance(message, Roster):
            raise RemoteDataError(channel.peer, f"sends {type(message).__name__} instead of a roster")
        me = our_index(message, join, self._peer, contribution.group, self._norm_clip, channel.peer)
        key = (join.stage, contribution.group.module, join.version)
        residual = self.feedback.room_for(contribution)
        exchange = PieceExchange(
            self._transport,
            self._exchange_protocol,
            self._compute,
            message,
            me,
            contribution.group,
            self._codec,
            contribution.gradient,
            self.feedback.left_over(contribution),
            residual,
        )
        outcome: Commit | Abort | NotAgreed | LeaderLost
        try:
            outcome = await self._exchange_until_decided(channel, ears, exchange, key)
        except asyncio.CancelledError:
            outcome = NotAgreed("interrupted")
        except RemoteDataError as error:
            log.warning("ignored a leader that broke the protocol: %s", error)
            outcome = LeaderLost(channel.peer, answered=True)
        if isinstance(outcome, Abort):
            self._failures_of(contribution)[channel.peer] += 1
            return NotAgreed(outcome.reason, given=outcome.others_go_on and exchange.given)
        if not isinstance(outcome, Commit):
            return replace(outcome, given=exchange.given)
        if residual is not None:
            self.feedback.keep(contribution, residual)
        return Agreed(
            mean=exchange.mean,
            spans=exchange.spans(),
            contributors=tuple(PeerName(message.members[i].peer) for i in exchange.contributors()),
            tokens=exchange.tokens(),
            left_out=exchange.left_out(),
            bytes_sent=exchange.bytes_sent,
            bytes_received=exchange.bytes_received,
            seconds=self._clock.monotonic() - started,
        )

    def _ears(self, channel: Channel, join: Join, contribution: Contribution) -> HeartbeatReader:
        """How we hear our leader; in a round that waits for everybody, silence is asked about."""
        if not contribution.group.whole:
            return HeartbeatReader(channel, self._clock, self._timing)
        key = join.stage, contribution.group.module, join.version
        ask = partial(self._leader.is_there, channel.peer, key, Claim.of(join))
        return HeartbeatReader(channel, self._clock, self._timing, ask, join.patience)

    async def _first_word(self, ears: HeartbeatReader, leader: str) -> Message:
        """A leader that is awake says at once that it is; libp2p opens streams to those who sleep as well."""
        if leader == self._peer or ears.patience:
            message = await ears.hear()
            self._detector.heard(leader)
            return message
        asked = self._clock.monotonic()
        try:
            async with asyncio.timeout(self._detector.allowed(leader)):
                message = await ears.hear()
        except TimeoutError:
            self._detector.silent(leader, asked)
            raise
        self._detector.answered(leader, self._clock.monotonic() - asked)
        return message

    async def _exchange_until_decided(
        self, channel: Channel, ears: HeartbeatReader, exchange: PieceExchange, key: Key
    ) -> Commit | Abort | NotAgreed | LeaderLost:
        """The exchange works and others find it until there is a decision."""
        round_id = exchange.roster.round_id
        if round_id in self._given_up_early:
            self._given_up.add(round_id)
        self._exchanges[round_id] = exchange
        work = asyncio.create_task(exchange.run())
        decision = asyncio.create_task(self._until_decided(channel, ears, exchange, key))
        try:
            await exchange.started.wait()
            async with self._exchange_opened:
                self._exchange_opened.notify_all()
            await asyncio.wait({work, decision}, return_when=asyncio.FIRST_COMPLETED)
            if not decision.done():
                work.result()  # a bug in the exchange shows here, instead of hanging the round
            return decision.result()
        finally:
            del self._exchanges[round_id]
            self._given_up.discard(round_id)
            work.cancel()
            decision.cancel()
            await asyncio.gather(work, decision, return_exceptions=True)
            del work, decision  # an error of theirs holds this frame, and with it the exchange

    async def _until_decided(
        self, channel: Channel, ears: HeartbeatReader, exchange: PieceExchange, key: Key
    ) -> Commit | Abort | NotAgreed | LeaderLost:
        """Keep the leader informed until it decides; when it is lost, ask the others."""
        reporter = asyncio.create_task(self._report(channel, exchange))
        began, ready_at = self._clock.monotonic(), float("inf")
        try:
            while True:
                message = await ears.hear()
                if isinstance(message, Reassign):
                    exchange.reassign(message)
                elif isinstance(message, Abort):
                    return message
                elif isinstance(message, Commit):
                    return self._checked(message, exchange)
                now = self._clock.monotonic()
                ready_at = min(ready_at, now) if exchange.complete.is_set() else float("inf")
                if now - ready_at > max(10 * (ready_at - began) + self._timing.leader_grace, ears.patience):
                    raise TimeoutError  # alive, and decides nothing
        except (EOFError, TimeoutError, ConnectionError):
            # while we ask about, nobody should be sent to a leader that is lost
            self._following.pop(key, None)
            return await self._outcome_without_leader(channel.peer, exchange)
        finally:
            reporter.cancel()
            await asyncio.gather(reporter, return_exceptions=True)

    async def _report(self, channel: Channel, exchange: PieceExchange) -> None:
        """Tell the leader that we are alive and, whenever all averages are here, that we are ready."""
        said: int | None = None
        with contextlib.suppress(ConnectionError):  # the reader of the same channel sees its end
            while True:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._timing.pulse):
                        if said == exchange.generation:
                            await asyncio.Event().wait()
                        await exchange.complete.wait()
                if exchange.complete.is_set() and said != exchange.generation:
                    said = exchange.generation
                    await channel.send(Ready(generation=said, digest=exchange.digest()))
                else:
                    await channel.send(exchange.report())

    def _checked(self, commit: Commit, exchange: PieceExchange) -> Commit | NotAgreed:
        """Decide, in one step: from here on whoever asks is told what we did."""
        if not exchange.complete.is_set() or exchange.digest() != commit.digest:
            return NotAgreed("the others agreed on an average that we do not have; catching up")
        if exchange.roster.round_id in self._given_up:
            return NotAgreed("the others finished without us; catching up")
        self._remember(exchange.roster.round_id, commit)
        return commit

    async def _outcome_without_leader(self, leader: str, exchange: PieceExchange) -> Commit | NotAgreed | LeaderLost:
        """The leader is lost. If any other member committed, we do too; if none did, none of us ever will."""
        round_id = exchange.roster.round_id
        self._given_up.add(round_id)
        others = [m.peer for m in exchange.roster.members if m.peer not in (leader, self._peer)]
        answers = await asyncio.gather(*(self._ask_outcome(peer, round_id) for peer in others))
        for commit in answers:
            if commit is not None:
                self._given_up.discard(round_id)
                return self._checked(commit, exchange)
        return LeaderLost(leader, answered=True)

    async def _ask_outcome(self, peer: str, round_id: bytes) -> Commit | None:
        answer = await self._ask(peer, AskOutcome(round_id=round_id))
        return answer.commit if isinstance(answer, OutcomeIs) else None

    async def _ask(self, peer: str, question: Message, *, patient: bool = False) -> Message | None:
        """A peer's answer; None when there is none in about the time that answers take, or far more if `patient`."""
        asked = self._clock.monotonic()
        try:
            async with (
                asyncio.timeout(self._timing.max_answer if patient else self._detector.allowed(peer)),
                self._transport.dial(peer, self._round_protocol) as stream,
            ):
                await stream.send(question)
                answer = await stream.receive()
        except (ConnectionError, EOFError, TimeoutError, RemoteDataError) as error:
            log.debug("peer %s does not answer %s: %s", peer[-8:], type(question).__name__, error)
            self._detector.silent(peer, asked, error)
            return None
        except asyncio.CancelledError:  # who asks has no more patience
            if self._clock.monotonic() - asked >= self._detector.usual:
                self._detector.silent(peer, asked)
            raise
        self._detector.answered(peer, self._clock.monotonic() - asked)
        return answer

    def _remember(self, round_id: bytes, commit: Commit) -> None:
        self._commits[round_id] = commit
        while len(self._commits) > REMEMBERED_ROUNDS:
            self._commits.pop(next(iter(self._commits)))

    # ------------------------------------------------------------------------------------------------ asked by others

    async def _on_round_stream(self, stream: Stream) -> None:
        """A peer joins a round that we lead, asks where we are, or asks how a round ended."""
        self._detector.heard(stream.peer)
        async with asyncio.timeout(self._timing.silence):
            message = await stream.receive()
        match message:
            case AskOutcome(round_id=round_id):
                await stream.send(OutcomeIs(commit=self._outcome_of(round_id, stream.peer)))
            case Where():
                key = message.stage, ModuleId.parse(message.module), message.version
                if message.path is not None:
                    there = Member(message.path, Claim.of(message))
                    self._standing.heard(stream.peer, message.stage, key[1], there)
                await stream.send(self._here(key, Claim.of(message)))
            case Join():
                answer = self._leader.admit(message, stream)
                if isinstance(answer, Refuse):
                    await stream.send(answer)
                else:
                    await answer.over.wait()
            case _:
                await stream.send(NotHere())
                raise RemoteDataError(stream.peer, f"opens a round with {type(message).__name__}")

    def _outcome_of(self, round_id: bytes, asking: str) -> Commit | None:
        """Our decision, if there is one; if not, and a member asks, there will be none."""
        commit = self._commits.get(round_id)
        exchange = self._exchanges.get(round_id)
        if commit is not None:
            return commit
        if exchange is None:
            self._given_up_early.append(round_id)
        elif any(member.peer == asking for member in exchange.roster.members):
            self._given_up.add(round_id)
        return None

    def _here(self, key: Key, base: Claim) -> Here:
        """Where we stand, for somebody who gathers the round that goes on from `base`."""
        stage, module, version = key
        follows = self._peer if self._leader.gathers(key) else self._following.get(key)
        ours = self._standing.ours(stage, module)
        if ours is None:
            return Here(version=None, follows=follows)
        if ours.claim == base:
            self._standing.called(stage, module, version)
        claim = ours.claim
        return Here(version=claim.version, digest=claim.digest, work=claim.work, path=ours.path, follows=follows)

    async def _where(self, peer: str, key: Key, base: Claim) -> Here | None:
        """Where a peer stands, asked by who gathers the round that goes on from `base`; None: it does not answer."""
        stage, module, version = key
        if peer == self._peer:
            return self._here(key, base)
        ours = self._standing.ours(stage, module)
        path = None if ours is None or ours.claim != base else ours.path
        question = Where(
            stage=stage, module=str(module), version=version, digest=base.digest, work=base.work, path=path
        )
        answer = await self._ask(peer, question, patient=self._is_whole(stage, module))
        if not isinstance(answer, Here):
            return None
        if answer.version is not None and answer.digest is not None and answer.path is not None:
            claim = Claim(answer.version, answer.digest, answer.work)
            self._standing.heard(peer, stage, module, Member(answer.path, claim))
        return answer

    async def _on_exchange_stream(self, stream: Stream) -> None:
        """A member of a round sends us its contributions; its roster may have reached it before ours reached us."""
        async with asyncio.timeout(self._timing.silence):
            message = await stream.receive()
            if not isinstance(message, Exchange):
                raise RemoteDataError(stream.peer, f"opens an exchange with {type(message).__name__}")
            round_id = message.round_id
            async with self._exchange_opened:
                await self._exchange_opened.wait_for(lambda: round_id in self._exchanges)
        exchange = self._exchanges.get(round_id)
        if exchange is not None:
            await exchange.serve(stream)
