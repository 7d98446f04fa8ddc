"""All that a program may ask of the other peers. One implementation, `networked.py`, over any transport.

Synchronous on purpose: a training loop is one thread doing one thing. Calls block and return by their timeout; people
leaving is ordinary and comes back as a value. Only asking for something that nobody has raises.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, NewType, Protocol

from torch import Tensor

from dipaco_swarm.algorithm.outer import Vector
from dipaco_swarm.algorithm.paths import ModuleId, PathIndex
from dipaco_swarm.algorithm.plan import Claim
from dipaco_swarm.algorithm.state import ModuleState
from dipaco_swarm.machine.clock import Clock
from dipaco_swarm.swarm.cards import NO_CARD, Card
from dipaco_swarm.swarm.encoded_average import EncodedAverage, Span
from dipaco_swarm.swarm.fetching import FetchUnderWay, Older
from dipaco_swarm.swarm.reduced import Reduced
from dipaco_swarm.swarm.residual import Residual as Residual
from dipaco_swarm.swarm.timing import Timing
from dipaco_swarm.swarm.traffic import Traffic

if TYPE_CHECKING:
    from dipaco_swarm.swarm.asking import Asking
    from dipaco_swarm.swarm.door import Door
    from dipaco_swarm.swarm.round.court import Court
    from dipaco_swarm.swarm.sharing import Sharing

PeerName = NewType("PeerName", str)
"""A libp2p peer id in base 58. It contains the peer's Ed25519 public key, so it is also how we check signatures."""


class Role(StrEnum):
    """What a peer does with a module that it announces."""

    TRAINS = "trains"
    """It trains a path through the module."""
    HOLDS = "holds"
    """It has trained the module, and holds it until others have it: it moved to another path, or is leaving."""
    KEEPS = "keeps"
    """It trains nothing, and is there to hold modules, as the bootstrap node is."""


@dataclass(frozen=True)
class Announcement:
    """What a peer says about itself and one of its modules: signed, short-lived, repeated while it lives.

    Raises ValueError when it names a path and does not train, or the other way round.
    """

    peer: PeerName
    stage: int
    module: ModuleId
    path: PathIndex | None
    """The path that it trains through the module; None: it does not train it."""
    version: int
    digest: str
    """Digest of the module's state at that version."""
    work: int = 0
    """Tokens behind that state (`ModuleState.work`)."""
    tokens: int = 0
    """Tokens trained since that version."""
    tokens_per_second: float = 0.0
    loss: float | None = None
    reduces: bool = True
    """Whether others can dial it, so that it can lead and reduce. Of our own the swarm fills this in."""
    moves: bool = False
    """Whether it goes to other paths when it is needed there."""
    catching_up: bool = False
    """Whether it is fetching a newer state just now."""
    role: Role = Role.TRAINS
    card: Card = NO_CARD
    """Of the peer; in the announcement of one of its modules."""
    awake: bool = True
    """False after three of the peer's usual intervals without an announcement. Set by who receives it, never sent."""
    known: bool = field(default=True, compare=False)
    """Whether it has contributed to states that we believe, or we know nobody. Set by who receives it as well."""

    def __post_init__(self) -> None:
        if self.trains == (self.path is None):
            raise ValueError(f"{self.peer} says that it {self.role} {self.module}, on path {self.path}")

    @property
    def trains(self) -> bool:
        return self.role is Role.TRAINS


@dataclass(frozen=True)
class ModuleGroup:
    """The paths that share a module in a stage, and how much each counts."""

    stage: int
    module: ModuleId
    path_weights: Mapping[PathIndex, float]
    averaging: str = "mean"
    """How outer gradients are averaged: the name of a rule of `algorithm/averaging/`."""
    round_tokens: int = 0
    """What a path trains on in a full round; a path with less counts less. 0: all count in full."""
    whole: bool = False
    """A round waits for everybody, however slow or silent, for as long as patience lasts (synchronous pacing)."""


@dataclass(frozen=True, eq=False)
class Contribution:
    """A member's part in a round of one module."""

    group: ModuleGroup
    path: PathIndex
    version: int
    """The version that the outer gradient starts from."""
    gradient: Vector
    """Outer gradient, without weight decay."""
    tokens: int
    digest: str
    """Of the state that the outer gradient starts from: all members of a round start from the same one."""
    work: int = 0
    """Behind that state."""
    decay: float = 0.0
    """The amount of weight decay that was left out (`algorithm/weight_decay.py`)."""
    doubts: tuple[str, ...] = ()
    """Whom we doubt (`algorithm/doubts.py`)."""


