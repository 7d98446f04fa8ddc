"""What can be shown, as frozen values: plain numbers and words. No rich, no clock, no swarm."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from dipaco_swarm.events.words import Admission, company, percent, size


@dataclass(frozen=True)
class Happened:
    """An event as people read it."""

    clock: str
    """Local time of day, 14:03:22."""
    text: str


@dataclass(frozen=True)
class ModuleView:
    """One module of my path, and the peers that share it."""

    name: str
    version: int
    peers: int
    """Peers that train it, myself included."""
    agree: int
    """Peers at my version that announce my digest, myself included."""
    differ: int = 0
    """Peers at my version that announce another digest. Should be 0, and is healed when not."""
    paths: int = 1
    """Paths through it; 1: path-specific, it never travels."""
    on_its_way: float | None = None
    """How far its round has come that goes on beside training, 0 to 1; None: there is none."""
    catches_up_to: int | None = None
    """A newer version of the others that is on its way to me; None: there is none."""


@dataclass(frozen=True)
class LineView:
    """One direction of my line to the internet."""

    purposes: Mapping[str, int] = field(default_factory=dict)
    """Bytes so far, by what they were for."""
    per_second: float = 0.0
    """Bytes, lately."""

    @property
    def total(self) -> int:
        return sum(self.purposes.values())


@dataclass(frozen=True)
class TimeView:
    """How much of my time I have trained."""

    share: float
    """Since the first inner step, 0 to 1."""
    seconds: float
    """Since then."""
    lately: float
    """The share in the last minutes..."""
    lately_seconds: float
    """... of so long."""


@dataclass(frozen=True)
class StageEnd:
    """How far the path of a peer has come in its stage."""

    version: float
    """Mean over its modules."""
    last: int
    """The version at which they are done."""
    seconds: float | None = None
    """Until then, at the pace of the last versions; None when nobody can say."""


@dataclass(frozen=True)
class PeerView:
    """What one volunteer is doing."""

    run: str
    stage: int
    stages: int
    path: int | None
    num_paths: int
    activity: str
    """In a word or a few: training, sharing L0M1 and L1M0, fetching modules, waiting for peers."""
    rounds: int
    """Outer rounds that this peer has taken part in since it was started."""
    peers: int
    """Live peers that train a module of mine, myself included."""
    paused: bool = False
    """Whether its machine is needed otherwise."""
    modules: tuple[ModuleView, ...] = ()
    losses: tuple[float, ...] = ()
    """Training loss, oldest first; the last one is now."""
    tokens_per_second: float = 0.0
    tokens: int = 0
    """Tokens this peer has trained on since it was started."""
    life_tokens: int = 0
    """... and in all the lives of its home."""
    share: float | None = None
    """Of what its modules have learned in this stage, 0 to 1; None: nothing yet."""
    stage_end: "StageEnd | None" = None
    """None: the stage has no set end."""
    step: int = 0
    """Inner steps of the path so far, of all peers and stages."""
    time: TimeView | None = None
    """None before the first inner step."""
    sent: LineView = LineView()
    received: LineView = LineView()
    last_agreed: str | None = None
    """What was last agreed, with whom and when: round 12 of L0M1 with 3 peers, at 14:03:22."""
    round_progress: float = 0.0
    """How much of the work until the next round is done, 0 to 1."""
    next_round_seconds: float | None = None
    """Until the next round at the present pace; None when nobody can say."""
    admission: Admission = "open"
    events: tuple[Happened, ...] = ()

    def summary(self) -> str:
        """All of it as one line for a log."""
        where = "no path yet" if self.path is None else f"path {self.path}"
        parts = [f"{where}: {self.activity}"]
        if self.losses:
            parts.append(f"loss {self.losses[-1]:.3f}")
        parts += [
            f"{self.tokens_per_second:,.0f} tokens/s",
            *([] if self.time is None else [f"{percent(self.time.lately)} of the time trained"]),
            f"round {self.rounds}",
            f"{self.peers} {plural(self.peers, 'peer')}",
            f"sent {size(self.sent.total)}, received {size(self.received.total)}",
        ]
        return ", ".join(parts)


@dataclass(frozen=True)
class PathStatus:
    """One path of the path table, and who trains it."""

    index: int
    modules: tuple[str, ...]
    peers: int
    share: float
    """Its share of the documents."""
    version_min: int = 0
    """The least advanced of its modules."""
    version_max: int = 0
    tokens_per_second: float = 0.0
    loss: float | None = None


@dataclass(frozen=True)
class ModuleStatus:
    """One module of the bank, and who has it."""

    name: str
    version: int
    """The newest version that anybody has announced."""
    holders: int
    """Peers that serve that version, keepers included."""
    keepers: int
    """Of those, the ones that train nothing."""
    peers: int
    """Peers that train it, at whatever version."""
    digests_agree: bool = True
    """Whether all holders of the newest version announce one digest."""
    work: int = 0
    """Tokens behind that version, of all its contributors."""


@dataclass(frozen=True)
class MemberStatus:
    """One peer that trains, as it announces itself."""

    name: str
    """As `dipaco-bootstrap ban` takes it: 12D3KooW..."""
    path: int
    nickname: str = ""
    """That it has chosen: anything printable, up to 32 characters."""
    trained: float | None = None
    """Share of the time lately, 0 to 1, as it says."""
    version: int = 0
    """Of the least advanced of its modules."""
    tokens_per_second: float = 0.0
    loss: float | None = None
    moves: bool = False
    """Whether it goes to other paths when it is needed there."""
    catching_up: bool = False
    reachable: bool = True
    """Whether others can dial it."""
    awake: bool = True
    """False: it has said nothing for three of its usual intervals."""
    known: bool = True
    """Whether it has contributed to states that we believe; a guest knows nobody, and says yes of all."""


@dataclass(frozen=True)
class SwarmStatus:
    """The whole run, as the announcements tell it."""

    run: str
    stage: int
    stages: int
    finished: bool
    peers: int
    """Peers that train."""
    keepers: int
    paths: tuple[PathStatus, ...]
    modules: tuple[ModuleStatus, ...]
    tokens_per_second: float = 0.0
    loss: float | None = None
    """Mean training loss of the paths that are trained, weighted by their share."""
    target_version: int | None = None
    """Outer steps after which the stage ends; None: when the operator says so."""
    round_seconds: float | None = None
    """Seconds per outer round at the present pace; None when nobody can say."""
    min_holders: int = 2
    """How many holders the newest version of every module should have."""
    admission: Admission = "open"
    members: tuple[MemberStatus, ...] = ()
    """The peers that train, sorted by name."""

    @property
    def staffed(self) -> int:
        """Paths with at least one peer."""
        return sum(path.peers > 0 for path in self.paths)

    @property
    def version_min(self) -> int:
        return min((module.version for module in self.modules), default=0)

    @property
    def version_max(self) -> int:
        return max((module.version for module in self.modules), default=0)

    @property
    def digests_agree(self) -> bool:
        return all(module.digests_agree for module in self.modules)

    @property
    def lost(self) -> tuple[ModuleStatus, ...]:
        """Modules that nobody serves."""
        return tuple(module for module in self.modules if module.holders == 0)

    @property
    def under_held(self) -> tuple[ModuleStatus, ...]:
        """Modules with some holders, but fewer than there should be."""
        return tuple(module for module in self.modules if 0 < module.holders < self.min_holders)

    def to_json(self) -> str:
        """For programs: every field, and the sums that people look at first."""
        sums = {
            "staffed": self.staffed,
            "version_min": self.version_min,
            "version_max": self.version_max,
            "digests_agree": self.digests_agree,
            "lost": [module.name for module in self.lost],
            "under_held": [module.name for module in self.under_held],
        }
        return json.dumps(_finite(asdict(self) | sums), indent=2, allow_nan=False)

    def summary(self) -> str:
        """All of it as one line for a log."""
        parts = [
            f"stage {self.stage} (of {self.stages}), {company(self.admission)}: "
            f"{self.peers} {plural(self.peers, 'peer')}",
            f"{self.staffed} of {len(self.paths)} {plural(len(self.paths), 'path')} staffed",
            f"versions {self.version_min}-{self.version_max}",
            f"{self.tokens_per_second:,.0f} tokens/s",
        ]
        if self.loss is not None:
            parts.append(f"loss {self.loss:.3f}")
        if self.lost:
            parts.append(f"nobody serves {names(self.lost)}")
        if not self.digests_agree:
            parts.append("members disagree about a module")
        return ", ".join(parts)


@dataclass(frozen=True)
class BootstrapView:
    """What the operator's node is doing."""

    address: str
    """The run address, to be given to volunteers."""
    activity: str
    """In a few words: waiting for peers, fitting the router, keeping modules."""
    status: SwarmStatus
    progress: float | None = None
    """Of the activity, 0 to 1, when it has an end."""
    bytes_sent: int = 0
    bytes_received: int = 0
    events: tuple[Happened, ...] = ()

    def summary(self) -> str:
        """All of it as one line for a log."""
        return f"{self.activity}; {self.status.summary()}"


