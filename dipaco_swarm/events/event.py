"""What every event has: a kind for programs, a line for people."""

import re
from dataclasses import dataclass, replace
from typing import ClassVar, Self

from pydantic import ConfigDict

from dipaco_swarm.events.words import how_long

EVENTS: dict[str, type["Event"]] = {}
"""Kind -> class, of all events that somebody may read back."""


@dataclass(frozen=True)
class Event:
    """Something that happened. Each subclass is a kind: `TokensDropped` is "tokens-dropped"."""

    kind: ClassVar[str]
    __pydantic_config__: ClassVar[ConfigDict] = {"strict": True, "extra": "forbid"}
    quiet: ClassVar[bool] = False
    """Not for people: for charts and ledgers alone."""

    def __init_subclass__(cls) -> None:
        cls.kind = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", cls.__name__).lower()
        EVENTS[cls.kind] = cls

    @property
    def for_people(self) -> bool:
        """Whether a screen shows it."""
        return not self.quiet

    @property
    def line(self) -> str:
        """One calm line: what happened, and what to do about it if anything."""
        return self.kind  # of a quiet one

    def __str__(self) -> str:
        return self.line


@dataclass(frozen=True, kw_only=True)
class Fault(Event):
    """Something that does not work just now. Whoever notices reports it again and again; `Notices` says it seldom."""

    lasted: float = 0.0
    """Seconds for which it has not worked, when it was said before; 0: it is said for the first time."""

    def after(self, seconds: float) -> Self:
        """The same fault, that much later."""
        return replace(self, lasted=seconds)

    def __str__(self) -> str:
        return f"{self.line} (for {how_long(self.lasted)} now)" if self.lasted else self.line


@dataclass(frozen=True)
class Logged(Event):
    """A line that a lower floor has logged."""

    text: str

    @property
    def line(self) -> str:
        return self.text


@dataclass(frozen=True)
class OfPeer(Event):
    """An event of one of several peers in one process."""

    peer: str
    event: Event

    @property
    def for_people(self) -> bool:
        return self.event.for_people

    @property
    def line(self) -> str:
        return f"{self.peer}: {self.event}"
