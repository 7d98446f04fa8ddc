"""The mean of what the others back: contributions that point elsewhere do not count (docs/paper.md#robust-averaging).

Outer gradients of honest members are nearly orthogonal, replicas of one path as well (cosines of 0.03 to 0.3), and yet
they agree: every pair of them a little. Whatever harms a mean must point against them, or nowhere. So every pair of
members votes by its cosine, and a member counts in a piece where the others' votes are for it.

    vote        of j on i: cosine of their contributions, over CLEAR, within -1 to 1
    backing     of i: the votes of all others on it, by their weight

1. Whose backing is below AGAINST is left out, the least backed one first; the others are asked again without it.
2. Where most are clearly backed (the median is CLEARLY_BACKED), who has less than two fifths of the median is left out.
3. In no piece is a contribution longer than LONGEST times the median of those that count.

A vote is bounded, so that two who send the same thing cannot vouch for one another more than two honest ones do. With
fewer than three members nothing can be decided, and numbers fewer than FEW say too little: the mean of all, then.
"""

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from dipaco_swarm.algorithm.averaging.mean import weighted_sum
from dipaco_swarm.algorithm.averaging.rule import Averaging, Counted, Member, PieceAverage, coefficients, voices

CLEAR = 0.02
"""Cosine of a pair that is a whole vote, in a long piece."""
DEVIATIONS = 8.0
"""... and in a short one so many standard deviations of the cosine of two random vectors, 1 / sqrt(n) each."""
AGAINST = -0.4
CLEARLY_BACKED = 0.3
OF_THE_MEDIAN = 0.4
LONGEST = 2.0
FEW = 4096
ROWS = 1 << 16
"""Numbers of each contribution that are compared at a time."""


class Robust(Averaging):
    """The mean of the contributions that most of the others back."""

    name = "robust"

    def prepare(self, members: Sequence[Member], round_tokens: float) -> PieceAverage:
        def average(contributions: Mapping[int, Tensor]) -> Counted:
            present = sorted(contributions)
            products = inner_products([contributions[i] for i in present])
            length = len(contributions[present[0]])
            backed = backed_by_others(products, voices(present, members), length)
            lengths = [math.sqrt(float(products[i, i])) * members[present[i]].scale for i in backed]
            counted = [present[i] for i in backed]
            shortened = _shortened(lengths) if len(present) > 2 else [1.0] * len(counted)
            weights = coefficients(counted, members, round_tokens)
            scaled = [weight * factor for weight, factor in zip(weights, shortened, strict=True)]
            return Counted(weighted_sum([contributions[i] for i in counted], scaled), counted)

        return average


def inner_products(contributions: Sequence[Tensor]) -> Tensor:
    """Of every pair of contributions, fp32 (n,) each: float64 (members, members).

    In float64: sums of fp32 depend on the machine, and who counts must not (a vote could change by 5e-5).
    """
    total = torch.zeros(len(contributions), len(contributions), dtype=torch.float64)
    for start in range(0, len(contributions[0]), ROWS):
        part = torch.stack([contribution[start : start + ROWS] for contribution in contributions]).double()
        total += part @ part.t()
    return total


def backed_by_others(products: Tensor, voices: Sequence[float], length: int) -> list[int]:
    """Who counts in a piece of so many numbers, as indices in order; at least one.

    `products`: inner products of every pair. `voices`: what the vote of each counts.
    """
    left = list(range(len(products)))
    if length < FEW:
        return left
    votes = _votes(products, max(CLEAR, DEVIATIONS / math.sqrt(length)))
    voice = torch.tensor(voices, dtype=torch.float64)
    while len(left) > 2:
        theirs = voice[left]
        backing: list[float] = (votes[left][:, left] @ theirs / (theirs.sum() - theirs).clamp(min=1e-30)).tolist()
        least = min(range(len(left)), key=lambda place: backing[place])
        usual = sorted(backing)[(len(left) - 1) // 2]
        if backing[least] >= (OF_THE_MEDIAN * usual if usual >= CLEARLY_BACKED else AGAINST):
            break
        del left[least]
    return left


def _votes(products: Tensor, clear: float) -> Tensor:
    """Of each on each other, -1 to 1; nobody votes on itself, and what has no length has no votes."""
    lengths = products.diagonal().clamp(min=0).sqrt()
    inverse = torch.where(lengths > 0, 1 / lengths.clamp(min=1e-300), torch.zeros_like(lengths))
    votes = (products * inverse[:, None] * inverse / clear).clamp(-1, 1)
    votes.fill_diagonal_(0)
    return votes


def _shortened(lengths: Sequence[float]) -> list[float]:
    """Factors that make no contribution to a piece much longer than the median there."""
    bound = LONGEST * sorted(lengths)[(len(lengths) - 1) // 2]
    return [min(1.0, bound / length) if length > 0 else 1.0 for length in lengths]


ROBUST = Robust()