@dataclass(frozen=True)
class PathScore:
    """How well one path predicts the documents, or the windows of them, that are routed to it."""

    path: int
    documents: int
    """Documents; windows in an evaluation that routes every window."""
    tokens: int
    """Tokens scored; the prefix that the router read is not among them."""
    loss: float
    """Mean negative log likelihood per token."""

    @property
    def perplexity(self) -> float:
        return perplexity_of(self.loss)


@dataclass(frozen=True)
class Evaluation:
    """Routed perplexity."""

    run: str
    stage: int
    data: str
    """What was scored, in words."""
    prefix_tokens: int
    paths: tuple[PathScore, ...]
    window: int | None = None
    """Routed anew every so many tokens; None: once per document."""

    @property
    def tokens(self) -> int:
        return sum(path.tokens for path in self.paths)

    @property
    def loss(self) -> float:
        """Mean over all tokens."""
        return sum(path.loss * path.tokens for path in self.paths) / max(1, self.tokens)

    @property
    def perplexity(self) -> float:
        return perplexity_of(self.loss)

    def to_json(self) -> str:
        """For programs: every field, and what all paths have together."""
        paths = [asdict(path) | {"perplexity": path.perplexity} for path in self.paths]
        sums = {"paths": paths, "tokens": self.tokens, "loss": self.loss, "perplexity": self.perplexity}
        return json.dumps(_finite(asdict(self) | sums), indent=2, allow_nan=False)


View = PeerView | BootstrapView | SwarmStatus


def duration(seconds: float) -> str:
    """A time for people: 8 s, 3 min 20 s, 2 h 5 min."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s" if whole % 60 else f"{whole // 60} min"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def plural(number: int, word: str) -> str:
    return word if number == 1 else word + "s"


def names(modules: Sequence[ModuleStatus]) -> str:
    first = [module.name for module in modules[:4]]
    more = len(modules) - len(first)
    return ", ".join(first) + (f" and {more} more" if more else "")


def _finite(value: Any) -> Any:
    """The same, with None for the numbers that JSON does not have."""
    match value:
        case dict():
            return {key: _finite(inner) for key, inner in value.items()}
        case list() | tuple():
            return [_finite(inner) for inner in value]
        case float():
            return value if math.isfinite(value) else None
    return value


def version_range(low: int, high: int) -> str:
    return str(low) if low == high else f"{low}-{high}"


def perplexity_of(loss: float) -> float:
    return math.exp(loss) if loss < 700 else math.inf
