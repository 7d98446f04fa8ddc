"""The control plane of a round of one module: gather, exchange, agree, commit; and what to do when somebody is lost.

    member                              leader (itself a member, over a local channel)
      | -- Join -------------------------> |   the first Join opens the gathering; the leader asks the missing where they are
      | <------------------------ Roster --|   closed when every live member is in, or patience is over
      |    exchange of pieces (exchange.py)|
      | <---------------------- Reassign --|   somebody is gone: stop waiting, his pieces get new reducers
      | -- Ready(digest of the average) -> |
      | <------------------------ Commit --|   everybody alive holds the same bytes
      |
      leader lost: ask the other members whether they committed. One did: so do we, for we hold the same bytes. Nobody did:
      nobody ever will (asking forbids it), and the next in line leads a new round of the same version.

Leading needs no contribution of one's own, only a live loop; so nobody waits for a leader that is still training.
Two sides of a partition may commit different averages for one version. That is noticed by the digests in the
announcements and healed above this floor (`algorithm/plan.py`).
"""

import asyncio
import contextlib
import logging
import os
import statistics
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from dipaco_swarm.algorithm.outer import clip_factors
from dipaco_swarm.algorithm.paths import ModuleId
from dipaco_swarm.errors import RemoteDataError
from dipaco_swarm.swarm.codec import Codec
from dipaco_swarm.swarm.exchange import PieceExchange
from dipaco_swarm.swarm.interface import Agreed, Contribution, Kept, ModuleGroup, Outcome, PeerName
from dipaco_swarm.swarm.node import Node
from dipaco_swarm.swarm.reduction import leader_order, piece_owners, piece_parameters, roster_order
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
    RosterEntry,
    Stream,
    Where,
)

log = logging.getLogger(__name__)

PULSE_SECONDS = 0.5
"""How often both ends of a quiet control stream say that they are alive."""
SILENCE_SECONDS = 8.0
"""Floor of the silence after which a frozen peer counts as gone; doubled gaps seen on the stream raise it."""
ASK_AGAIN_SECONDS = 1.0
"""How often a leader asks missing members where they are."""
STALL_FLOOR_SECONDS = 5.0
"""Nobody is dropped for being slow within this time, however fast the others were."""
MAX_ATTEMPTS = 4
REMEMBERED_ROUNDS = 64

Key = tuple[int, ModuleId, int]
"""stage, module, version"""


class Channel(Protocol):
    """A control stream as a round sees it: over libp2p, or the local one between a leader and itself."""

    peer: str

    async def send(self, message: Message) -> None: ...
    async def receive(self) -> Message: ...
    def close(self) -> None: ...


class LocalChannel:
    """One end of a pair of queues, for the member that leads."""

    def __init__(
        self, peer: str, inbox: "asyncio.Queue[Message | None]", outbox: "asyncio.Queue[Message | None]"
    ) -> None:
        self.peer = peer
        self._inbox = inbox
        self._outbox = outbox

    @classmethod
    def pair(cls, peer: str) -> "tuple[LocalChannel, LocalChannel]":
        one: asyncio.Queue[Message | None] = asyncio.Queue()
        two: asyncio.Queue[Message | None] = asyncio.Queue()
        return cls(peer, one, two), cls(peer, two, one)

    async def send(self, message: Message) -> None:
        self._outbox.put_nowait(message)

    async def receive(self) -> Message:
        message = await self._inbox.get()
        if message is None:
            raise EOFError("the local channel is closed")
        return message

    def close(self) -> None:
        self._outbox.put_nowait(None)


@dataclass
class Gathering:
    """A round that this peer leads, from the first Join to the end."""

    key: Key
    group: ModuleGroup
    opened: float
    patience: float = 0.0
    """Seconds that the median member so far is willing to wait for the missing."""
    joined: dict[str, tuple[Join, Channel]] = field(default_factory=dict)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    closed: bool = False
    over: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(frozen=True)
class LeaderLost:
    """The leader went away before it decided; nobody is known to have committed."""

    leader: str


