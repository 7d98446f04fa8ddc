"""What a peer's time and its line were used for."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from dipaco_swarm.events.event import Event
from dipaco_swarm.events.words import how_long, percent, size


@dataclass(frozen=True)
class Usage(Event):
    """Since this peer was started. Every ten seconds or so, for charts and reports: the screen shows it."""

    quiet: ClassVar[bool] = True
    seconds: float
    """Since its first inner step began, until the run had nothing to train any more."""
    trained_seconds: float
    """Of these, in inner steps (`peer/usage.py` says what counts)."""
    tokens: int
    """Trained on."""
    sent: Mapping[str, int]
    """Bytes by purpose (`swarm/traffic.py`), without those of hivemind's directory."""
    received: Mapping[str, int]

    @property
    def share(self) -> float:
        """Of the time trained, 0 to 1."""
        return min(1.0, self.trained_seconds / self.seconds) if self.seconds else 0.0


@dataclass(frozen=True)
class Worked(Usage):
    """The same when the peer ends, as a farewell."""

    quiet: ClassVar[bool] = False

    @property
    def line(self) -> str:
        return (
            f"trained {percent(self.share)} of {how_long(self.seconds)}; "
            f"sent {_by_purpose(self.sent)}; received {_by_purpose(self.received)}"
        )


def _by_purpose(line: Mapping[str, int]) -> str:
    parts = [f"{purpose} {size(count)}" for purpose, count in line.items() if count]
    if not parts:
        return "nothing"
    return parts[0] if len(parts) == 1 else f"{size(sum(line.values()))} ({', '.join(parts)})"
