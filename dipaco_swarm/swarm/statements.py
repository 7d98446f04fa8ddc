"""Statements of peers about the paths that they train, each naming a blob: heard, checked, fetched, or refused.

Anybody may make such a statement, and a name costs nothing. So a blob has no longer than its size takes on a slow line,
whoever has sent nothing of use rests the longer, the more often, and what is remembered is of those who speak now.
"""

import logging
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from dipaco_swarm.algorithm.forgetting import put_last
from dipaco_swarm.algorithm.paths import PathIndex, PathTable
from dipaco_swarm.errors import UnreachableError
from dipaco_swarm.machine.clock import Clock
from dipaco_swarm.swarm.interface import Announcement, PeerName, Swarm

log = logging.getLogger(__name__)

SLOW_LINE = 100_000.0
"""Bytes a second: a blob that comes slower is given up."""
VAIN_TRIES = 2
"""So often a blob that does not come is asked for."""
REST_SECONDS = 10.0
"""A peer whose blob was of no use rests so long, or as long as that one took, and twice that with each more..."""
MAX_REST_SECONDS = 1800.0
"""... at most."""
REFUSED_A_PEER = 16
"""Blobs, the last ones; another one is fetched like any new one."""
MINUTE_SECONDS = 60.0
LINES_A_MINUTE = 12
"""Of warnings about what all peers have sent."""


class AboutPath(Protocol):
    """A statement that was parsed."""

    @property
    def path(self) -> int: ...

    @property
    def blob(self) -> str:
        """Digest of what it is about."""
        ...


S = TypeVar("S", bound=AboutPath)
T = TypeVar("T")


