"""What a volunteer is told before it takes part in a run."""

from dataclasses import dataclass
from typing import Literal

from dipaco_swarm.events.event import Event
from dipaco_swarm.events.words import count, size


@dataclass(frozen=True)
class Terms(Event):
    """What a run asks of this machine. Sizes in bytes, for one path, at most."""

    source: str
    """As the run file has it: python, text, ..."""
    reads: str
    """Which documents, and from where."""
    parameters: int
    memory: int
    disk: int
    """Beside what documents may take."""
    sends: int
    """In a round of all its modules."""
    admission: Literal["open", "invited"]

    @property
    def line(self) -> str:
        who = "open to all, unchecked" if self.admission == "open" else "invited peers"
        takes = f"up to {size(self.memory)} of memory, {size(self.disk)} of disk, {size(self.sends)} sent a round"
        return f"a path takes {takes}; reads {self.source}; {who}"

    @property
    def whole(self) -> str:
        """All of it, for who is asked whether to take part."""
        who = "anybody may take part, unchecked" if self.admission == "open" else "the operator has invited all of them"
        return (
            f"this run reads {self.reads}; a path has {count(self.parameters)} parameters: up to {size(self.memory)} "
            f"of memory, {size(self.disk)} of disk, {size(self.sends)} sent in a round, to who trains the same; {who}"
        )
