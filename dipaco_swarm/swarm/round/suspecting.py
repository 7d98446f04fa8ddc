"""Which reducer is looked at once a round is over: whose averages have another share of us than those of others.

An average in which our contribution counts has a share of it: our weight, and as much as the others went our way.
Pieces are dealt out to reducers in turns, so that share is nearly the same in what each of them has made of one module.
Who turns averages round, stretches them, or makes them of something else, has another one.

That proves nothing; what is asked for and made anew does (`auditing.py`). So a suspicion costs the bytes of a piece at
most, and each that was in vain makes the next one wait.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

ODD = 1.6
"""So many times the usual share, or so many times less, is looked into. Of real outer gradients, some in a thousand to
some in a hundred of the averages of honest reducers are that far off; a quarter of a piece turned round is in three of
five, and all of it, or three times as long, nearly always (docs/decisions/0046)."""
LONGEST_WAIT = 16
"""Rounds of a module that follow no suspicion, after several that were in vain."""


@dataclass(frozen=True)
class Fit:
    """Of a contribution and an average, or of several parts of the two."""

    along: float
    """Their inner product."""
    square: float
    """The contribution's length, squared."""

    @property
    def share(self) -> float:
        """Of the contribution, in the average."""
        return self.along / self.square

    def __add__(self, other: "Fit") -> "Fit":
        return Fit(self.along + other.along, self.square + other.square)


def fit_of(contribution: Tensor, average: Tensor) -> Fit:
    """fp32 (n,) each."""
    return Fit(float(torch.dot(contribution, average)), float(torch.dot(contribution, contribution)))


def odd_piece(fits: Mapping[int, Fit], owners: Sequence[int], ours: int) -> int | None:
    """The piece to be looked at; None where no reducer is odd.

    `fits`: piece -> our contribution and the average, where ours is in it. `owners`: piece -> its reducer. `ours`: us.
    """
    of: dict[int, Fit] = {}
    for piece, fit in fits.items():
        of[owners[piece]] = of.get(owners[piece], Fit(0.0, 0.0)) + fit
    of = {reducer: fit for reducer, fit in of.items() if fit.square > 0}
    usual = _usual(of, ours)
    if usual is None:
        return None
    odd = {reducer: _oddness(fit, usual) for reducer, fit in of.items() if reducer != ours}
    oddest = max(odd, key=lambda reducer: odd[reducer], default=ours)
    if oddest == ours or odd[oddest] <= math.log(ODD):
        return None
    its = [piece for piece, fit in fits.items() if owners[piece] == oddest and fit.square > 0]
    return max(its, key=lambda piece: abs(fits[piece].share - usual))


def _usual(of: Mapping[int, Fit], ours: int) -> float | None:
    """The share in most averages; None where that cannot be said. Of two reducers we know ourselves alone."""
    if len(of) > 2:
        usual = statistics.median(fit.share for fit in of.values())
    elif ours in of:
        usual = of[ours].share
    else:
        return None
    return usual if usual > 0 else None  # else we go against everybody, and no share means much


def _oddness(fit: Fit, usual: float) -> float:
    """How many times the usual share, or how many times less, as a logarithm."""
    return abs(math.log(fit.share / usual)) if fit.share > 0 else math.inf


class Restraint:
    """Of one module: how soon a suspicion is followed again."""

    def __init__(self) -> None:
        self._wait = 0
        self._left = 0

    def next_round(self) -> bool:
        """A round is over. Whether what is odd in it is looked into."""
        self._left = max(-1, self._left - 1)
        return self._left < 0

    def followed(self) -> None:
        """Something was. Where its reducer is not banned for it, that was in vain."""
        self._wait = min(LONGEST_WAIT, max(1, 2 * self._wait))
        self._left = self._wait