class FewLines:
    """Warnings that others can cause at will: so many a minute, the others are for who looks closely."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._since = clock.monotonic()
        self._said = 0

    def warn(self, line: str) -> None:
        now = self._clock.monotonic()
        if now - self._since >= MINUTE_SECONDS:
            self._since, self._said = now, 0
        self._said += 1
        log.log(logging.WARNING if self._said <= LINES_A_MINUTE else logging.DEBUG, "%s", line)


@dataclass
class Record:
    """What is remembered of a peer, as long as it says something."""

    refused: dict[str, None] = field(default_factory=dict)
    """Blobs that are looked at no more, the oldest first."""
    passed_over: bool = False
    """Whether it was named for a path that it was not seen to train."""
    tried: str = ""
    """The blob that was asked for last..."""
    vain_tries: int = 0
    """... and how often it did not come."""
    useless: int = 0
    """Blobs in a row that did not come, or were refused."""
    rests_until: float = 0.0

    def rest(self, now: float, took: float) -> None:
        """`took`: seconds that it has cost us."""
        self.useless += 1
        self.rests_until = now + min(MAX_REST_SECONDS, max(REST_SECONDS, took) * 2.0 ** min(self.useless - 1, 10))


class StatementCollector(Generic[S]):
    """Collects statements about one topic. What is refused is refused for good, and named once."""

    def __init__(
        self, swarm: Swarm, stage: int, table: PathTable, topic: str, parse: Callable[[bytes], S], what: str
    ) -> None:
        """`parse` raises ValueError. `what`: the blobs are, for the log."""
        self.swarm = swarm
        self.stage = stage
        self.table = table
        self._topic = topic
        self._parse = parse
        self._what = what
        self._lines = FewLines(swarm.clock)
        self._trainers: set[tuple[PeerName, PathIndex]] = set()
        self._known: set[PeerName] = set()
        self._records: dict[PeerName, Record] = {}

    def heard(self, wanted: Callable[[S], bool] = lambda said: True) -> list[tuple[PeerName, S]]:
        """The wanted statements of peers that train the path, or have been seen to, and that may be asked now; those of
        peers that we know come first, sorted by peer."""
        members = [said for module in self.table.modules for said in self.swarm.members(self.stage, module)]
        statements = self.swarm.statements(self._topic, timeout=self.swarm.timing.look_up)
        self._remember(members, statements)
        now, found = self.swarm.clock.monotonic(), []
        for peer, statement in sorted(statements.items()):
            try:
                said = self._parse(statement)
            except ValueError:
                self._refuse(peer, "", f"a statement about {self._what} that is not one")
                continue
            record = self._record(peer)
            may_be_asked = said.blob not in record.refused and now >= record.rests_until
            if may_be_asked and wanted(said) and self._trains(peer, said):
                found.append((peer, said))
        self._known = {said.peer for said in members if said.known}
        return sorted(found, key=lambda entry: self.is_strange(entry[0]))

    def is_strange(self, peer: PeerName) -> bool:
        """Whether nothing that we have is known to be of this peer's making, while there is of others."""
        return peer not in self._known

    def fetch(
        self, peer: PeerName, said: S, read: Callable[[bytes], T], *, timeout: float, limit: int
    ) -> tuple[T, bytes] | None:
        """What a statement is about, read and as bytes; None when it does not come now, or was refused.

        `read` raises ValueError. `limit`: bytes that it may have. `timeout`: the most that it may take, less where it
        is small. It is not kept.
        """
        began, seconds = self.swarm.clock.monotonic(), self.swarm.timing.dial + limit / SLOW_LINE
        try:
            data = self.swarm.fetch_blob(said.blob, timeout=min(timeout, seconds), limit=limit, of=peer)
        except UnreachableError:  # it may be on its way, or something newer has replaced it
            self._note_vain(peer, said, self.swarm.clock.monotonic() - began)
            return None
        try:
            found = read(data)
        except ValueError as error:
            self.refuse(peer, said, f"cannot be used: {error}")
            return None
        return found, data

    def accept(self, peer: PeerName) -> None:
        """What came of this peer was of use."""
        self._record(peer).useless = 0

    def refuse(self, peer: PeerName, said: S, why: str) -> None:
        """Look at this no more."""
        self._record(peer).rest(self.swarm.clock.monotonic(), 0.0)
        self._refuse_path(peer, said, why)

    def _refuse_path(self, peer: PeerName, said: S, why: str) -> None:
        self._refuse(peer, said.blob, f"{self._what} of path {said.path}, refused: {why}")

    def _remember(self, members: Collection[Announcement], speaking: Collection[PeerName]) -> None:
        """Those who train, and what they have sent, while they are there; who is about to leave trains no more."""
        there = {said.peer for said in members} | set(speaking)
        self._trainers = {entry for entry in self._trainers if entry[0] in there}
        self._trainers |= {(said.peer, said.path) for said in members if said.path is not None}
        # a copy, as a blob may be on its way in another thread
        self._records = {peer: record for peer, record in [*self._records.items()] if peer in speaking}

    def _record(self, peer: PeerName) -> Record:
        return self._records.setdefault(peer, Record())

    def _note_vain(self, peer: PeerName, said: S, took: float) -> None:
        record = self._record(peer)
        record.vain_tries = record.vain_tries + 1 if record.tried == said.blob else 1
        record.tried = said.blob
        record.rest(self.swarm.clock.monotonic(), took)
        if record.vain_tries >= VAIN_TRIES:
            self._refuse_path(peer, said, "nobody sends it")

    def _trains(self, peer: PeerName, said: S) -> bool:
        """Whether it trains the path. If not, not for good: its announcement may be on its way."""
        if (peer, PathIndex(said.path)) in self._trainers:
            return True
        record = self._record(peer)
        if not record.passed_over:
            record.passed_over = True
            self._lines.warn(
                f"passed over peer {peer[-8:]}: it sent {self._what} of path {said.path}, which it was not seen to "
                "train"
            )
        return False

    def _refuse(self, peer: PeerName, blob: str, what: str) -> None:
        record = self._record(peer)
        if blob in record.refused:
            return
        put_last(record.refused, blob, None, REFUSED_A_PEER)
        self._lines.warn(f"ignored peer {peer[-8:]}: it sent {what}")
