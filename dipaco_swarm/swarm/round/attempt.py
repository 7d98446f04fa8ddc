"""How one attempt at a round may end, besides with an outcome: it is made again, with another leader or the same."""

from dataclasses import dataclass


@dataclass(frozen=True)
class LeaderLost:
    """The leader went away before it decided; nobody is known to have committed."""

    leader: str
    answered: bool
    """False: it could not be reached at all, which costs next to nothing."""
    given: bool = False
    """Whether the others may have our outer gradient."""


@dataclass(frozen=True)
class Redirected:
    """The leader knows of another that gathers the same round."""

    leader: str


@dataclass(frozen=True)
class MadeAgain:
    """Somebody in it was convicted: the round is off, and made again at once without it."""
