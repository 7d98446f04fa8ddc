"""The bootstrap node's life: stages, routers, what it keeps; and the programs that train beside a swarm."""

from dataclasses import dataclass

from dipaco_swarm.events.event import Event
from dipaco_swarm.events.words import how_long

SHARES_SHOWN = 16
"""Of more paths only the smallest and the largest share are shown."""


@dataclass(frozen=True)
class Serving(Event):
    """The run can be joined."""

    address: str

    @property
    def line(self) -> str:
        return f"run address: {self.address}"


@dataclass(frozen=True)
class PageServed(Event):
    """A browser can look at the run."""

    url: str
    public: bool
    """Whether from other machines."""

    @property
    def line(self) -> str:
        whom = "whoever reaches this machine can look at it, names included" if self.public else "from this machine"
        return f"a page of the run: {self.url} ({whom})"


@dataclass(frozen=True)
class RunExtended(Event):
    """The operator has changed the run file, and the run goes on by it."""

    changes: tuple[str, ...]

    @property
    def line(self) -> str:
        return f"the run goes on by another run file: {'; '.join(self.changes)}"


@dataclass(frozen=True)
class StandbyAppointed(Event):
    """A second node may sign for the operator from now on, and is in the run address."""

    key: str
    places: tuple[str, ...]

    @property
    def line(self) -> str:
        return f"the standby {self.key[:12]} may take over; the run address has {', '.join(self.places)} as well now"


@dataclass(frozen=True)
class NotAppointed(Event):
    key: str
    why: str

    @property
    def line(self) -> str:
        return f"the standby {self.key[:12]} is not appointed: {self.why}"


@dataclass(frozen=True)
class StandingBy(Event):
    """A second bootstrap node has what it needs."""

    name: str
    """What the operator gives to `dipaco-bootstrap appoint`."""
    appointed: bool

    @property
    def line(self) -> str:
        if self.appointed:
            return "standing by: it keeps what the run has, and leads it when told, with `dipaco-bootstrap promote`"
        return f"standing by; the operator lets it take over with: dipaco-bootstrap appoint RUN.toml {self.name}"


@dataclass(frozen=True)
class Promoted(Event):
    """A standby leads the run now."""

    revision: int

    @property
    def line(self) -> str:
        return f"this node leads the run from now on, beginning with revision {self.revision}"


@dataclass(frozen=True)
class NotPromoted(Event):
    """It was told to take over, and the operator has not appointed it."""

    name: str

    @property
    def line(self) -> str:
        return (
            "this node cannot lead the run, for the operator has not appointed it: dipaco-bootstrap appoint RUN.toml "
            f"{self.name}, on the node that leads"
        )


@dataclass(frozen=True)
class Superseded(Event):
    """Another node has taken over."""

    revision: int

    @property
    def line(self) -> str:
        return f"another node leads the run now (revision {self.revision}); this one stands by"


@dataclass(frozen=True)
class NotExtended(Event):
    """The operator has changed the run file, and it cannot be followed."""

    key: str
    why: str

    @property
    def line(self) -> str:
        return f"the run stays as it is, as its new run file cannot be followed: {self.key}: {self.why}"


@dataclass(frozen=True)
class TrainingTokenizer(Event):
    vocabulary: int

    @property
    def line(self) -> str:
        return f"training a tokenizer of {self.vocabulary:,} tokens"


@dataclass(frozen=True)
class StartingFrom(Event):
    """A checkpoint has become the run's first modules."""

    checkpoint: str
    model_type: str
    parameters: int

    @property
    def line(self) -> str:
        return f"starting from {self.checkpoint}: {self.model_type}, {self.parameters:,} parameters"


@dataclass(frozen=True)
class AskingForScores(Event):
    pieces: int

    @property
    def line(self) -> str:
        return f"asking the peers to score {self.pieces:,} pieces under their paths"


@dataclass(frozen=True)
class FittingRouter(Event):
    router: str
    paths: int

    @property
    def line(self) -> str:
        return f"fitting a router ({self.router}) for {self.paths} paths"


@dataclass(frozen=True)
class RouterKept(Event):
    """None could be learned: the router of the stage before stays."""

    stage: int
    because: str

    @property
    def line(self) -> str:
        return f"keeping the router of stage {self.stage}, for none can be learned: {self.because}"


