"""Rounds, tokens and states of modules: what a volunteer trains, commits, catches up with and drops."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from dipaco_swarm.events.event import Event, Fault
from dipaco_swarm.events.words import counted

Loss = Literal["killed", "stale", "not acknowledged", "damaged checkpoint", "damaged memory", "taken back"]
"""Why tokens were dropped.

Killed: trained after the last checkpoint of a life that was ended. Stale: trained on a version that is too old. Not
acknowledged: given to a round whose end this peer did not hear. What was given may be in a version all the same.
Taken back: the operator has gone back to a state before it.
"""


@dataclass(frozen=True)
class Steps(Event):
    """Some inner steps. Not a line for people: the screen shows how training goes."""

    quiet: ClassVar[bool] = True
    stage: int
    path: int
    step: int
    """The path's own count, over all stages and peers."""
    loss: float
    """Mean over these steps, nats per token."""
    tokens: int
    """Of this peer since it was started."""
    tokens_per_second: float


@dataclass(frozen=True)
class Commit:
    """A version of one module that a round has made."""

    version: int
    digest: str
    peers: int
    """Contributors, ourselves included."""
    tokens: int
    """Behind our own outer gradient."""


@dataclass(frozen=True)
class Round(Event):
    """An outer round is over; `modules` are those whose group committed a version."""

    stage: int
    path: int
    step: int
    round: int
    """Since this peer was started."""
    loss: float | None
    """Mean over the round, nats per token; None when it trained nothing."""
    modules: Mapping[str, Commit]

    @property
    def line(self) -> str:
        loss = [] if self.loss is None else [f"loss {self.loss:.3f}"]
        return f"round {self.round}: {', '.join([*loss, self.commits])}"

    @property
    def commits(self) -> str:
        """What was committed, in words."""
        return (
            ", ".join(
                f"{module} v{made.version} with {counted(made.peers - 1, 'other')}"
                for module, made in self.modules.items()
            )
            or "nothing committed"
        )


@dataclass(frozen=True)
class Offer:
    """What a peer brings to the round of one module."""

    base: str
    """Digest of the state that its outer gradient starts from."""
    tokens: int


@dataclass(frozen=True)
class Contributing(Event):
    """A peer is about to give outer gradients away. For ledgers: what it gives, others may have from now on."""

    quiet: ClassVar[bool] = True
    stage: int
    path: int
    trained: int
    """Tokens that it has trained on this path, in all its lives."""
    modules: Mapping[str, Offer]


@dataclass(frozen=True)
class Committed(Event):
    """A group has committed a version of a module. Written down before anybody can have it from this peer."""

    quiet: ClassVar[bool] = True
    stage: int
    module: str
    version: int
    digest: str
    base: str
    """Digest of the version that it follows."""
    work: int
    """Behind it, in its whole history (`ModuleState.work`)."""
    tokens: Mapping[str, int]
    """Behind the outer gradient of each peer that is in it."""


@dataclass(frozen=True, kw_only=True)
class RoundFailed(Fault):
    """A round of one module was aborted. Local progress stays, and comes to the next one."""

    module: str
    reason: str

    @property
    def line(self) -> str:
        return f"{self.module}: {self.reason}; nothing lost"


@dataclass(frozen=True)
class CaughtUp(Event):
    """The state that the group agrees on was fetched in the middle of training."""

    module: str
    before: int
    """Version that we were at."""
    version: int

    @property
    def line(self) -> str:
        return f"{self.module}: caught up from version {self.before} to {self.version}"


@dataclass(frozen=True)
class Doubted(Event):
    """What a peer has contributed does harm on our documents: from now on we say so in our rounds."""

    peer: str
    module: str
    of_noise: float | None
    """How much its contribution bends the loss, in times of what random numbers of a usual length do; None: little."""
    repeats: bool
    """Whether it is what it has contributed before."""

    @property
    def line(self) -> str:
        sends = ["what it has sent before"] * self.repeats
        if self.of_noise is not None:
            sends.append(f"what bends the loss {self.of_noise:.1f} times as much as noise")
        what = " and ".join(sends)
        return f"{self.module}: peer {self.peer[-8:]} sends {what}; it is left out while most others find so too"


@dataclass(frozen=True)
class WentBack(Event):
    """The operator has gone back with a module, and this peer with it."""

    module: str
    before: int
    """Version that we were at."""
    version: int
    tokens: int
    """Trained here since the version that we were at."""

    @property
    def line(self) -> str:
        lost = f"; {counted(self.tokens, 'token')} trained since are dropped" if self.tokens else ""
        return f"{self.module}: the operator has gone back; from version {self.before} to {self.version}{lost}"


@dataclass(frozen=True)
class Fetched(Event):
    """The state that the group agrees on was fetched before training."""

    module: str
    version: int

    @property
    def line(self) -> str:
        return f"fetched {self.module} at version {self.version}"


@dataclass(frozen=True, kw_only=True)
class StateNotSent(Fault):
    """Holders announce a state, and none of them sends it."""

    module: str
    version: int
    again_seconds: float | None = None
    """It is asked for again after this; None: training goes on meanwhile."""

    @property
    def line(self) -> str:
        next_step = (
            "training goes on" if self.again_seconds is None else f"asking again every {self.again_seconds:.0f} s"
        )
        return f"nobody sends {self.module} at version {self.version} just now; {next_step}"


@dataclass(frozen=True, kw_only=True)
class RestoredNotThere(Fault):
    """The operator has gone back with a module, and nobody is there who has it since."""

    module: str

    @property
    def line(self) -> str:
        return f"the operator has gone back with {self.module}, and nobody here has it yet; waiting for who has"


@dataclass(frozen=True)
class ReadyForStage(Event):
    """A stage that comes was prepared beside training."""

    stage: int
    path: int

    @property
    def line(self) -> str:
        return f"ready for path {self.path} of stage {self.stage}, and training on until it opens"


@dataclass(frozen=True)
class TokensDropped(Event):
    """A peer goes on with a module without tokens that it has trained."""

    stage: int
    path: int
    module: str
    version: int
    """That they were trained on."""
    tokens: int
    reason: Loss
    local: int
    """Tokens that it still has beyond the version."""
    trained: int
    """Tokens that it has trained on this path, in all its lives."""

    @property
    def for_people(self) -> bool:
        return self.reason not in ("killed", "taken back")  # `EndedUnsaved` and `WentBack` say it

    @property
    def line(self) -> str:
        match self.reason:
            case "stale":
                why = f"trained on version {self.version} are too old to count"
            case "not acknowledged":
                why = "were given to a round whose end we did not hear; they count if it was made"
            case "killed":
                why = "were trained after the last checkpoint; they count if a round had them"
            case _:
                why = f"trained on version {self.version} are lost with the {self.reason}"
        return f"{self.module}: {self.tokens:,} tokens {why}"


@dataclass(frozen=True)
class MemoryDamaged(Event):
    """An agreed state has changed in this machine's memory."""

    module: str
    fetched: bool
    """Whether a whole one was found."""

    @property
    def line(self) -> str:
        found = "it was fetched again" if self.fetched else "nobody has another; going on with it"
        return f"{self.module} was damaged in this machine's memory; {found}. Is the memory in order?"
