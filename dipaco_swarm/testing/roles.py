"""Hostile roles by name: what one peer does that wants to harm. Played in virtual time and by real processes alike.

    member      a volunteer like any other, but for what its swarm does: `Role.bend` is given the swarm of a peer that
                has just joined, before any round, and returns what the volunteer is to use instead
    outsider    no volunteer at all: `Outsider.live` is all that it does in the swarm, until it is asked to stop
    saboteur    a volunteer like any other, whose streams are bent (`saboteur.py`): it says and sends something else

To add a role: a small class that is one of these, and a line in ROLES. Nothing else knows what a role does.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from dipaco_swarm.machine.stopping import Stopping
from dipaco_swarm.swarm.interface import Swarm
from dipaco_swarm.swarm.networked import NetworkedSwarm
from dipaco_swarm.testing import saboteur


@dataclass(frozen=True)
class Surroundings:
    """What a hostile peer has besides its swarm."""

    stop: Stopping
    random: Random
    path: int
    """That it trains, or says that it does."""
    fingerprint: str
    """Of the operator's key."""


class Member(ABC):
    """A volunteer whose swarm is bent. One object for each peer, over all its lives."""

    @abstractmethod
    def bend(self, swarm: NetworkedSwarm, around: Surroundings) -> Swarm:
        """What the volunteer is to use as its swarm."""


class Outsider(ABC):
    """Somebody who trains nothing. One object for each peer, over all its lives."""

    @abstractmethod
    def live(self, swarm: NetworkedSwarm, around: Surroundings) -> None:
        """All that it does, until it is asked to stop (`around.stop`)."""


@dataclass(frozen=True)
class Role:
    """One line of the registry."""

    about: str
    """What it does, in a few words for a table."""
    make: Callable[[], Member | Outsider | saboteur.Role]
    """A new one, for one peer."""