@dataclass(frozen=True, eq=False)
class Agreed:
    """The round is decided: every member has exactly this average."""

    encoded: EncodedAverage
    """Weighted mean of the outer gradients, as it came over the wire."""
    contributors: tuple[PeerName, ...]
    """Everybody who is in some part of the mean."""
    tokens: Mapping[PeerName, int] = field(default_factory=dict)
    """Of those who are in most of the mean: together, what the next version has more of work than this one."""
    left_out: tuple[PeerName, ...] = ()
    """Members of the roster that are not in every part of the mean."""
    bytes_sent: int = 0
    bytes_received: int = 0
    seconds: float = 0.0
    state: ModuleState | None = None
    """The next version, where the swarm was told how to make it. Its digest is known."""
    reduced: Reduced | None = None
    """What was contributed to the pieces that we have made."""

    @property
    def mean(self) -> Tensor:
        """Weighted mean of the outer gradients, fp32, shape (parameters,), not yet rescaled; decoded each time."""
        return self.encoded.mean

    @property
    def spans(self) -> tuple[Span, ...]:
        return self.encoded.spans

    @property
    def work(self) -> int:
        """What the next version has more of work than this one."""
        return sum(self.tokens.values())


@dataclass(frozen=True)
class NotAgreed:
    """The round did not happen for us. Nothing changed anywhere; local progress is intact."""

    reason: str
    """One calm line for a person."""
    given: bool = False
    """Whether the others may have our outer gradient: if they have gone on, it is in their average."""


Outcome = Agreed | NotAgreed


class RoundUnderWay(Protocol):
    """A round of one module that others make with us, while our program does something else."""

    def outcome(self, *, timeout: float | None = 0.0) -> Outcome | None:
        """How it ended; None while it goes on. `timeout`: seconds to wait for that; None: until it is over."""
        ...

    @property
    def progress(self) -> float:
        """How far its exchange has come, 0 to 1; 0 while the others are waited for. From any thread."""
        ...

    def cancel(self) -> None:
        """Leave it. If the others may have our part by now, its outcome says so."""
        ...


