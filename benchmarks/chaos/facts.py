"""What a swarm did, read from the homes and logs of its members: who agreed on what, and when."""

import itertools
import re
import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from benchmarks.chaos.crew import Member
from dipaco_swarm.dashboard.metrics import read_metrics

TRACEBACK = re.compile(r"^Traceback \(most recent call last\)", re.MULTILINE)
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
                time=line["time"],
                peer=member.name,
                stage=line["stage"],
                path=line["path"],
                module=module,
                version=said["version"],
                digest=said["digest"],
                contributors=said["peers"],
                tokens=said["tokens"],
            )
            for member in members
            for line in read_metrics(member.home / "metrics.jsonl")
            if line["kind"] == "round"
            for module, said in line["modules"].items()
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

    def gaps(self, begin: float, end: float) -> list[float]:
        """Seconds between commits of anybody, from `begin` to `end`."""
        times = [begin, *sorted(one.time for one in self.made if begin < one.time < end), end]
        return [later - earlier for earlier, later in itertools.pairwise(times)]

    def seconds_a_round(self) -> float:
        """Median seconds from one version of a module to its next."""
        first: dict[tuple[str, int], float] = {}
        for one in self.made:
            first.setdefault((one.module, one.version), one.time)
        steps = [at - first[module, v - 1] for (module, v), at in first.items() if (module, v - 1) in first]
        return statistics.median(steps) if steps else float("nan")


@dataclass(frozen=True)
class Work:
    """Tokens of one member, over all its lives."""

    trained: int
    contributed: float
    """Behind the outer gradients that were agreed on; the mean over the modules of its path."""

    @property
    def lost(self) -> float:
        return max(0.0, self.trained - self.contributed)


def work_of(member: Member) -> Work:
    """What a member trained and what of it counted.

    Every tenth inner step is a line of its metrics, so a life that is killed trained up to nine steps more.
    """
    trained, in_this_life, contributed = 0, 0, 0.0
    for line in read_metrics(member.home / "metrics.jsonl"):
        if line["kind"] == "steps":
            if line["tokens"] < in_this_life:  # another life
                trained += in_this_life
            in_this_life = line["tokens"]
        else:
            contributed += sum(said["tokens"] for said in line["modules"].values()) / LEVELS
    return Work(trained + in_this_life, contributed)


def tracebacks(members: Iterable[Member]) -> list[str]:
    """Members whose logs show one."""
    return [member.name for member in members if TRACEBACK.search(member.said())]


def slope(samples: Sequence[tuple[float, float]]) -> float:
    """Least-squares slope of (seconds, value): value a second. NaN for fewer than two samples."""
    if len(samples) < 2:
        return float("nan")
    return statistics.linear_regression(*zip(*samples, strict=True)).slope