@dataclass(frozen=True)
class Standing:
    """What the rounds of a peer must know about it, asked anew each time."""

    version_of: Callable[[int, ModuleId], int | None]
    """The version of a module that we train at; None when we do not train it."""
    members_of: Callable[[int, ModuleId], Sequence[str]]
    """Live members that train a module, by announcement; those that can be dialled first matters not."""
    leaders_of: Callable[[int, ModuleId], Sequence[str]]
    """Live members that can be dialled."""
    group_of: Callable[[int, ModuleId], ModuleGroup | None]
    called: Callable[[int, ModuleId, int], None]
    """Somebody gathers the round of this version."""


class Rounds:
    """All rounds of one peer, led and followed."""

    def __init__(self, node: Node, run: str, codec: Codec, norm_clip: float, standing: Standing) -> None:
        self._node = node
        self._peer = node.identity.peer
        self._round_protocol = f"dipaco/1/{run}/round"
        self._exchange_protocol = f"dipaco/1/{run}/exchange"
        self._codec: Codec = codec
        self._norm_clip = norm_clip
        self._standing = standing
        self._leading: dict[Key, Gathering] = {}
        self._exchanges: dict[bytes, PieceExchange] = {}
        self._exchange_opened = asyncio.Condition()
        self._commits: dict[bytes, Commit] = {}
        self._forbidden: deque[bytes] = deque(maxlen=REMEMBERED_ROUNDS)
        self._residuals: dict[tuple[int, ModuleId, int], Tensor] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def serve(self) -> None:
        await self._node.serve(self._round_protocol, self._on_round_stream)
        await self._node.serve(self._exchange_protocol, self._on_exchange_stream)

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # -------------------------------------------------------------------------------------------------- as a member

    async def run(self, contribution: Contribution, patience: float) -> Outcome:
        """One round of one module, with as many leaders as it takes."""
        norm = float(torch.linalg.vector_norm(contribution.gradient))
        if not norm < float("inf"):
            return Kept("our own outer gradient is not finite; training has diverged on this machine")
        lost: set[str] = set()
        reason = "no member of the group can lead"
        for _ in range(MAX_ATTEMPTS):
            candidates = [p for p in self._standing.leaders_of(contribution.group.stage, contribution.group.module)]
            if self._node.settings.reachable:
                candidates.append(self._peer)
            order = leader_order(
                contribution.group.stage,
                contribution.group.module,
                contribution.version,
                sorted(set(candidates) - lost),
            )
            if not order:
                break
            outcome = await self._follow(order[0], contribution, norm, patience)
            if not isinstance(outcome, LeaderLost):
                return outcome
            reason = f"the leader {outcome.leader[-8:]} went away"
            lost.add(outcome.leader)
        return Kept(reason)

    async def _follow(
        self, leader: str, contribution: Contribution, norm: float, patience: float
    ) -> Outcome | LeaderLost:
        group = contribution.group
        join = Join(
            stage=group.stage,
            module=str(group.module),
            version=contribution.version,
            path=contribution.path,
            tokens=contribution.tokens,
            norm=norm * 1.01 if self._codec != "fp32" else norm,
            parameters=len(contribution.gradient),
            reduces=self._node.settings.reachable,
            patience=patience,
        )
        try:
            async with self._channel_to(leader, join, group) as channel:
                return await self._take_part(channel, contribution)
        except (ConnectionError, EOFError, TimeoutError) as error:
            log.debug("leader %s lost: %s", leader[-8:], error)
            return LeaderLost(leader)
        except RemoteDataError as error:
            log.warning("ignored a leader that broke the protocol: %s", error)
            return LeaderLost(leader)

    @contextlib.asynccontextmanager
    async def _channel_to(self, leader: str, join: Join, group: ModuleGroup) -> AsyncIterator[Channel]:
        if leader != self._peer:
            async with self._node.dial(leader, self._round_protocol) as stream:
                await stream.send(join)
                yield stream
            return
        ours, theirs = LocalChannel.pair(self._peer)
        refusal = self._admit(join, theirs, group)
        if refusal is not None:
            await theirs.send(refusal)
        try:
            yield ours
        finally:
            ours.close()

    async def _take_part(self, channel: Channel, contribution: Contribution) -> Outcome | LeaderLost:
        """From Join to the outcome, as a member."""
        started = time.monotonic()
        ears = Ears(channel)
        while isinstance(message := await ears.hear(), Alive):
            await channel.send(Alive())
        if isinstance(message, Refuse):
            return Kept(message.reason)
        if isinstance(message, Abort):
            return Kept(message.reason)
        if not isinstance(message, Roster):
            raise RemoteDataError(channel.peer, f"sends {type(message).__name__} instead of a roster")
        me = _index_in(message, self._peer, channel.peer)
        outgoing, residual = await asyncio.to_thread(self._with_feedback, contribution)
        exchange = PieceExchange(
            self._node, self._exchange_protocol, message, me, contribution.group, self._codec, outgoing, residual
        )
        work = asyncio.create_task(exchange.run())
        await exchange.started.wait()
        async with self._exchange_opened:
            self._exchanges[message.round_id] = exchange
            self._exchange_opened.notify_all()
        try:
            outcome = await self._until_decided(channel, ears, exchange)
        finally:
            self._exchanges.pop(message.round_id, None)
            work.cancel()
            await asyncio.gather(work, return_exceptions=True)
        if isinstance(outcome, Commit):
            self._remember(outcome)
            if residual is not None:
                self._residuals[self._feedback_key(contribution)] = residual
            return Agreed(
                mean=exchange.mean,
                spans=exchange.spans(),
                contributors=tuple(PeerName(message.members[i].peer) for i in exchange.contributors()),
                bytes_sent=exchange.bytes_sent,
                bytes_received=exchange.bytes_received,
                seconds=time.monotonic() - started,
            )
        return outcome

    async def _until_decided(
        self, channel: Channel, ears: "Ears", exchange: PieceExchange
    ) -> Commit | Kept | LeaderLost:
        """Keep the leader informed until it decides; when it is lost, ask the others."""
        reporter = asyncio.create_task(self._report(channel, exchange))
        try:
            while True:
                message = await ears.hear()
                if isinstance(message, Reassign):
                    exchange.reassign(message)
                elif isinstance(message, Abort):
                    return Kept(message.reason)
                elif isinstance(message, Commit):
                    return self._checked(message, exchange, channel.peer)
        except (EOFError, TimeoutError, ConnectionError):
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
                    async with asyncio.timeout(PULSE_SECONDS):
                        if said == exchange.generation:
                            await asyncio.Event().wait()
                        await exchange.complete.wait()
                if exchange.complete.is_set() and said != exchange.generation:
                    said = exchange.generation
                    digest = exchange.digest()
                    await channel.send(Ready(generation=said, digest=digest))
                else:
                    await channel.send(Alive(waiting_for=exchange.waiting_for()))

    def _checked(self, commit: Commit, exchange: PieceExchange, leader: str) -> Commit | Kept:
        if not exchange.complete.is_set() or exchange.digest() != commit.digest:
            return Kept("the others agreed on an average that we do not have; catching up")
        if commit.round_id in self._forbidden:
            return Kept(f"the decision of {leader[-8:]} came after the round was given up; catching up")
        return commit

    async def _outcome_without_leader(self, leader: str, exchange: PieceExchange) -> Commit | Kept | LeaderLost:
        """The leader is lost. If any other member committed, we do too; if none did, none of us ever will."""
        round_id = exchange.roster.round_id
        if round_id not in self._forbidden:
            self._forbidden.append(round_id)
        others = [m.peer for m in exchange.roster.members if m.peer not in (leader, self._peer)]
        answers = await asyncio.gather(*(self._ask_outcome(peer, round_id) for peer in others))
        for commit in answers:
            if commit is not None:
                if exchange.complete.is_set() and exchange.digest() == commit.digest:
                    return commit
                return Kept("the others agreed on an average that we do not have; catching up")
        return LeaderLost(leader)

    async def _ask_outcome(self, peer: str, round_id: bytes) -> Commit | None:
        try:
            async with asyncio.timeout(SILENCE_SECONDS), self._node.dial(peer, self._round_protocol) as stream:
                await stream.send(AskOutcome(round_id=round_id))
                answer = await stream.receive()
                return answer.commit if isinstance(answer, OutcomeIs) else None
        except (ConnectionError, EOFError, TimeoutError, RemoteDataError) as error:
            log.debug("peer %s does not tell the outcome of a round: %s", peer[-8:], error)
            return None

    def _remember(self, commit: Commit) -> None:
        self._commits[commit.round_id] = commit
        while len(self._commits) > REMEMBERED_ROUNDS:
            self._commits.pop(next(iter(self._commits)))

    # error feedback: what the codec lost of our last committed contribution is added to the next one

    def _with_feedback(self, contribution: Contribution) -> tuple[Tensor, Tensor | None]:
        if self._codec == "fp32":
            return contribution.gradient, None
        left_over = self._residuals.get(self._feedback_key(contribution))
        gradient = contribution.gradient if left_over is None else contribution.gradient + left_over
        return gradient, torch.empty_like(gradient)

    @staticmethod
    def _feedback_key(contribution: Contribution) -> tuple[int, ModuleId, int]:
        return contribution.group.stage, contribution.group.module, contribution.path

    # --------------------------------------------------------------------------------------------------- as a leader

    async def _on_round_stream(self, stream: Stream) -> None:
        """A peer joins a round that we lead, asks where we are, or asks how a round ended."""
        async with asyncio.timeout(SILENCE_SECONDS):
            message = await stream.receive()
        match message:
            case AskOutcome(round_id=round_id):
                commit = self._commits.get(round_id)
                if commit is None and round_id not in self._forbidden:
                    self._forbidden.append(round_id)
                await stream.send(OutcomeIs(commit=commit))
            case Where():
                module = ModuleId.parse(message.module)
                version = self._standing.version_of(message.stage, module)
                if version == message.version:
                    self._standing.called(message.stage, module, version)
                await stream.send(Here(version=version))
            case Join():
                group = self._standing.group_of(message.stage, ModuleId.parse(message.module))
                refusal = Refuse(reason="we do not take part in this module", version=0)
                result = refusal if group is None else self._admit(message, stream, group)
                if isinstance(result, Refuse):
                    await stream.send(result)
                    return
                gathering = self._leading[_key_of(message)]
                await gathering.over.wait()
            case _:
                await stream.send(NotHere())
                raise RemoteDataError(stream.peer, f"opens a round with {type(message).__name__}")

    def _admit(self, join: Join, channel: Channel, group: ModuleGroup) -> Refuse | None:
        """Let a member into the gathering of its round, opening it if it is the first."""
        key = _key_of(join)
        stage, module, version = key
        ours = self._standing.version_of(stage, module)
        if ours is not None and ours > version:
            return Refuse(reason=f"the group is at version {ours} already; catching up", version=ours)
        if join.path not in group.path_weights:
            return Refuse(reason=f"path {join.path} does not use {module}", version=version)
        gathering = self._leading.get(key)
        if gathering is None:
            gathering = self._leading[key] = Gathering(key, group, time.monotonic())
            task = asyncio.create_task(self._lead(gathering))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            self._standing.called(stage, module, version)
        if gathering.closed:
            return Refuse(reason="came after the round had begun; the next one counts our progress", version=version)
        sizes = {other.parameters for other, _ in gathering.joined.values()}
        if sizes and join.parameters not in sizes:
            return Refuse(reason=f"{module} has {sizes.pop()} parameters, not {join.parameters}", version=version)
        gathering.joined[channel.peer] = (join, channel)
        gathering.patience = statistics.median(other.patience for other, _ in gathering.joined.values())
        gathering.changed.set()
        return None

    async def _lead(self, gathering: Gathering) -> None:
        try:
            pulse = asyncio.create_task(self._pulse(gathering))
            try:
                await self._until_everybody_is_in(gathering)
            finally:
                pulse.cancel()
                await asyncio.gather(pulse, return_exceptions=True)
            gathering.closed = True
            if gathering.joined:
                await Decision(gathering, self._norm_clip).reach()
        finally:
            gathering.closed = True
            self._leading.pop(gathering.key, None)
            gathering.over.set()

    async def _pulse(self, gathering: Gathering) -> None:
        while True:
            await asyncio.sleep(PULSE_SECONDS)
            for peer, (_, channel) in list(gathering.joined.items()):
                try:
                    await channel.send(Alive())
                except ConnectionError:
                    gathering.joined.pop(peer, None)

    async def _until_everybody_is_in(self, gathering: Gathering) -> None:
        """Wait for every live member that stands at this version; longest for what the members' patience allows.

        Who is missing is asked directly: an announcement may be old, an answer is not.
        """
        stage, module, version = gathering.key
        unreachable: dict[str, int] = {}
        elsewhere: set[str] = set()
        while True:
            expected = set(self._standing.members_of(stage, module)) - elsewhere
            expected -= {peer for peer, failures in unreachable.items() if failures >= 2}
            missing = sorted(expected - set(gathering.joined))
            waited = time.monotonic() - gathering.opened
            if not missing or waited > gathering.patience:
                break
            for peer, answer in zip(missing, await asyncio.gather(*(self._where(p, gathering.key) for p in missing))):
                if answer is None:
                    unreachable[peer] = unreachable.get(peer, 0) + 1
                elif answer.version is None or answer.version > version:
                    elsewhere.add(peer)
            gathering.changed.clear()
            if set(missing) <= set(gathering.joined) | elsewhere:
                continue
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(ASK_AGAIN_SECONDS):
                    await gathering.changed.wait()

    async def _where(self, peer: str, key: Key) -> Here | None:
        """Where a peer stands; None when it does not answer."""
        stage, module, version = key
        if peer == self._peer:
            self._standing.called(stage, module, version)
            return Here(version=self._standing.version_of(stage, module))
        try:
            async with asyncio.timeout(SILENCE_SECONDS), self._node.dial(peer, self._round_protocol) as stream:
                await stream.send(Where(stage=stage, module=str(module), version=version))
                answer = await stream.receive()
                return answer if isinstance(answer, Here) else None
        except (ConnectionError, EOFError, TimeoutError, RemoteDataError) as error:
            log.debug("peer %s does not say where it is: %s", peer[-8:], error)
            return None

    async def _on_exchange_stream(self, stream: Stream) -> None:
        """A member of a round sends us its contributions; its roster may have reached it before ours reached us."""
        async with asyncio.timeout(SILENCE_SECONDS):
            message = await stream.receive()
            if not isinstance(message, Exchange):
                raise RemoteDataError(stream.peer, f"opens an exchange with {type(message).__name__}")
            round_id = message.round_id
            async with self._exchange_opened:
                await self._exchange_opened.wait_for(lambda: round_id in self._exchanges)
        await self._exchanges[round_id].serve(stream)


