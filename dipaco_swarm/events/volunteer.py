"""A volunteer's life apart from its rounds: joining, waiting, its disk, its company, leaving."""

from dataclasses import dataclass
from typing import Literal

from dipaco_swarm.events.event import Event, Fault
from dipaco_swarm.events.words import how_long, some

Works = Literal["checkpoint", "disk", "bootstrap", "files", "run"]
"""What can fail and work again."""

_WORKS = {
    "checkpoint": "the checkpoint can be saved again",
    "disk": "the disk has room again",
    "bootstrap": "the bootstrap node answers again",
    "files": "the run's files come again",
    "run": "the run answers again",
}

# ------------------------------------------------------------------------------------------------- joining and leaving


@dataclass(frozen=True)
class Joining(Event):
    run: str

    @property
    def line(self) -> str:
        return f"joining {self.run}"


@dataclass(frozen=True)
class Joined(Event):
    """The run's manifest is here. For the operator, ledgers, and whoever looks for themselves: who this peer is."""

    peer: str
    """As the others call it."""

    @property
    def line(self) -> str:
        return f"this peer is {self.peer}"


@dataclass(frozen=True)
class RunChanged(Event):
    """The operator has changed the run."""

    changes: tuple[str, ...]

    @property
    def line(self) -> str:
        return f"the operator has changed the run: {'; '.join(self.changes)}"


@dataclass(frozen=True, kw_only=True)
class NobodyAnswers(Fault):
    """None of the run's peers that we know can be reached."""

    run: str
    again_seconds: float

    @property
    def line(self) -> str:
        return f"nobody of {self.run} answers just now; knocking every {self.again_seconds:.0f} s"


@dataclass(frozen=True)
class LeftAlone(Event):
    """Our part of a stage is done, and nobody is there to say whether the run is."""

    seconds: float

    @property
    def line(self) -> str:
        return (
            f"this stage is done here, and for {how_long(self.seconds)} nobody was heard who is not done too: leaving"
        )


@dataclass(frozen=True)
class NotDialable(Event):
    """This machine is behind a router."""

    @property
    def line(self) -> str:
        return (
            "others cannot dial this machine: they come through the bootstrap node, which relays; "
            "dipaco-swarm doctor says what would be faster"
        )


@dataclass(frozen=True)
class AwaitingManifest(Event):
    again_seconds: float

    @property
    def line(self) -> str:
        return f"nobody has sent the run's manifest yet; asking again in {self.again_seconds:.0f} s"


@dataclass(frozen=True)
class AwaitingAdmission(Event):
    peer: str

    @property
    def line(self) -> str:
        return f"the invitation is accepted; waiting until everybody has heard that {self.peer} may take part"


@dataclass(frozen=True)
class Left(Event):
    @property
    def line(self) -> str:
        return "left the swarm; the same command goes on from here"


@dataclass(frozen=True)
class DaemonRestarts(Event):
    """The network daemon of this machine has ended under the program."""

    @property
    def line(self) -> str:
        return "the network daemon of this machine ended; starting it again"


@dataclass(frozen=True)
class HandingOver(Event):
    """A peer that leaves waits for a keeper to have what nobody else has."""

    modules: tuple[str, ...]

    @property
    def line(self) -> str:
        return f"handing {some(self.modules)} to a keeper"


@dataclass(frozen=True)
class HandedOver(Event):
    @property
    def line(self) -> str:
        return "a keeper has it; nothing is lost"


@dataclass(frozen=True)
class OnlyHere(Event):
    """A peer leaves with the only copy of these modules."""

    modules: tuple[str, ...]

    @property
    def line(self) -> str:
        are = "is" if len(self.modules) == 1 else "are"
        return f"{some(self.modules)} {are} only in this machine's checkpoint; start again here to bring it back"


# ----------------------------------------------------------------------------------------------------- stage and path


@dataclass(frozen=True)
class StageBegan(Event):
    """The peer gets ready for a path of a stage."""

    stage: int
    path: int
    paths: int
    modules: tuple[str, ...]

    @property
    def line(self) -> str:
        return f"stage {self.stage}: path {self.path} of {self.paths}, {', '.join(self.modules)}"


@dataclass(frozen=True)
class ReadingDocuments(Event):
    documents: int
    sequences: int

    @property
    def line(self) -> str:
        return f"reading documents: {self.documents:,}, {self.sequences:,} sequences"


@dataclass(frozen=True)
class ShardReady(Event):
    sequences: int
    tokens: int

    @property
    def line(self) -> str:
        return f"shard ready: {self.sequences:,} sequences, {self.tokens:,} tokens"


@dataclass(frozen=True)
class Resumed(Event):
    """A peer goes on from its checkpoint."""

    step: int

    @property
    def line(self) -> str:
        return f"going on from the checkpoint at step {self.step}"


