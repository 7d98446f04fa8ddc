"""What a swarm did, read from the homes and logs of its members: who agreed on what, and when."""

import itertools
import math
import re
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.chaos.crew import Member
from dipaco_swarm.events.training import Doubted, Round
from dipaco_swarm.swarm.bans import Bans, bans_file

TRACEBACK = re.compile(r"^Traceback \(most recent call last\)", re.MULTILINE)
INNER_WORDS = re.compile(r"Error\b|Exception\b|Warning\b|\bgeneration\b|hivemind|asyncio")
"""Of programs, not of people."""
LEVELS = 2
"""Of every run here."""


@dataclass(frozen=True)
class Made:
    """A version of a module that a peer made by an outer step."""

    time: float
    """Seconds since the epoch."""
    peer: str
    stage: int
    path: int
    module: str
    version: int
    digest: str
    contributors: int
    tokens: int
    """Behind this peer's outer gradient."""


@dataclass(frozen=True)
class Facts:
    """One look at everything."""

    made: tuple[Made, ...]
    """By time."""

    @classmethod
    def of(cls, members: Iterable[Member]) -> "Facts":
        made = [
            Made(
                time=entry.time,
                peer=member.name,
                stage=over.stage,
                path=over.path,
                module=module,
                version=commit.version,
                digest=commit.digest,
                contributors=commit.peers,
                tokens=commit.tokens,
            )
            for member in members
            for entry in member.told.entries()
            if isinstance(over := entry.event, Round)
            for module, commit in over.modules.items()
        ]
        return cls(tuple(sorted(made, key=lambda one: one.time)))

    def of_stage(self, stage: int) -> "Facts":
        return Facts(tuple(one for one in self.made if one.stage == stage))

    def since(self, time: float) -> "Facts":
        return Facts(tuple(one for one in self.made if one.time >= time))

    def by(self, peers: Iterable[str]) -> "Facts":
        names = set(peers)
        return Facts(tuple(one for one in self.made if one.peer in names))

    def newest(self) -> dict[str, int]:
        """Module -> its newest version."""
        newest: dict[str, int] = {}
        for one in self.made:
            newest[one.module] = max(newest.get(one.module, 0), one.version)
        return newest

    def version(self, modules: int) -> int:
        """The version that every one of so many modules has reached."""
        newest = self.newest()
        return min(newest.values()) if len(newest) == modules else 0

    def forks(self) -> list[tuple[str, int]]:
        """Module and version of which more than one digest was made."""
        digests: dict[tuple[str, int], set[str]] = defaultdict(set)
        for one in self.made:
            digests[one.module, one.version].add(one.digest)
        return sorted(key for key, found in digests.items() if len(found) > 1)

    def rounds(self) -> int:
        """Outer rounds that committed, of all modules."""
        return len({(one.stage, one.module, one.version, one.digest) for one in self.made})

    def longest_gap(self, begin: float, end: float) -> float:
        """The longest time from `begin` to `end` in which some module got no new version, seconds."""
        of: dict[str, list[float]] = {one.module: [] for one in self.made}
        for one in self.made:
            if begin < one.time < end:
                of[one.module].append(one.time)
        times = [itertools.pairwise([begin, *at, end]) for at in of.values()]
        return max((later - earlier for pairs in times for earlier, later in pairs), default=end - begin)

    def contributed(self) -> float:
        """Tokens behind the outer gradients that went into a version; the mean over the modules of a path."""
        return sum(one.tokens for one in self.made) / LEVELS

    def discarded(self) -> float:
        """Of `contributed`: tokens in versions of which another digest, with more behind it, was made as well."""
        behind: dict[tuple[int, str, int], Counter[str]] = defaultdict(Counter)
        for one in self.made:
            behind[one.stage, one.module, one.version][one.digest] += one.tokens
        return sum(tokens.total() - max(tokens.values()) for tokens in behind.values()) / LEVELS

    def parted(self, since: float) -> list[str]:
        """Modules without a version since then that everybody made who ever made one, with one digest."""
        sharers: dict[str, set[str]] = defaultdict(set)
        makers: dict[tuple[str, int], set[str]] = defaultdict(set)
        digests: dict[tuple[str, int], set[str]] = defaultdict(set)
        for one in self.made:
            sharers[one.module].add(one.peer)
            if one.time >= since:
                makers[one.module, one.version].add(one.peer)
                digests[one.module, one.version].add(one.digest)
        shared = {m for (m, v), of in makers.items() if of == sharers[m] and len(digests[m, v]) == 1}
        return sorted(sharers.keys() - shared)

    def seconds_a_round(self) -> float:
        """Median seconds from one version of a module to its next."""
        first: dict[tuple[str, int], float] = {}
        for one in self.made:
            first.setdefault((one.module, one.version), one.time)
        steps = [at - first[module, v - 1] for (module, v), at in first.items() if (module, v - 1) in first]
        return statistics.median(steps) if steps else float("nan")


