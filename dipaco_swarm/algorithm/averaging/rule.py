"""What an averaging rule is: what a member of a round counts for, then the average of piece after piece.

A module is averaged in pieces, each by another peer. `prepare` is given what is known of the whole contributions when
the roster is closed: paths, tokens, weights, norms. The function that it returns is given the numbers of one piece. So
a rule may bound, drop or weigh members by what they are as a whole; what the numbers of other pieces say, it cannot
know.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from dipaco_swarm.algorithm.outer import at_most, contribution_weights, trained_weights
from dipaco_swarm.strategies import AVERAGING


@dataclass(frozen=True)
class Member:
    """A contribution as the roster describes it, before any number of it has arrived."""

    path: Hashable
    tokens: float
    """Trained on since the version that the round starts from."""
    path_weight: float
    """The path's share of the documents; replicas of a path repeat it."""
    norm: float
    """L2 norm of the whole contribution. What arrives is refused where it is longer."""
    scale: float = 1.0
    """Factor that shortens a contribution which is much longer than the others (`outer.clip_factors`)."""


@dataclass(frozen=True, eq=False)
class Counted:
    """The average of one piece, and who is in it."""

    average: Tensor
    """fp32 (n,)."""
    members: Sequence[int]
    """Roster indices, in order; at least one. Who is not here is as if nothing of it had come."""


PieceAverage = Callable[[Mapping[int, Tensor]], Counted]
"""The contributions to one piece, roster index -> fp32 (n,), at least one of them and all left unchanged -> their
average. Whoever is missing is simply not part of it."""


class Averaging(ABC):
    """A rule. The same bytes on every machine: sum in roster order, and round every product and sum on its own."""

    name: str
    """As the run file names it."""
    hears_doubts: bool = False
    """Whether members whom most others doubt are left out (`algorithm/doubts.py`)."""

    @abstractmethod
    def prepare(self, members: Sequence[Member], round_tokens: float) -> PieceAverage:
        """The average of one round. `members`: in roster order; `round_tokens`: see `coefficients`."""

    def on_other_machines(self) -> Sequence["Averaging"]:
        """The rule on either side of what other machines may round otherwise, where it decides anything by a bound."""
        return ()


def coefficients(present: Sequence[int], members: Sequence[Member], round_tokens: float) -> list[float]:
    """What each of the present members is multiplied by: its weight among them, which sum to one, times its scale.

    `round_tokens`: what a path trains on in a full round; a path with less counts less. 0: all count in full.
    """
    paths = [members[i].path for i in present]
    tokens = [members[i].tokens for i in present]
    path_weights = trained_weights(paths, tokens, [members[i].path_weight for i in present], round_tokens)
    weights = contribution_weights(paths, tokens, path_weights)
    return [weight * members[i].scale for weight, i in zip(weights, present, strict=True)]


def voices(present: Sequence[int], members: Sequence[Member]) -> list[float]:
    """What the word of each of the present members counts about the others, which sums to one.

    By path, and among the replicas of one alike: who claims more tokens than most has no more to say.
    """
    paths = [members[i].path for i in present]
    tokens = at_most([members[i].tokens for i in present], paths, times=1.0)
    return contribution_weights(paths, tokens, [members[i].path_weight for i in present])


def averaging_of(name: str) -> Averaging:
    """The rule that the run file calls so. Raises ValueError when there is none."""
    rule = AVERAGING.load(name)
    if not isinstance(rule, Averaging):
        raise TypeError(f"the averaging rule {name!r} is a {type(rule).__name__}, which is not an Averaging")
    return rule
