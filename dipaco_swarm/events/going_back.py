"""Anchors, and going back to them: what the operator's node says."""

from dataclasses import dataclass

from dipaco_swarm.events.event import Event
from dipaco_swarm.events.words import counted


@dataclass(frozen=True)
class AnchorKept(Event):
    """The node has a copy of all modules that the run can go back to."""

    anchor: int
    version_min: int
    version_max: int

    @property
    def line(self) -> str:
        verb = "is" if self.version_min == self.version_max else "are"
        return f"anchor {self.anchor}: {versions(self.version_min, self.version_max)} of all modules {verb} kept"


@dataclass(frozen=True)
class RolledBack(Event):
    """The run goes on from an anchor, with these modules."""

    anchor: int
    modules: tuple[str, ...]
    version_min: int
    version_max: int

    @property
    def line(self) -> str:
        of = self.modules[0] if len(self.modules) == 1 else counted(len(self.modules), "module")
        return f"back to anchor {self.anchor}: {versions(self.version_min, self.version_max)} of {of}; peers follow"


@dataclass(frozen=True)
class NotRolledBack(Event):
    """An order to go back was not obeyed."""

    anchor: int
    why: str

    @property
    def line(self) -> str:
        return f"not back to anchor {self.anchor}: {self.why}"


def versions(lowest: int, highest: int) -> str:
    return f"version {lowest}" if lowest == highest else f"versions {lowest} to {highest}"
