"""What a simulated run must keep: every token once, no forks, nothing lost, nobody waiting for ever.

The ledger looks at a swarm from outside, through what goes over the `Swarm` interface of each peer: what it trained,
what it gave, what it committed, what it says. It knows nothing of the protocol.
"""

from collections import Counter, defaultdict
from dataclasses import dataclass, field

from dipaco_swarm.algorithm.paths import ModuleId

Place = tuple[int, ModuleId]
"""Stage and module."""


@dataclass(frozen=True)
class Version:
    """A committed version of a module: who is in it, with how many tokens, and what it came from."""

    digest: str
    parent: str
    number: int
    work: int
    tokens: dict[str, int] = field(default_factory=dict, hash=False)
    """Peer -> tokens behind its outer gradient."""


@dataclass(frozen=True)
class Violation:
    """An invariant that does not hold."""

    at: float
    rule: str
    what: str

    def __str__(self) -> str:
        return f"{self.at:10.3f} s  {self.rule}: {self.what}"


class Ledger:
    """All tokens of a simulated run, and all versions."""

    def __init__(self) -> None:
        self.violations: list[Violation] = []
        self.versions: dict[Place, dict[str, Version]] = defaultdict(dict)
        """By digest."""
        self.trained: Counter[tuple[str, Place]] = Counter()
        """(peer, module) -> tokens trained in all its lives."""
        self.committed: Counter[tuple[str, Place]] = Counter()
        """(peer, module) -> tokens in versions, also in those that another replaced."""
        self.local: dict[tuple[str, Place], int] = {}
        """(peer, module) -> tokens that it has beyond its version."""
        self.lost: Counter[str] = Counter()
        """Reason -> tokens."""
        self._lost_of: Counter[tuple[str, Place]] = Counter()

    # what happens ----------------------------------------------------------------------------------------------------

    def train(self, peer: str, place: Place, tokens: int) -> None:
        self.trained[peer, place] += tokens

    def commit(self, now: float, peer: str, place: Place, version: Version) -> None:
        """A peer takes the outer step of a round that it was in."""
        known = self.versions[place].get(version.digest)
        if known is None:
            self.versions[place][version.digest] = version
            for contributor, tokens in version.tokens.items():
                self.committed[contributor, place] += tokens
                self._check_once(now, contributor, place)
        elif known.tokens != version.tokens or known.parent != version.parent:
            self.violate(now, "one history", f"{peer} and another made {version.digest[:8]} of different contributions")

    def lose(self, peer: str, place: Place, tokens: int, reason: str) -> None:
        """Tokens that are written down as lost."""
        self.lost[reason] += tokens
        self._lost_of[peer, place] += tokens

    def outstanding(self, peer: str, place: Place) -> int:
        """Tokens that a peer has trained, and that are in no version and not written down as lost."""
        return self.trained[peer, place] - self.committed[peer, place] - self._lost_of[peer, place]

    def violate(self, now: float, rule: str, what: str) -> None:
        self.violations.append(Violation(now, rule, what))

    # what must hold --------------------------------------------------------------------------------------------------

    def _check_once(self, now: float, peer: str, place: Place) -> None:
        """Nothing is committed that was not trained, or that was committed before in the same line of versions."""
        if self.committed[peer, place] > self.trained[peer, place]:
            more = self.committed[peer, place] - self.trained[peer, place]
            self.violate(now, "every token once", f"{more} tokens of {peer} in {place[1]} are committed twice")

    def line_of(self, place: Place, digest: str) -> list[Version]:
        """A version and all that it came from, newest first."""
        line = []
        while (version := self.versions[place].get(digest)) is not None:
            line.append(version)
            digest = version.parent
        return line

    def forks(self, place: Place) -> int:
        """Versions that came from the same state as another one."""
        children = Counter(version.parent for version in self.versions[place].values())
        return sum(count - 1 for count in children.values())

    def balance(self, final: dict[Place, str]) -> "Balance":
        """Where all tokens are, when these digests are what the run ends on."""
        trained = sum(self.trained.values())
        counted = replaced = 0
        for place, versions in self.versions.items():
            line = {version.digest for version in self.line_of(place, final.get(place, ""))}
            for version in versions.values():
                tokens = sum(version.tokens.values())
                if version.digest in line:
                    counted += tokens
                else:
                    replaced += tokens
        local = sum(self.local.values())
        lost = dict(self.lost)
        if replaced:
            lost["in versions that another replaced"] = replaced
        return Balance(trained, counted, local, lost)


@dataclass(frozen=True)
class Balance:
    """Trained = counted + local + lost, to the token."""

    trained: int
    counted: int
    local: int
    lost: dict[str, int]

    @property
    def missing(self) -> int:
        """Tokens that nobody can account for; negative: counted more than once."""
        return self.trained - self.counted - self.local - sum(self.lost.values())
