"""What a pacing is: decisions over one frozen view of a module's group."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

from dipaco_swarm.algorithm.paths import PathIndex
from dipaco_swarm.strategies import PACING


@dataclass(frozen=True)
class Other:
    """Another member of the group that trains, as it says itself."""

    path: PathIndex
    version: int
    tokens: int
    """Trained since that version."""
    speaks: bool
    """Whether it may come: it is fetching a newer state just now, or word of it comes as often as it did."""
    known: bool = True
    """Whether it has contributed to states that we believe. Of a stranger's word nothing depends."""


@dataclass(frozen=True)
class GroupView:
    """Where the group of a module stands, as one of its members sees it."""

    path: PathIndex
    """The member's own path."""
    version: int
    """The version that it trains on from."""
    tokens: int
    """What it has trained since that version."""
    failed_at: int | None
    """Its tokens when the round of this version failed the last time; None: it has not failed."""
    gathering: bool
    """Whether somebody whom we know gathers the round of this version."""
    others: tuple[Other, ...]
    round_tokens: int
    """Tokens that a path trains on in a full round."""
    passed: float = math.inf
    """Seconds since its version came."""
    interval: float = 0.0
    """Seconds from one version to the next, when several members last made one; 0: they have not."""
    asked: bool = False
    """Whether strangers gather the round of this version."""
    since_put_off: float = math.inf
    """Versions since one was put off, for whomever."""
    carried: int = 0
    """Of its tokens: what the round before was to have, and left out."""
    too_late: bool = False
    """Whether some of its tokens came too late for the round before."""
    counts: bool = True
    """Whether the others count its tokens: not as long as it has contributed to nothing."""

    @property
    def fresh(self) -> int:
        """What the member itself has trained towards this round. Who is left out of each one would call all the others
        to the next one at once, again and again."""
        return self.tokens - self.carried

    @property
    def known(self) -> tuple[Other, ...]:
        """The others whose word counts."""
        return tuple(other for other in self.others if other.known)

    @property
    def group_tokens(self) -> int:
        """What all members at this version have trained since it came."""
        return self.fresh + self.their_tokens

    @property
    def their_tokens(self) -> int:
        """The same of the others alone."""
        return sum(other.tokens for other in self._here)

    @property
    def their_target(self) -> int:
        """Tokens of a full round of the others at this version."""
        return self.round_tokens * len({other.path for other in self._here})

    @property
    def _here(self) -> tuple[Other, ...]:
        return tuple(other for other in self.known if other.version == self.version)

    @property
    def target(self) -> int:
        """Tokens of a full round of the group: one path's for each path that somebody trains."""
        return self.round_tokens * len({self.path, *(other.path for other in self.known)})


class Pacing(ABC):
    """A rule for when rounds are due."""

    name: str
    """As the run file names it."""
    ends_early: bool
    """Whether inner training ends as soon as a round is due. Else it takes exactly `inner_steps`."""
    whole: bool = False
    """Whether a round waits for everybody, however silent. Where one fails, it is made again without training."""

    @abstractmethod
    def is_due(self, view: GroupView) -> bool:
        """Whether the module's round is due, after some training or none."""

    @abstractmethod
    def patience(self, training_seconds: float) -> float:
        """Seconds that a round waits for members who are alive but not there yet.

        `training_seconds`: how long our own training of this round took.
        """


def pacing_of(name: str) -> Pacing:
    """The pacing that the run file calls so. Raises ValueError when there is none."""
    pacing = PACING.load(name)
    if not isinstance(pacing, Pacing):
        raise TypeError(f"the pacing {name!r} is a {type(pacing).__name__}, which is not a Pacing")
    return pacing
