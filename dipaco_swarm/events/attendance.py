"""Whether a synchronous run was whole: who was missing, and in what."""

from dataclasses import dataclass

from dipaco_swarm.events.event import Event
from dipaco_swarm.events.words import some


@dataclass(frozen=True)
class MadeWithout(Event):
    """A version was made without somebody who was in the one before."""

    stage: int
    module: str
    version: int
    missing: tuple[str, ...]
    """The ends of their names; nobody: it was this peer."""

    @property
    def flaw(self) -> str:
        who = some(self.missing) if self.missing else "this peer"
        return f"stage {self.stage}: {self.module} v{self.version} was made without {who}"

    @property
    def line(self) -> str:
        return f"not whole: {self.flaw}"


@dataclass(frozen=True)
class LeftEarly(Event):
    """This peer goes, and leaves to the others what is not done in its stage."""

    stage: int

    @property
    def flaw(self) -> str:
        return f"this peer left stage {self.stage} before its end"

    @property
    def line(self) -> str:
        return f"not whole: {self.flaw}"


@dataclass(frozen=True)
class Whole(Event):
    """The run has ended, and nobody was missing in any round."""

    @property
    def line(self) -> str:
        return "whole: every round had everybody"
