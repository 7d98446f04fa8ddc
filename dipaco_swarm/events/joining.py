"""What a volunteer is told before it takes part in a run."""

from dataclasses import dataclass

from dipaco_swarm.events.event import Event
from dipaco_swarm.events.words import Admission, company, count, counted, percent, size

PASSED_ON = ", and has your machine send texts of these documents, as tokens, to other peers"


@dataclass(frozen=True)
class Terms(Event):
    """What a run asks of this machine. Sizes in bytes, for one path, at most."""

    source: str
    """As the run file has it: python, text, ...; or how many."""
    reads: str
    """Which documents, and from where."""
    parameters: int
    memory: int
    disk: int
    """Beside what documents may take."""
    sends: int
    """In a round of all its modules."""
    admission: Admission
    passes_on: bool = False
    """Whether texts of the documents, as tokens, are sent to other peers."""

    @property
    def line(self) -> str:
        takes = f"up to {size(self.memory)} of memory, {size(self.disk)} of disk, {size(self.sends)} sent a round"
        reads = "passes on" if self.passes_on else "reads"
        return f"a path takes {takes}; {reads} {self.source}; {company(self.admission)}"

    @property
    def whole(self) -> str:
        """All of it, for who is asked whether to take part."""
        who = "anybody, unchecked" if self.admission == "open" else "only peers that the operator has invited"
        return (
            f"this run reads {self.reads}{PASSED_ON if self.passes_on else ''}; "
            f"a path has {count(self.parameters)} parameters: up to {size(self.memory)} of memory, "
            f"{size(self.disk)} of disk, {size(self.sends)} sent in a round, to peers that train the same "
            f"modules; who takes part: {who}"
        )


@dataclass(frozen=True)
class OwnDocuments(Event):
    """A volunteer's own documents, which this peer alone trains on."""

    files: int
    size: int
    """Bytes, as they are stored."""
    share: float
    """Of the sequences that it trains on."""

    @property
    def line(self) -> str:
        return (
            f"{percent(self.share)} of what this peer trains on are your own documents "
            f"({counted(self.files, 'file')}, {size(self.size)}); they stay here"
        )


@dataclass(frozen=True)
class NotPrepared(Event):
    """The run names a corpus that is split by path already, and it is of no use here."""

    why: str

    @property
    def line(self) -> str:
        return f"routing documents itself: {self.why[:90]}"
