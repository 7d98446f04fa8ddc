"""The weighted mean (paper equations 2-3)."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from dipaco_swarm.algorithm.averaging.rule import Averaging, Counted, Member, PieceAverage, coefficients


class Mean(Averaging):
    name = "mean"

    def prepare(self, members: Sequence[Member], round_tokens: float) -> PieceAverage:
        def average(contributions: Mapping[int, Tensor]) -> Counted:
            present = sorted(contributions)
            weights = coefficients(present, members, round_tokens)
            return Counted(weighted_sum([contributions[i] for i in present], weights), present)

        return average


def weighted_sum(contributions: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
    """sum_i w_i x_i in fp32, in the order given; every product and every sum is rounded separately.

    `contributions`: fp32 tensors of one shape, left unchanged.
    """
    total = contributions[0] * weights[0]
    scratch = torch.empty_like(total)
    for contribution, weight in zip(contributions[1:], weights[1:], strict=True):
        torch.mul(contribution, weight, out=scratch)
        total.add_(scratch)
    return total


MEAN = Mean()