class Ears:
    """Hears messages on a control stream, and notices silence.

    The allowed silence starts at SILENCE_SECONDS and grows with the longest gap that turned out not to be the end.
    """

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._longest_gap = 0.0

    async def hear(self) -> Message:
        """The next message. Raises EOFError when the other side is gone, TimeoutError when it is silent too long."""
        asked = time.monotonic()
        async with asyncio.timeout(max(SILENCE_SECONDS, 3 * self._longest_gap)):
            message = await self._channel.receive()
        self._longest_gap = max(self._longest_gap, time.monotonic() - asked)
        return message


class Decision:
    """The leader's second half: from the roster to Commit or Abort. Made for one round, used once."""

    def __init__(self, gathering: Gathering, norm_clip: float) -> None:
        self._gathering = gathering
        joins = {peer: join for peer, (join, _) in gathering.joined.items()}
        scales = dict(zip(joins, clip_factors([join.norm for join in joins.values()], norm_clip), strict=True))
        members = roster_order(
            [
                RosterEntry(
                    peer=peer,
                    path=join.path,
                    tokens=join.tokens,
                    norm=join.norm,
                    scale=max(scales[peer], 1e-30),
                    reduces=join.reduces,
                )
                for peer, join in joins.items()
            ]
        )
        parameters = next(iter(joins.values())).parameters
        reducers = [i for i, member in enumerate(members) if member.reduces] or [0]
        size = piece_parameters(parameters, len(reducers))
        self._roster = Roster(
            round_id=os.urandom(16),
            members=members,
            piece_parameters=size,
            owners=piece_owners(parameters, size, reducers),
        )
        self._owners = list(self._roster.owners)
        self._channels = [gathering.joined[member.peer][1] for member in members]
        self._alive = set(range(len(members)))
        self._ready: dict[int, Ready] = {}
        self._waiting_for: dict[int, frozenset[str]] = {}
        self._generation = 0
        self._events: asyncio.Queue[tuple[int, Message | None]] = asyncio.Queue()
        self._began = time.monotonic()
        self._few_awaited_since: float | None = None

    async def reach(self) -> None:
        """Send the roster, watch the members, decide."""
        listeners = [asyncio.create_task(self._listen(i)) for i in range(len(self._channels))]
        pulse = asyncio.create_task(self._pulse())
        try:
            await self._tell_all(self._roster)
            while (verdict := self._verdict()) is None:
                await self._next_event()
            await self._tell_all(verdict)
        finally:
            for task in (*listeners, pulse):
                task.cancel()
            await asyncio.gather(*listeners, pulse, return_exceptions=True)

    def _verdict(self) -> Commit | Abort | None:
        if not self._alive:
            return Abort(reason="every member went away")
        reports = [self._ready.get(i) for i in self._alive]
        ready = [report for report in reports if report is not None and report.generation == self._generation]
        if len(ready) < len(self._alive):
            return None
        if len({report.digest for report in ready}) > 1:
            return Abort(reason="reducers sent different averages to different members; nothing was taken")
        return Commit(round_id=self._roster.round_id, generation=self._generation, digest=ready[0].digest)

    async def _listen(self, member: int) -> None:
        ears = Ears(self._channels[member])
        try:
            while True:
                self._events.put_nowait((member, await ears.hear()))
        except (EOFError, TimeoutError, ConnectionError):
            self._events.put_nowait((member, None))
        except RemoteDataError as error:
            log.warning("dropped a member that broke the protocol: %s", error)
            self._events.put_nowait((member, None))

    async def _next_event(self) -> None:
        member, message = await self._events.get()
        if message is None:
            await self._drop({member})
        elif isinstance(message, Ready):
            self._ready[member] = message
            self._waiting_for[member] = frozenset()
        elif isinstance(message, Alive):
            self._waiting_for[member] = frozenset(message.waiting_for)
        await self._drop(self._stalled())

    def _stalled(self) -> set[int]:
        """Members that nearly everybody else waits for, for several times as long as the others needed."""
        awaited: set[str] = set()
        for member in self._alive:
            awaited |= self._waiting_for.get(member, frozenset({"not heard yet"}))
        slow = {i for i in self._alive if self._roster.members[i].peer in awaited}
        now = time.monotonic()
        if not slow or len(slow) * 2 > len(self._alive) or "not heard yet" in awaited:
            self._few_awaited_since = None
            return set()
        if self._few_awaited_since is None:
            self._few_awaited_since = now
        needed_by_others = self._few_awaited_since - self._began
        if now - self._few_awaited_since < max(STALL_FLOOR_SECONDS, 3 * needed_by_others):
            return set()
        return slow

    async def _drop(self, members: set[int]) -> None:
        """Go on without them: tell everybody, and give their pieces to others."""
        members &= self._alive
        if not members:
            return
        self._alive -= members
        self._few_awaited_since = None
        heirs = [i for i in sorted(self._alive) if self._roster.members[i].reduces]
        orphans = [piece for piece, owner in enumerate(self._owners) if owner in members]
        if not self._alive:
            return
        if orphans and not heirs:
            heirs = [min(self._alive)]
        moved = {piece: heirs[k % len(heirs)] for k, piece in enumerate(orphans)}
        for piece, owner in moved.items():
            self._owners[piece] = owner
        self._generation += 1
        gone = tuple(self._roster.members[i].peer for i in sorted(members))
        await self._tell_all(Reassign(gone=gone, generation=self._generation, pieces=moved))

    async def _pulse(self) -> None:
        while True:
            await asyncio.sleep(PULSE_SECONDS)
            await self._tell_all(Alive())

    async def _tell_all(self, message: Message) -> None:
        for member in sorted(self._alive):
            try:
                await self._channels[member].send(message)
            except ConnectionError:
                self._events.put_nowait((member, None))


def _key_of(join: Join) -> Key:
    return join.stage, ModuleId.parse(join.module), join.version


def _index_in(roster: Roster, peer: str, leader: str) -> int:
    for i, member in enumerate(roster.members):
        if member.peer == peer:
            if max(roster.owners) >= len(roster.members):
                break
            return i
    raise RemoteDataError(leader, "sends a roster that does not fit")
