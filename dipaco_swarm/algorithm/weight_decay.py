"""Weight decay of a round: taken out of outer gradients, and put on their average by everybody alike. Pure.

AdamW takes a share of every weight in each step, whatever the documents say. Left in outer gradients it is what members
agree on most, and anybody could hide behind it: the module itself points where weight decay points
(docs/decisions/0048-weight-decay-is-no-part-of-a-contribution.md).

    places      of a module: where weights decay, and the learning rate there as a multiple of the base one
    amount      of it in the steps behind a contribution: the sum of their learning rates, times `inner.weight_decay`

Only sums, products and quotients, each rounded on its own: the same bytes on every machine.
"""

import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from operator import itemgetter

from torch import Tensor

Places = Sequence[tuple[int, float]]
"""The parameter before which each ends, rising, and the learning rate there; 0: nothing decays. None: as if all were 0.
Behind the last of them nothing decays."""


@dataclass(frozen=True)
class WeightDecay:
    """What weight decay took of one module."""

    amount: float = 0.0
    """0 to 1, at the base learning rate."""
    places: Places = ()

    def take_out(self, gradient: Tensor, params: Tensor, start: int) -> None:
        """Of an outer gradient, in place. Both fp32 (n,), of the module's parameters from `start` on.

        `params`: those that the outer gradient starts from.
        """
        for here, share in self._shares(start, start + len(gradient)):
            gradient[here].sub_(params[here] * share)

    def put_on(self, average: Tensor, params: Tensor, start: int) -> Tensor:
        """An average of outer gradients without it, with it; arguments as for `take_out`. A copy."""
        average = average.clone()
        for here, share in self._shares(start, start + len(average)):
            average[here].add_(params[here] * share)
        return average

    def _shares(self, start: int, stop: int) -> Iterator[tuple[slice, float]]:
        """Where weights decay between two parameters, from the first of them on, and how much."""
        if not self.amount:
            return
        begin = start
        for end, ratio in self.places[bisect_right(self.places, start, key=itemgetter(0)) :]:
            if begin >= stop:
                return
            if ratio:
                yield slice(begin - start, min(end, stop) - start), part_taken(self.amount * ratio)
            begin = end


def part_taken(amount: float) -> float:
    """What part of a weight so much decay takes: 1 - exp(-amount), to the third order, and of 1 at the most.

    `exp` is rounded otherwise on other machines.
    """
    amount = min(1.0, amount)
    return amount * (1.0 - amount / 2.0 * (1.0 - amount / 3.0))


def usual_amount(amounts: Sequence[float], voices: Sequence[float]) -> float:
    """The amount that an average is given: the lower median of its members', by what the word of each counts.

    Whoever claims that everything decayed has no more to say than its voice, and neither has a crowd on one path.
    """
    half = math.fsum(voices) / 2 * (1 - 1e-9)  # else a rounding would decide which of two equal halves is the lower one
    ranked = sorted(zip(amounts, voices, strict=True))
    heard = accumulate(voice for _, voice in ranked)
    return next(amount for (amount, _), so_far in zip(ranked, heard, strict=True) if so_far >= half)


NOTHING = WeightDecay()
