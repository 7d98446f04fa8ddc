"""e3m0: a sign and 3 bits of exponent, for gradients with heavy tails (`four_bits.py` has the form of the bytes)."""

import torch
from torch import Tensor

from dipaco_swarm.swarm.round.codecs.four_bits import SCALE_ERROR, SHARED, FourBits

UPPER = 16
"""The upper half of an fp32: sign, exponent and the first 7 digits, of which the first alone decides the rounding."""
EXPONENT = 7
"""Bits of that half below the exponent."""
HALF = 1 << (EXPONENT - 1)
"""Added to these bits, it carries into the exponent where the number is at least 1.5 times its power of two."""
ZERO = 127 - 7
"""Exponent, as an fp32 has it, of what would be level 0: 2^-7."""


class PowersOfTwo(FourBits):
    """Codes 1 to 7 are 2^-6 to 2^0, code 0 is 0, and 8 is the sign.

    A number above 2^-6 of the scale is off by a third of itself at most; one below, by 2^-7 of the scale at most.

    How much longer a decoded vector can be: worst is a block with one number at the scale and 63 at 3/4 of it, which
    become 1. It is longer still where the scale was rounded up, so that the one number is a little below it. Smaller
    numbers are lengthened as much or more, but make less of the whole. In numbers
    64 / ((1 / (1 + 1/17))^2 + 63 * 0.75^2) = 1.762, and its root is 1.3273.
    """

    name = "e3m0"
    lengthens = (SHARED / ((1 / (1 + SCALE_ERROR)) ** 2 + (SHARED - 1) * 0.75**2)) ** 0.5  # 1.3273

    def __init__(self) -> None:
        levels = [0.0, *(2.0**exponent for exponent in range(-6, 1))]
        super().__init__([*levels, *(-level for level in levels)])

    def _codes(self, steps: Tensor) -> Tensor:
        """The nearest level, by the bits of the number: no logarithm, which may differ between machines."""
        bits = (steps.view(torch.int32) >> UPPER).to(torch.int16)
        signs = (bits >> 12).bitwise_and_(8)
        bits.bitwise_and_(0x7FFF)
        # 0 and 2^-6 meet at 2^-7 already, not at 1.5 times that, as powers of two do
        at_least = (bits >> EXPONENT).sub_(ZERO - 1).clamp_(0, 1)
        codes = bits.add_(HALF).bitwise_right_shift_(EXPONENT).sub_(ZERO).clamp_(0, 7)
        return torch.maximum(codes, at_least, out=codes).bitwise_or_(signs).to(torch.uint8)


E3M0 = PowersOfTwo()