class Swarm(Protocol):
    """The other peers, as one object."""

    @property
    def peer(self) -> PeerName:
        """Our own name."""
        ...

    @property
    def clock(self) -> Clock:
        """The time that this peer lives in; programs look at no other clock."""
        ...

    @property
    def timing(self) -> Timing:
        """How long things take in this swarm; programs wait by the same numbers as the protocol."""
        ...

    door: "Door"
    """Who may take part, and invitations."""
    court: "Court"
    """Where who makes no rounds hears of those who were convicted; they are in `door.bans` then."""
    sharing: "Sharing"
    """Work that is done once for everybody."""
    asking: "Asking"
    """Texts that peers write when they are asked."""

    # who is there ------------------------------------------------------------------------------------------------

    def announce(self, announcements: Sequence[Announcement], groups: Sequence[ModuleGroup] = ()) -> None:
        """Say this about ourselves from now on, replacing what we said before; empty means goodbye. Returns at once.

        `groups`: the module groups that we take part in; rounds of other modules are refused.
        """
        ...

    def tell(self, peer: PeerName, holds: Sequence[Announcement]) -> None:
        """Say to one peer, past the directory, which states we hold, and read soon who else does. Returns at once."""
        ...

    def members(self, stage: int, module: ModuleId) -> tuple[Announcement, ...]:
        """Live announcements about a module, our own included, sorted by peer. May be some seconds old."""
        ...

    def look_up(self, stage: int, modules: Sequence[ModuleId], *, timeout: float, thorough: bool = True) -> None:
        """Find out now who is there, for `members`; not `thorough`: for a quarter, and of a heartbeat ago will do."""
        ...

    def publish(self, topic: str, statement: bytes) -> None:
        """Repeat a small signed statement (up to 512 bytes) about a topic while we live. Returns at once."""
        ...

    def statements(self, topic: str, *, timeout: float) -> dict[PeerName, bytes]:
        """What live peers say about a topic, our own statement included."""
        ...

    def is_gathering(self, stage: int, module: ModuleId, version: int, *, by_strangers: bool = False) -> bool:
        """Whether somebody gathers the round of this version, so that we should come soon.

        `by_strangers`: whether somebody does of whom we do not know that it has ever contributed.
        """
        ...

    def believed(
        self, stage: int, module: ModuleId, ours: Claim, claims: Sequence[Claim], *, timeout: float = 0.0
    ) -> list[Claim]:
        """Those of others' claims that are better than ours and that somebody confirms who can tell.

        The others are asked about it meanwhile. `timeout`: seconds to wait for that.
        """
        ...

    # module groups -----------------------------------------------------------------------------------------------

    def limit_members(self, max_members: int) -> None:
        """Listen to so many members of a module group from now on."""
        ...

    def configure_rounds(self, codec: str, norm_clip: float, max_members: int = 256) -> None:
        """Learn the run's rules for rounds; comes before the first `all_reduce`. `codec`: by its name."""
        ...

    def begin_round(self, contribution: Contribution, *, patience: float, older: Older | None = None) -> RoundUnderWay:
        """Begin to average an outer gradient with its module's group. Returns at once.

        At most one round of a module is under way. `patience`: seconds to wait for members who are alive but not there
        yet. `older`: the state that the gradient starts from, and how the average leads on: then the outcome has the
        next version with it.
        """
        ...

    def all_reduce(self, contributions: Sequence[Contribution], *, patience: float) -> dict[ModuleId, Outcome]:
        """Average the outer gradients of several modules, each with its group, all at once; wait for all of them."""
        ...

    def residuals(self, stage: int, path: PathIndex) -> Mapping[ModuleId, Residual]:
        """Error feedback of the modules of the path that we train, for its checkpoint; empty with an exact codec."""
        ...

    def resume_residuals(self, stage: int, path: PathIndex, residuals: Mapping[ModuleId, Residual]) -> None:
        """Go on with what an earlier life had; comes after `configure_rounds`. Replaces what is known of any path."""
        ...

    # states ------------------------------------------------------------------------------------------------------

    def hold(self, stage: int, module: ModuleId, state: ModuleState) -> None:
        """Serve this state to whoever asks, instead of an older one of the same module."""
        ...

    def release(self, stage: int, module: ModuleId) -> None:
        """Stop serving a module."""
        ...

    def hold_average(self, stage: int, module: ModuleId, average: EncodedAverage, to: str) -> None:
        """Serve the average of a round to those who have the state before it. `to`: digest of the state after it.

        The last few of each are kept, in no more bytes than a state.
        """
        ...

    def begin_fetch(
        self,
        stage: int,
        module: ModuleId,
        digest: str,
        *,
        timeout: float,
        parameters: int | None = None,
        older: Older | None = None,
    ) -> FetchUnderWay:
        """Begin what `fetch_state` does. Returns at once."""
        ...

    def fetch_state(
        self,
        stage: int,
        module: ModuleId,
        digest: str,
        *,
        timeout: float,
        parameters: int | None = None,
        older: Older | None = None,
    ) -> ModuleState | None:
        """The state with this digest from whoever holds it, verified; None when nobody had it in time.

        Several holders send at once. Asked again for the same state, it goes on where it was. `parameters`: how many
        the module has, where the caller knows; a longer or shorter one that a stranger announced is not fetched then.

        `older`: a state of some versions before. The averages that lead from there, or from one that we hold, are asked
        for first: they cost fewer bytes. The state that they make is checked like any other.
        """
        ...

    # blobs and the manifest --------------------------------------------------------------------------------------

    def put_blob(self, data: bytes) -> str:
        """Keep a blob and serve it; returns its SHA-256."""
        ...

    def drop_blob(self, digest: str) -> None:
        """Stop serving a blob that something newer has replaced, and make room."""
        ...

    def fetch_blob(self, digest: str, *, timeout: float, limit: int | None = None, of: str | None = None) -> bytes:
        """A blob, from our own store or from any peer, verified. Raises UnreachableError when nobody sends it.

        `timeout`: seconds without anything of it after which we give up. `limit`: bytes that it may have, where a
        stranger names it; then `timeout` is for all of it. `of`: that stranger, who is asked first; what comes is not
        kept then, as it may be anything (`put_blob`). Asked again for the same blob, it goes on where it was.
        """
        ...

    def publish_manifest(self, signed: bytes) -> None:
        """Make this the newest manifest of the run (the operator's node only)."""
        ...

    def newest_manifest(self, *, timeout: float) -> bytes | None:
        """The signed manifest with the highest revision that can be found; None when nobody answers in time.

        Raises UnreachableError when all who answer are of other runs, ManifestError when the only one is not signed.
        """
        ...

    def follow_manifest(self) -> None:
        """Begin to look for newer manifests in the background, until the swarm closes. Returns at once."""
        ...

    def known_manifest(self) -> bytes | None:
        """The signed manifest with the highest revision that is known; None before the first. Never waits.

        Raises ManifestError when the last look found none but one that is not signed by the run's operator.
        """
        ...

    # ourselves ---------------------------------------------------------------------------------------------------

    def traffic(self) -> Traffic:
        """What our streams have carried so far, by purpose."""
        ...

    @property
    def lost(self) -> bool:
        """Whether this machine has lost its network for good: calls return with nothing; open the swarm again."""
        ...

    def interrupt(self) -> None:
        """Let every call that waits, now or later, return soon with nothing; for Ctrl+C, from any thread."""
        ...
