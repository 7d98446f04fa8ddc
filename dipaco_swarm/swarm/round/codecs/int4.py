"""int4: 4 bits a parameter, levels -7 to 7 at equal distances (`four_bits.py` has the form of the bytes)."""

import torch
from torch import Tensor

from dipaco_swarm.swarm.round.codecs.four_bits import SCALE_ERROR, SHARED, FourBits

LARGEST = 7


class BlockwiseInt4(FourBits):
    """The codes are two's complement. Code 8, which is level -8, is never written.

    A number is off by half a step at most: a fourteenth of its block's largest magnitude, and 1/17 of that for the
    rounded scale.

    How much longer a decoded vector can be: worst is a block with one number at level 7 and 63 just above half a step,
    which become 1. It is longer still where the scale was rounded up, so that the one number is a little below 7 steps.
    Other levels lengthen less: 1.5 becomes 2 is 4/3 of the length, 0.5 becomes 1 is twice. In numbers
    (7^2 + 63 * 1^2) / ((7 / (1 + 1/17))^2 + 63 * 0.5^2) = 1.884, and its root is 1.3725.
    """

    name = "int4"
    lengthens = ((LARGEST**2 + SHARED - 1) / ((LARGEST / (1 + SCALE_ERROR)) ** 2 + (SHARED - 1) / 4)) ** 0.5  # 1.3725

    def __init__(self) -> None:
        super().__init__([*range(8), *range(-8, 0)])

    def _codes(self, steps: Tensor) -> Tensor:
        levels = steps.round_().clamp_(-LARGEST, LARGEST).to(torch.int8)
        return levels.bitwise_and_(15).view(torch.uint8)


INT4 = BlockwiseInt4()
