"""A volunteer's pauses, and what they are for."""

from dataclasses import dataclass
from typing import Literal

from dipaco_swarm.events.event import Event
from dipaco_swarm.events.words import how_long

Reason = Literal["asked", "hours", "battery", "metered", "gpu", "cpu"]
"""Why a machine is not for us just now."""


@dataclass(frozen=True)
class Pauses(Event):
    """Nothing is trained until its owner, or what they have asked for, lets it go on."""

    reason: Reason
    words: str

    @property
    def line(self) -> str:
        return f"{self.words}; nothing is lost, and modules that are here are served on"


@dataclass(frozen=True)
class GoesOn(Event):
    seconds: float

    @property
    def line(self) -> str:
        return f"goes on after a pause of {how_long(self.seconds)}"