@dataclass(frozen=True)
class RouterFitted(Event):
    prefixes: int
    shares: tuple[float, ...]
    """Of the sample's documents, by path."""

    @property
    def line(self) -> str:
        if len(self.shares) > SHARES_SHOWN:
            shares = f"{100 * min(self.shares):.1f} to {100 * max(self.shares):.1f} %"
        else:
            shares = ", ".join(f"{100 * share:.0f}" for share in self.shares) + " %"
        return f"router fitted on {self.prefixes:,} prefixes; shares of the paths: {shares}"


@dataclass(frozen=True)
class TrainingWindowRouter(Event):
    paths: int

    @property
    def line(self) -> str:
        return f"training the window router of {self.paths} paths"


@dataclass(frozen=True)
class WindowRouterTrained(Event):
    right: float
    """Share of held-out windows for which it chose the best path."""

    @property
    def line(self) -> str:
        return f"window router trained; right about {100 * self.right:.0f} % of the windows it had not seen"


@dataclass(frozen=True)
class NoWindowRouter(Event):
    error: str

    @property
    def line(self) -> str:
        return f"the run goes on without a window router: {self.error}"


@dataclass(frozen=True)
class KeptStateDamaged(Event):
    module: str
    set_aside: str
    """Name of the file now."""

    @property
    def line(self) -> str:
        return f"{self.module} is damaged here; set aside as {self.set_aside}, to be fetched from the peers"


@dataclass(frozen=True)
class StrangersAhead(Event):
    """Peers train further than this node takes their states."""

    peers: int
    minutes: int

    @property
    def line(self) -> str:
        who = "1 peer trains" if self.peers == 1 else f"{self.peers} peers train"
        return (
            f"{who} ahead of this node, which knows none of them, and takes what they have after {self.minutes} "
            "minutes without anybody it knows"
        )


@dataclass(frozen=True)
class NodeResumed(Event):
    stage: int
    revision: int
    """Of the manifest."""

    @property
    def line(self) -> str:
        return f"going on with stage {self.stage}, revision {self.revision}"


@dataclass(frozen=True)
class OlderCopy(Event):
    """The home folder was restored from a backup, and the peers have gone on."""

    stage: int

    @property
    def line(self) -> str:
        return f"this folder is an older copy of the run; going on with stage {self.stage}"


@dataclass(frozen=True)
class NotAdvancing(Event):
    """The operator has asked for the next stage too early."""

    @property
    def line(self) -> str:
        return "told to advance, but not every module of this stage has been trained yet; not now"


@dataclass(frozen=True)
class StageEnds(Event):
    """The operator has asked for the next stage."""

    stage: int
    version: int
    """The last one of every module."""

    @property
    def line(self) -> str:
        return f"told to advance: stage {self.stage} ends when every module has version {self.version}"


@dataclass(frozen=True)
class TrainsOn(Event):
    """A stage has made its rounds, and goes on until the next one can open."""

    stage: int

    @property
    def line(self) -> str:
        return f"stage {self.stage} has made its rounds; it trains on while stage {self.stage + 1} is prepared"


@dataclass(frozen=True)
class StageReady(Event):
    """The stage can open as soon as the rounds under way are made."""

    stage: int
    ready: int
    peers: int

    @property
    def line(self) -> str:
        return f"stage {self.stage} opens after one more round: {self.ready} of {self.peers} peers are ready for it"


@dataclass(frozen=True)
class CannotGoOn(Event):
    """The stage after this one, or the run's end, cannot be made."""

    stage: int
    error: str
    seconds: float
    """Until it is tried again."""

    @property
    def line(self) -> str:
        how = f"`extend` the run by another run file, or it is tried again in {how_long(self.seconds)}"
        return f"what follows stage {self.stage} cannot be made: {self.error}; {how}"


@dataclass(frozen=True)
class StageOpened(Event):
    stage: int
    paths: int

    @property
    def line(self) -> str:
        return f"stage {self.stage} is open: {self.paths} paths"


@dataclass(frozen=True)
class RunFinished(Event):
    @property
    def line(self) -> str:
        return "the last stage is done: the run is finished"


@dataclass(frozen=True)
class NodeDown(Event):
    @property
    def line(self) -> str:
        return "the node is down; the same command goes on from here, peers train on meanwhile"


@dataclass(frozen=True)
class SimulationStopped(Event):
    @property
    def line(self) -> str:
        return "stopped; the same command goes on from here"


@dataclass(frozen=True)
class DenseBaseline(Event):
    """The demo's dense model: reading, training, done."""

    steps: int
    done: bool

    @property
    def line(self) -> str:
        return f"done: {self.steps} steps" if self.done else f"training {self.steps} steps"


@dataclass(frozen=True)
class ReadingMixture(Event):
    @property
    def line(self) -> str:
        return "reading the whole mixture"
