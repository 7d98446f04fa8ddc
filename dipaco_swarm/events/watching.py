"""What somebody who looks at a run notices: who comes and goes, and how far it has come. For the page alone."""

from dataclasses import dataclass

from dipaco_swarm.events.event import Event
from dipaco_swarm.events.words import counted


@dataclass(frozen=True)
class PeerCame(Event):
    peer: str
    nickname: str
    """That it has chosen; may be empty."""
    path: int

    @property
    def line(self) -> str:
        return f"{named(self.peer, self.nickname)} trains path {self.path}"


@dataclass(frozen=True)
class PeerWent(Event):
    peer: str
    nickname: str
    path: int

    @property
    def line(self) -> str:
        return f"{named(self.peer, self.nickname)} has left path {self.path}"


@dataclass(frozen=True)
class ManyCameAndWent(Event):
    """More than anybody would read one by one."""

    came: int
    went: int

    @property
    def line(self) -> str:
        return f"{counted(self.came, 'peer')} came, and {self.went:,} left"


@dataclass(frozen=True)
class VersionEverywhere(Event):
    """The slowest module has come so far."""

    stage: int
    version: int
    target: int | None
    """Of the stage; None: it has no set end."""

    @property
    def line(self) -> str:
        end = "" if self.target is None else f" of {self.target}"
        return f"stage {self.stage}: every module has version {self.version}{end}"


def named(peer: str, nickname: str) -> str:
    """A peer as people read it: what it calls itself, and the end of the name that nobody can choose."""
    return f"{nickname} ({peer[-6:]})" if nickname else peer[-8:]
