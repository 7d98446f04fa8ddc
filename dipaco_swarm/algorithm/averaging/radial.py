"""Mean length times mean direction, of each piece (docs/paper.md#radial-averaging)."""

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from dipaco_swarm.algorithm.averaging.mean import weighted_sum
from dipaco_swarm.algorithm.averaging.rule import Averaging, Counted, Member, PieceAverage, coefficients


class Radial(Averaging):
    """The length does not shrink with the number of contributions, so nothing else may lengthen the average."""

    name = "radial"

    def prepare(self, members: Sequence[Member], round_tokens: float) -> PieceAverage:
        def average(contributions: Mapping[int, Tensor]) -> Counted:
            present = sorted(contributions)
            weights = coefficients(present, members, round_tokens)
            return Counted(radial_average([contributions[i] for i in present], weights), present)

        return average


def radial_average(contributions: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
    """Mean length times mean direction: (sum_i w_i |x_i|) phi(sum_i w_i phi(x_i)), phi(x) = x / |x|, fp32.

    Radial-directional averaging (docs/paper.md#radial-averaging): the length does not shrink with the number of
    contributions, so it does the work of the square root of paths where participation fluctuates. Never both.
    Contributions of no length count for nothing; arguments as for `weighted_sum`.
    """
    lengths = [float(torch.linalg.vector_norm(contribution)) for contribution in contributions]
    inverse = [weight / length if length > 0 else 0.0 for weight, length in zip(weights, lengths, strict=True)]
    direction = weighted_sum(contributions, inverse)
    length = float(torch.linalg.vector_norm(direction))
    total = math.fsum(weight * length for weight, length in zip(weights, lengths, strict=True))
    return direction * (total / length if length > 0 else 0.0)


RADIAL = Radial()