def tracebacks(members: Iterable[Member]) -> list[str]:
    """Members whose logs show one."""
    return [member.name for member in members if TRACEBACK.search(member.said())]


def uncalm(members: Iterable[Member]) -> list[str]:
    """Lines of peers' logs that no volunteer should have to read."""
    return [
        f"{member.name}: {line}"
        for member in members
        for line in member.said().splitlines()
        if INNER_WORDS.search(line) and not line.startswith("  ")
    ]


def culprits(members: Iterable[Member], run: str) -> list[str]:
    """Whom members hold guilty of anything: whom they have banned, and whom two have doubted in one module, as nobody
    is left out for what one member finds. `run`: its fingerprint.
    """
    everybody = list(members)
    banned = [f"{member.name} has banned {name}" for member in everybody for name in banned_by(member.home, run)]
    by: dict[tuple[str, str], dict[str, str]] = {}
    for name, doubt in doubts(everybody):
        by.setdefault((doubt.module, doubt.peer), {})[name] = f"{name}: {doubt.line}"
    return [*banned, *(said for several in by.values() if len(several) > 1 for said in several.values())]


def doubts(members: Iterable[Member]) -> list[tuple[str, Doubted]]:
    """Who has doubted whom."""
    return [
        (member.name, entry.event)
        for member in members
        for entry in member.told.entries()
        if isinstance(entry.event, Doubted)
    ]


def banned_by(home: Path, run: str) -> tuple[str, ...]:
    """Whom the peer has banned whose folder this is. `run`: its fingerprint."""
    bans = Bans(bans_file(home, run))
    bans.open(lambda proof: True)
    return bans.names()


def at_rest(samples: Sequence[tuple[float, float]], seconds: float = 60.0) -> list[tuple[float, float]]:
    """The lowest sample of each minute: what a program takes and gives back is not in it, and what it keeps is.

    Saving a checkpoint takes 10 to 20 MB for a moment, which drowns a growth of half a megabyte a minute.
    """
    minutes: dict[int, tuple[float, float]] = {}
    for at, value in samples:
        minute = int(at // seconds)
        minutes[minute] = min(minutes.get(minute, (at, value)), (at, value), key=lambda sample: sample[1])
    return [minutes[minute] for minute in sorted(minutes)]


@dataclass(frozen=True)
class Growth:
    """Of something, in its unit and a minute."""

    slope: float
    error: float
    """Standard error of that: a dozen minutes say little of half a megabyte."""

    def is_surely_above(self, most: float) -> bool:
        return not self.slope - 2 * self.error <= most

    def __str__(self) -> str:
        return f"{self.slope:+.2f} ± {self.error:.2f}"


def growth(samples: Sequence[tuple[float, float]], unit: float = 1.0) -> Growth:
    """Least squares of (seconds, value). NaN for fewer than three samples."""
    if len(samples) < 3:
        return Growth(float("nan"), float("nan"))
    at, values = zip(*((seconds / 60, value / unit) for seconds, value in samples), strict=True)
    line = statistics.linear_regression(at, values)
    left = sum((y - line.slope * x - line.intercept) ** 2 for x, y in zip(at, values, strict=True))
    return Growth(line.slope, math.sqrt(left / (len(at) - 2) / (statistics.pvariance(at) * len(at))))
