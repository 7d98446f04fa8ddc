"""The swarm in one process: the verified fake for tests, and what `simulate` and the reference runs use.

The same arithmetic (`reduction.py`, `codecs/`) and the same rules as over libp2p, without a network: each peer is a
thread, a round is a meeting under one lock. It passes the same contract tests.
"""

import hashlib
import statistics
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from dipaco_swarm.algorithm.outer import clip_factors
from dipaco_swarm.algorithm.paths import ModuleId, PathIndex
from dipaco_swarm.algorithm.state import ModuleState
from dipaco_swarm.errors import UnreachableError
from dipaco_swarm.machine.clock import SYSTEM_CLOCK, Clock
from dipaco_swarm.swarm.interface import (
    Agreed,
    Announcement,
    Contribution,
    ModuleGroup,
    NotAgreed,
    Outcome,
    PeerName,
    Span,
    Traffic,
)
from dipaco_swarm.swarm.round.codecs.codec import codec_of
from dipaco_swarm.swarm.round.reduction import (
    claimed_norm,
    effective_paths_of,
    piece_average,
    piece_bounds,
    piece_parameters,
    roster_order,
)
from dipaco_swarm.swarm.states.blobs import BlobStore
from dipaco_swarm.swarm.wire import RosterEntry

KEPT_STATES = 16
"""Of each module: nobody is further behind than that, and a long simulation does not fill the memory."""


@dataclass
class Meeting:
    """One round of one module: opened by the first member, decided once everybody expected is in."""

    opened: float
    parts: dict[PeerName, "Part"] = field(default_factory=dict)
    outcome: Agreed | None = None
    waiting: set[PeerName] = field(default_factory=set)
    """Members that have not collected the outcome yet; after the last one nothing big is kept."""
    over: bool = False
    members: frozenset[PeerName] = frozenset()
    """Who agreed."""


@dataclass(frozen=True, eq=False)
class Part:
    """What one member brought."""

    path: PathIndex
    tokens: int
    norm: float
    patience: float
    received: Tensor
    """Its outer gradient after the codec."""
    residual: Tensor
    """What the codec lost."""


class MemoryBlobs:
    """`BlobStore` without a disk."""

    def __init__(self) -> None:
        self._blobs: dict[str, bytes] = {}

    def put(self, data: bytes) -> str:
        digest = hashlib.sha256(data).hexdigest()
        self._blobs[digest] = bytes(data)
        return digest

    def get(self, digest: str) -> bytes | None:
        return self._blobs.get(digest)


class MemoryHub:
    """What the peers of one process share. Make it once and a `MemorySwarm` per peer."""

    def __init__(self, blobs: BlobStore | None = None) -> None:
        """`blobs`: where to keep them as files, for who comes after this process; None keeps them in memory."""
        self.changed = threading.Condition()
        self.announced: dict[PeerName, tuple[Announcement, ...]] = {}
        self.meetings: dict[tuple[int, ModuleId, int], Meeting] = {}
        self.states: dict[tuple[int, ModuleId], dict[str, ModuleState]] = {}
        self.statements: dict[str, dict[PeerName, bytes]] = {}
        self.blobs = blobs or MemoryBlobs()
        self.manifest: bytes | None = None

    def expected(self, stage: int, module: ModuleId, version: int) -> set[PeerName]:
        """Live members that train this module and have not passed this version: an older one is about to come."""
        return {
            said.peer
            for all_said in self.announced.values()
            for said in all_said
            if (said.stage, said.module) == (stage, module) and said.version <= version and said.path is not None
        }


