"""What a volunteer hears of a shard that is read beside training."""

from dataclasses import dataclass

from dipaco_swarm.events.event import Event


@dataclass(frozen=True)
class FirstSequences(Event):
    """Training can begin."""

    sequences: int
    documents: int
    """Read for them."""

    @property
    def line(self) -> str:
        return (
            f"the first {self.sequences:,} sequences are here, from {self.documents:,} documents; the rest is read "
            "beside training"
        )


@dataclass(frozen=True)
class AwaitingDocuments(Event):
    """Training is faster than reading."""

    documents: int
    """Read so far."""

    @property
    def line(self) -> str:
        return f"training waits for more documents: {self.documents:,} were read"


@dataclass(frozen=True)
class CorpusEnded(Event):
    """All documents were read once."""

    documents: int
    sequences: int

    @property
    def line(self) -> str:
        return (
            f"all {self.documents:,} documents were read once: {self.sequences:,} sequences; now from the first again"
        )


@dataclass(frozen=True)
class ReaderRestarted(Event):
    """The process that reads beside training was ended by something else."""

    status: str

    @property
    def line(self) -> str:
        return f"the process that reads the documents ended (status {self.status}); starting it again, nothing lost"


@dataclass(frozen=True)
class RoutedByOthers(Event):
    """The first part of the corpus has come that another peer has routed."""

    peer: str

    @property
    def line(self) -> str:
        return f"texts that others have routed come too, the first from peer {self.peer[-8:]}; not all is routed here"


@dataclass(frozen=True)
class RoutesRefused(Event):
    """What a peer says of the corpus does not stand being done again."""

    peer: str
    portion: int
    """In the run's order."""
    why: str
    """What it has sent."""

    @property
    def line(self) -> str:
        return f"peer {self.peer[-8:]} is not believed about the corpus: in portion {self.portion} {self.why}"[:120]
