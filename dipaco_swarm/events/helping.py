"""Several devices of a machine on one path: who helps, and who does no more."""

from dataclasses import dataclass

from dipaco_swarm.events.event import Event
from dipaco_swarm.events.words import some


@dataclass(frozen=True)
class HelpersAtWork(Event):
    devices: tuple[str, ...]
    """All on which a step is computed, ours first."""
    again: bool
    """Whether they have before, and one was lost."""

    @property
    def line(self) -> str:
        return f"{len(self.devices)} devices share each step {'again' if self.again else 'now'}: {some(self.devices)}"


@dataclass(frozen=True)
class HelperLost(Event):
    """A process that helped has ended, or stands still. Nothing is lost: it had nothing of its own."""

    device: str
    """That goes on."""
    again_seconds: float

    @property
    def line(self) -> str:
        again = f"they start again in {self.again_seconds:.0f} s" if self.again_seconds > 0 else "they start again now"
        return f"a helping process ended; {self.device} trains on alone, nothing is lost, and {again}"


@dataclass(frozen=True)
class HelperFailed(Event):
    """A helper cannot compute, and would fail again."""

    device: str
    """That goes on."""
    why: str

    @property
    def line(self) -> str:
        return f"{self.device} trains on alone: a helper cannot go on: {self.why}"
