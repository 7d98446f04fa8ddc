"""Statements of peers about the paths that they train, each naming a blob: heard, checked, fetched, or refused."""

import logging
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from dipaco_swarm.algorithm.paths import PathIndex, PathTable
from dipaco_swarm.errors import UnreachableError
from dipaco_swarm.swarm.interface import PeerName, Swarm

log = logging.getLogger(__name__)


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
        self._trainers: set[tuple[PeerName, PathIndex]] = set()
        self._refused: set[tuple[PeerName, str]] = set()
        self._passed_over: set[tuple[PeerName, str]] = set()

    def heard(self, wanted: Callable[[S], bool] = lambda said: True) -> list[tuple[PeerName, S]]:
        """The wanted statements of peers that train the path, or have been seen to; sorted by peer."""
        for module in self.table.modules:
            said_of_module = self.swarm.members(self.stage, module)
            self._trainers |= {(s.peer, s.path) for s in said_of_module if s.path is not None}
        found = []
        for peer, statement in sorted(self.swarm.statements(self._topic, timeout=self.swarm.timing.look_up).items()):
            try:
                said = self._parse(statement)
            except ValueError:
                self._refuse(peer, "", f"a statement about {self._what} that is not one")
                continue
            if (peer, said.blob) not in self._refused and wanted(said) and self._trains(peer, said):
                found.append((peer, said))
        return found

    def fetch(
        self, peer: PeerName, said: S, read: Callable[[bytes], T], *, timeout: float, limit: int
    ) -> tuple[T, bytes] | None:
        """What a statement is about, read and as bytes; None when it does not come now, or was refused.

        `read` raises ValueError. `limit`: bytes that it may have.
        """
        try:
            data = self.swarm.fetch_blob(said.blob, timeout=timeout, limit=limit)
        except UnreachableError:
            return None  # it may be on its way, or something newer has replaced it: asked again with the next look
        try:
            return read(data), data
        except ValueError as error:
            self.refuse(peer, said, f"cannot be used: {error}")
            return None

    def refuse(self, peer: PeerName, said: S, why: str) -> None:
        """Look at this no more."""
        self._refuse(peer, said.blob, f"{self._what} of path {said.path}, refused: {why}")

    def _trains(self, peer: PeerName, said: S) -> bool:
        """Whether it trains the path. If not, not for good: its announcement may be on its way."""
        if (peer, PathIndex(said.path)) in self._trainers:
            return True
        if (peer, said.blob) not in self._passed_over:
            self._passed_over.add((peer, said.blob))
            log.warning(
                "passed over peer %s: it sent %s of path %d, which it was not seen to train",
                peer[-8:],
                self._what,
                said.path,
            )
        return False

    def _refuse(self, peer: PeerName, blob: str, what: str) -> None:
        if (peer, blob) not in self._refused:
            self._refused.add((peer, blob))
            log.warning("ignored peer %s: it sent %s", peer[-8:], what)
