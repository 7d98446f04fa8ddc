"""What a simulated run must keep: every token once, no forks, nothing lost, nobody waiting for ever.

The ledger looks at a swarm from outside, through what goes over the `Swarm` interface of each peer: what it trained,
what it gave, what it committed, what it says. It knows nothing of the protocol. A peer that trains several paths has
progress on each: it is written "peer/path" here.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from dipaco_swarm.algorithm.paths import ModuleId, PathIndex
from dipaco_swarm.testing.ranges import Ranges

Place = tuple[int, ModuleId]
"""Stage and module."""
ROUND_SECONDS = 30.0
"""Beyond the patience, a round in calm takes no longer..."""
ATTEMPT_SECONDS = 60.0
"""... and with one leader, whatever breaks, no longer than this..."""
ATTEMPTS = 6
"""... and as many leaders are tried."""
LATELY_SECONDS = 120.0
"""Who came to a round before that is in another one."""
BEYOND = "trained beyond the module's last round"
REPLACED = "in versions that another replaced"
TOO_LATE = "of who came to a path moments before its module's last round"
LEFT_BEHIND = "left on a path that its peer moved away from"
UNSAVED = "trained after a version that was made again"
AT_THE_EDGE = frozenset({TOO_LATE, LEFT_BEHIND})
"""What is lost without a fault as well: every module has its own clock, and a path is taken up and left between two."""


def trainer_of(peer: str, path: PathIndex) -> str:
    """How the ledger calls a peer on a path: what it trained there is apart from what it trains elsewhere."""
    return f"{peer}/{path}"


def peer_of(trainer: str) -> str:
    """The peer of a name that `trainer_of` has made."""
    return trainer.partition("/")[0]


@dataclass(frozen=True)
class Version:
    """A committed version of a module: who is in it, with which tokens, and what it came from."""

    digest: str
    parent: str
    number: int
    work: int
    tokens: dict[str, Ranges] = field(default_factory=dict, hash=False, compare=False)
    """Trainer -> the tokens behind its outer gradient."""

    @property
    def members(self) -> set[str]:
        """Peers that have contributed to it, on whichever path."""
        return set(map(peer_of, self.tokens))


@dataclass(frozen=True)
class Violation:
    """An invariant that does not hold."""

    at: float
    rule: str
    what: str

    def __str__(self) -> str:
        return f"{self.at:10.3f} s  {self.rule}: {self.what}"


@dataclass(frozen=True)
class Balance:
    """Trained = counted + local + beyond + lost, to the token."""

    trained: int
    counted: int
    local: int
    beyond: int
    """Trained on a module that had made its last round, as the path had others to train."""
    lost: dict[str, int]
    nowhere: dict[str, int]
    """Peer and module -> tokens that nobody can account for."""
    twice: dict[str, int]
    """Peer and module -> tokens that are counted more than once, or will be."""

    @property
    def lost_share(self) -> float:
        return sum(self.lost.values()) / max(1, self.trained)


class Ledger:
    """All tokens of a simulated run, and all versions."""

    def __init__(self) -> None:
        self.violations: list[Violation] = []
        self.versions: dict[Place, dict[str, Version]] = defaultdict(dict)
        """By digest."""
        self.trained: Counter[tuple[str, Place]] = Counter()
        """(peer, module) -> tokens trained in all its lives."""
        self.local: dict[tuple[str, Place], int] = {}
        """(peer, module) -> tokens that it has beyond its version when all is over: the last ones that it trained."""
        self.calm_from = 0.0
        """Since when nothing is broken, and what was has been got over; infinite meanwhile."""
        self._patience: dict[Place, list[tuple[float, float]]] = defaultdict(list)
        """When somebody came to a round, and how long it was willing to wait for others."""
        self.done: dict[tuple[str, Place], dict[int, int]] = defaultdict(dict)
        """(peer, module) -> tokens that it had trained when it had each of the module's versions."""
        self.too_late: set[tuple[str, Place, int]] = set()
        """(peer, module, version): who took up its path so shortly before the version that few had heard of it."""
        self.moved: set[tuple[str, int]] = set()
        """(peer, stage): peers on a path that they have left since for another one."""
        self._given: dict[tuple[str, Place, str, int], tuple[str, Ranges]] = {}
        """(peer, module, digest of the base, tokens) -> whose tokens these are, and which."""
        self._lost: dict[tuple[str, Place], list[tuple[str, Ranges]]] = defaultdict(list)

    # what happens ----------------------------------------------------------------------------------------------------

    def train(self, peer: str, place: Place, tokens: int) -> None:
        self.trained[peer, place] += tokens

    def give(self, peer: str, place: Place, base: str, tokens: int) -> None:
        """A peer comes to a round with the last tokens that it trained."""
        trained = self.trained[peer, place]
        self._given[peer_of(peer), place, base, tokens] = peer, Ranges([(trained - tokens, trained)])

    def commit(self, now: float, place: Place, version: Version, tokens: dict[str, int]) -> None:
        """A peer takes the outer step of a round that it was in."""
        ranges = {}
        for peer, count in tokens.items():
            given = self._given.get((peer, place, version.parent, count))
            if given is None:
                what = f"{peer} is in {place[1]} v{version.number} and did not start from {version.parent[:8]}"
                self.violate(now, "a round starts from one state", what)
            whose, which = given or (peer, Ranges())
            ranges[whose] = which
        version = Version(version.digest, version.parent, version.number, version.work, ranges)
        known = self.versions[place].setdefault(version.digest, version)
        for whose, which in ranges.items():
            # somebody made a version, was killed, and made the same one again of what it had saved: the last tokens
            # that it trained are not in there, though it came to the round with as many as before
            if whose in known.tokens and len(unsaved := which - known.tokens[whose]):
                self._lost[whose, place].append((UNSAVED, unsaved))
        if known.parent != version.parent or known.tokens.keys() != ranges.keys():
            self.violate(now, "one history", f"{place[1]} {version.digest[:8]} was made of different contributions")

    def drop(self, peer: str, place: Place, local: int, reason: str) -> int:
        """A peer goes on with only its last `local` tokens; what is in no version is lost, and that is written down.

        Returns how many these are.
        """
        older = Ranges([(0, self.trained[peer, place] - local)])
        in_versions = _of(peer, self.versions[place].values())
        gone = older - in_versions - Ranges(part for _, lost in self._lost[peer, place] for part in lost.ranges)
        if len(gone):
            self._lost[peer, place].append((reason, gone))
        return len(gone)

    def check_given(self, now: float, peer: str, place: Place, base: str, tokens: int) -> None:
        """A peer goes on without so many tokens trained from this state, as others may have them; so it gave them.

        To the round of this state; or to those of later ones, of which a crash has left nothing but a note.
        """
        node, first = peer_of(peer), self._number(place, base)
        since = [
            which
            for (giver, at, state, _), (whose, which) in self._given.items()
            if (giver, at, whose) == (node, place, peer) and (state == base or self._number(place, state) > first)
        ]
        given = Ranges(part for which in since for part in which.ranges)
        if tokens > len(given):
            gave = f"of which it gave {len(given):,}" if since else "which it never gave"
            what = f"{peer} goes on without {tokens:,} tokens with {place[1]} from {base[:8]}, {gave}"
            self.violate(now, "what nobody has is kept", what)

    def _number(self, place: Place, digest: str) -> int:
        """Of the version with this digest; 0 of the seed."""
        version = self.versions[place].get(digest)
        return 0 if version is None else version.number

    def wait(self, peer: str, places: Sequence[Place], patience: float, began: float, now: float) -> None:
        """A round is over that a peer came to: it took no longer than the most patient member would wait."""
        most = patience
        for place in places:
            others = self._patience[place]
            others.append((began, patience))
            most = max(most, *(seconds for came, seconds in others if came > began - LATELY_SECONDS))
        bound = most + ROUND_SECONDS if self.calm_from <= began else ATTEMPTS * (most + ATTEMPT_SECONDS)
        if now - began > bound:
            what = f"{peer}: a round of {now - began:.0f} s, and nobody would wait for more than {most:.0f} s"
            self.violate(now, "no wait beyond its bound", what)

    def violate(self, now: float, rule: str, what: str) -> None:
        self.violations.append(Violation(now, rule, what))

    # what came of it -------------------------------------------------------------------------------------------------

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

    def most_work(self, place: Place, digests: set[str]) -> int:
        """The most work behind any of these versions."""
        return max((v.work for v in self.versions[place].values() if v.digest in digests), default=0)

    def balance(self, final: dict[Place, str]) -> Balance:
        """Where all tokens are, when these digests are what the run ends on."""
        counted = local = 0
        lost: Counter[str] = Counter()
        nowhere, twice = {}, {}
        lines = {place: self.line_of(place, final.get(place, "")) for place in self.versions}
        for (peer, place), trained in sorted(self.trained.items()):
            name = f"{peer} {place[1]}"
            line = lines.get(place, [])
            in_line = _of(peer, line)
            here = Ranges([(trained - self.local.get((peer, place), 0), trained)])
            brought = sum(len(version.tokens[peer]) for version in line if peer in version.tokens)
            doubled = brought - len(in_line) + len(in_line & here)
            if doubled:
                twice[name] = doubled
            others = _of(peer, self.versions[place].values()) - in_line
            rest = Ranges([(0, trained)]) - in_line - here
            counted, local = counted + len(in_line), local + len(here)
            for reason, tokens in self._lost[peer, place]:
                lost[reason] += len(rest & tokens)
                rest = rest - tokens
            lost[REPLACED] += len(rest & others)
            rest = rest - others
            if len(rest):
                nowhere[name] = len(rest)
        beyond = lost.pop(BEYOND, 0)
        written = {why: count for why, count in lost.items() if count}
        return Balance(sum(self.trained.values()), counted, local, beyond, written, nowhere, twice)


def _of(peer: str, versions: Iterable[Version]) -> Ranges:
    """A peer's tokens that are in these versions."""
    return Ranges(part for version in versions if peer in version.tokens for part in version.tokens[peer].ranges)
