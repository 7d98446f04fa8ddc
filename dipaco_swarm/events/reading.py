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