@dataclass(frozen=True)
class EndedUnsaved(Event):
    """The life before this one was ended between two checkpoints."""

    tokens: int

    @property
    def line(self) -> str:
        return (
            f"this peer was ended before it could save again: the last {self.tokens:,} tokens of its training are "
            "lost, unless a round had them"
        )


@dataclass(frozen=True)
class Waiting(Event):
    """There is nothing to train now."""

    reason: Literal["peers", "stage", "finished"]
    peers: int = 0
    """How many more are needed to start."""

    @property
    def line(self) -> str:
        match self.reason:
            case "peers":
                return f"waiting for {self.peers} more {'peer' if self.peers == 1 else 'peers'} to start"
            case "stage":
                return "this stage is done; waiting for the next one"
            case "finished":
                return "the run is finished; serving its modules until Ctrl+C"


@dataclass(frozen=True)
class Moving(Event):
    """With --path auto: another path needs help more."""

    before: int
    path: int

    @property
    def line(self) -> str:
        return f"moving from path {self.before} to path {self.path}, where help is needed more"


@dataclass(frozen=True)
class Scored(Event):
    """The operator's routing sample was scored for a learned router."""

    pieces: int
    path: int

    @property
    def line(self) -> str:
        return f"scored {self.pieces:,} pieces of the routing sample under path {self.path}"


@dataclass(frozen=True)
class NothingHeldOut(Event):
    """The shard is too small for early stopping."""

    path: int

    @property
    def line(self) -> str:
        return f"the shard of path {self.path} is too small to hold any of it out: no early stopping for it"


@dataclass(frozen=True)
class BestSnapshot(Event):
    """A path has never been better on the held-out slice of its shard."""

    path: int
    loss: float
    """Nats per token."""
    versions: dict[str, int]
    """Of each module."""
    kept: bool = False
    """Whether this is the bootstrap node, which took it from a peer."""

    @property
    def line(self) -> str:
        versions = ", ".join(f"{module} at version {version}" for module, version in self.versions.items())
        keeping = "keeping " if self.kept else ""
        return (
            f"{keeping}the best snapshot of path {self.path} (loss {self.loss:.4f} on a slice of its shard): {versions}"
        )


# ----------------------------------------------------------------------------------------------------------- the disk


@dataclass(frozen=True, kw_only=True)
class CannotWrite(Fault):
    """Something does not get to the disk; the program goes on."""

    error: str
    goes_on: Literal["training", "the run"] = "training"
    again_seconds: float | None = None

    @property
    def line(self) -> str:
        if self.again_seconds is not None:
            return f"{self.error}; trying again in {self.again_seconds:.0f} s"
        return f"{self.error}; {self.goes_on} goes on"


@dataclass(frozen=True)
class NotSaved(Event):
    """A peer leaves, and its disk does not take the last checkpoint."""

    @property
    def line(self) -> str:
        return "what was trained since the last checkpoint is not saved"


@dataclass(frozen=True)
class CheckpointDamaged(Event):
    path: int
    salvaged: tuple[str, ...]
    """Modules of it that are whole."""

    @property
    def line(self) -> str:
        whole = f"{', '.join(self.salvaged)} of it can be used" if self.salvaged else "starting from the swarm's"
        return f"the checkpoint of path {self.path} is damaged and was set aside; {whole}"


# ----------------------------------------------------------------------------------------------------- the others


@dataclass(frozen=True, kw_only=True)
class BootstrapSilent(Fault):
    """The bootstrap node is not to be heard."""

    alone: bool
    """Whether nobody else is either."""

    @property
    def line(self) -> str:
        if self.alone:
            return "nobody else is to be heard; training goes on alone, and is shared when they are back"
        return "the bootstrap node is not to be heard; training goes on without it"


@dataclass(frozen=True, kw_only=True)
class FilesNotSent(Fault):
    again_seconds: float

    @property
    def line(self) -> str:
        return f"nobody sends the run's files just now; asking again every {self.again_seconds:.0f} s"


@dataclass(frozen=True, kw_only=True)
class ForgedManifest(Fault):
    @property
    def line(self) -> str:
        return "somebody sends a manifest that is not the operator's; it is ignored"


@dataclass(frozen=True)
class Recovered(Event):
    """Something works again of which was said that it does not."""

    what: Works

    @property
    def line(self) -> str:
        return _WORKS[self.what]


@dataclass(frozen=True)
class Slept(Event):
    """This program stood still, as on a laptop that sleeps."""

    seconds: float

    @property
    def line(self) -> str:
        return f"this machine was asleep for {how_long(self.seconds)}; looking where the group is"


@dataclass(frozen=True)
class ClockSet(Event):
    """The wall clock was set."""

    seconds: float
    """Forward; negative: back."""

    @property
    def line(self) -> str:
        way = "forward" if self.seconds > 0 else "back"
        return (
            f"this machine's clock was set {way} by {how_long(abs(self.seconds))}; "
            "if it is wrong now, the others cannot hear us"
        )