class MemorySwarm:
    """`Swarm` among the threads of one process."""

    def __init__(self, hub: MemoryHub, name: str) -> None:
        self._hub = hub
        self._name = PeerName(name)
        self._codec = codec_of("fp32")
        self._norm_clip = 4.0
        self._residuals: dict[tuple[int, ModuleId, int], Tensor] = {}
        self._interrupted = False

    @property
    def peer(self) -> PeerName:
        return self._name

    @property
    def clock(self) -> Clock:
        return SYSTEM_CLOCK

    # who is there ------------------------------------------------------------------------------------------------

    def announce(self, announcements: Sequence[Announcement], groups: Sequence[ModuleGroup] = ()) -> None:
        with self._hub.changed:
            self._hub.announced[self.peer] = tuple(announcements)
            self._hub.changed.notify_all()

    def members(self, stage: int, module: ModuleId) -> tuple[Announcement, ...]:
        with self._hub.changed:
            return tuple(
                said
                for peer in sorted(self._hub.announced)
                for said in self._hub.announced[peer]
                if (said.stage, said.module) == (stage, module)
            )

    def look_up(self, stage: int, modules: Sequence[ModuleId], *, timeout: float) -> None:
        """Everybody is known already."""

    def publish(self, topic: str, statement: bytes) -> None:
        with self._hub.changed:
            self._hub.statements.setdefault(topic, {})[self.peer] = statement

    def statements(self, topic: str, *, timeout: float) -> dict[PeerName, bytes]:
        with self._hub.changed:
            return dict(self._hub.statements.get(topic, {}))

    def is_gathering(self, stage: int, module: ModuleId, version: int) -> bool:
        with self._hub.changed:
            return (stage, module, version) in self._hub.meetings

    # module groups -----------------------------------------------------------------------------------------------

    def configure_rounds(self, codec: str, norm_clip: float, max_members: int = 256) -> None:
        self._codec, self._norm_clip = codec_of(codec), norm_clip

    def all_reduce(self, contributions: Sequence[Contribution], *, patience: float) -> dict[ModuleId, Outcome]:
        for part in contributions:
            self._join(part, patience)
        return {part.group.module: self._outcome(part) for part in contributions}

    def _join(self, contribution: Contribution, patience: float) -> None:
        left_over = self._residuals.get(_feedback_key(contribution)) if not self._codec.exact else None
        outgoing = contribution.gradient if left_over is None else contribution.gradient + left_over
        received = self._codec.decode(self._codec.encode(outgoing), len(outgoing)).clone()
        norm = claimed_norm(self._codec, contribution.gradient, left_over)
        part = Part(contribution.path, contribution.tokens, norm, patience, received, outgoing - received)
        with self._hub.changed:
            meeting = self._hub.meetings.get(_key(contribution))
            if meeting is None or (meeting.over and self._is_forgotten(meeting, contribution)):
                meeting = self._hub.meetings[_key(contribution)] = Meeting(time.monotonic())
            if meeting.outcome is None and not meeting.over:
                meeting.parts[self.peer] = part
            self._hub.changed.notify_all()

    def _is_forgotten(self, meeting: Meeting, contribution: Contribution) -> bool:
        """Whether all who agreed have left and nobody went on from there: then the round is free to be held again."""
        stage, module, version = _key(contribution)
        return not any(
            (said.stage, said.module) == (stage, module)
            and said.path is not None
            and said.peer != self.peer
            and (said.version > version or said.peer in meeting.members)
            for all_said in self._hub.announced.values()
            for said in all_said
        )

    def _outcome(self, contribution: Contribution) -> Outcome:
        key = _key(contribution)
        with self._hub.changed:
            meeting = self._hub.meetings[key]
            while meeting.outcome is None and not meeting.over:
                if self._interrupted:
                    meeting.parts.pop(self.peer, None)
                    return NotAgreed("interrupted")
                patience = statistics.median(part.patience for part in meeting.parts.values())
                left = meeting.opened + patience - time.monotonic()
                if self._hub.expected(*key) <= set(meeting.parts) or left <= 0:
                    meeting.outcome = self._decide(meeting, contribution.group)
                    meeting.waiting = set(meeting.parts)
                    meeting.members = frozenset(meeting.parts)
                    self._hub.changed.notify_all()
                else:
                    self._hub.changed.wait(left)
            outcome = meeting.outcome
            if outcome is None or self.peer not in meeting.waiting:
                return NotAgreed("came after the round had begun; the next one counts our progress")
            if not self._codec.exact:
                self._residuals[_feedback_key(contribution)] = meeting.parts[self.peer].residual
            meeting.waiting.discard(self.peer)
            if not meeting.waiting:
                meeting.over, meeting.outcome, meeting.parts = True, None, {}
            return outcome

    def _decide(self, meeting: Meeting, group: ModuleGroup) -> Agreed:
        scales = clip_factors([part.norm for part in meeting.parts.values()], self._norm_clip)
        members = roster_order(
            [
                RosterEntry(
                    peer=peer,
                    path=part.path,
                    tokens=part.tokens,
                    norm=part.norm,
                    scale=max(scale, 1e-30),
                    reduces=True,
                )
                for (peer, part), scale in zip(meeting.parts.items(), scales, strict=True)
            ]
        )
        received = {i: meeting.parts[PeerName(member.peer)].received for i, member in enumerate(members)}
        parameters = len(next(iter(received.values())))
        size = piece_parameters(parameters, len(members))
        pieces = [piece_bounds(i, size, parameters) for i in range(-(-parameters // size))]
        average = piece_average(members, group)
        mean = torch.cat([average({i: v[a:b] for i, v in received.items()}) for a, b in pieces])
        mean = self._codec.decode(self._codec.encode(mean), len(mean)).clone()
        n_eff = effective_paths_of(range(len(members)), members, group)
        return Agreed(
            mean=mean,
            spans=(Span(0, len(mean), n_eff),),
            contributors=tuple(PeerName(member.peer) for member in members),
            seconds=time.monotonic() - meeting.opened,
        )

    # states ------------------------------------------------------------------------------------------------------

    def hold(self, stage: int, module: ModuleId, state: ModuleState) -> None:
        with self._hub.changed:
            held = self._hub.states.setdefault((stage, module), {})
            held[state.digest] = state
            while len(held) > KEPT_STATES:
                del held[next(iter(held))]

    def release(self, stage: int, module: ModuleId) -> None:
        """States are shared here; the hub keeps the last ones that anybody held."""

    def fetch_state(
        self, stage: int, module: ModuleId, digest: str, *, timeout: float, parameters: int | None = None
    ) -> ModuleState | None:
        with self._hub.changed:
            state = self._hub.states.get((stage, module), {}).get(digest)
        return state if state is None or parameters in (None, len(state.params)) else None

    # blobs and the manifest --------------------------------------------------------------------------------------

    def put_blob(self, data: bytes) -> str:
        with self._hub.changed:
            return self._hub.blobs.put(data)

    def drop_blob(self, digest: str) -> None:
        """Blobs are shared here and cost nothing; the hub keeps them."""

    def fetch_blob(self, digest: str, *, timeout: float, limit: int | None = None) -> bytes:
        with self._hub.changed:
            data = self._hub.blobs.get(digest)
        if data is None or (limit is not None and len(data) > limit):
            raise UnreachableError(f"no peer has the run's file {digest[:12]}; is the bootstrap node up?")
        return data

    def publish_manifest(self, signed: bytes) -> None:
        with self._hub.changed:
            self._hub.manifest = signed
            self._hub.changed.notify_all()

    def newest_manifest(self, *, timeout: float) -> bytes | None:
        with self._hub.changed:
            return self._hub.manifest

    def follow_manifest(self) -> None:
        """The hub has it."""

    def known_manifest(self) -> bytes | None:
        with self._hub.changed:
            return self._hub.manifest

    # ourselves ---------------------------------------------------------------------------------------------------

    def traffic(self) -> Traffic:
        return Traffic(0, 0)

    @property
    def lost(self) -> bool:
        return False

    def interrupt(self) -> None:
        with self._hub.changed:
            self._interrupted = True
            self._hub.changed.notify_all()


def _key(contribution: Contribution) -> tuple[int, ModuleId, int]:
    return contribution.group.stage, contribution.group.module, contribution.version


def _feedback_key(contribution: Contribution) -> tuple[int, ModuleId, int]:
    return contribution.group.stage, contribution.group.module, int(contribution.path)
