"""What int4 and e3m0 have in common: two numbers a byte, and 2 bytes for the scale of each block of 64.

data = scales, bf16, upper bytes (blocks,)  |  lower bytes (blocks,)  |  codes, 4 bits (n,), the first of two in the
lower half of a byte      x = scale * level of code

That is 4.25 bits a number. The scales are bf16 and not fp16: outer gradients are small, and below 6e-5 an fp16 loses
digits. Of a scale's 8 binary digits only the first 4 are used: the others look like noise, which does not pack. They
were 1.6 % of what travels, and without them errors grow by 0.3 %. A scale times a level is exact in fp32.
"""

from abc import abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor

from dipaco_swarm.algorithm.state import vector_bytes
from dipaco_swarm.swarm.round.codecs.codec import Buffer, Codec, apart, as_blocks, num_blocks, together

SHARED = 64
"""So many numbers share a scale. 128 would save 0.125 bits, and int4 could then make a vector 1.48 times as long."""

SCALE_DIGITS = 4
"""With 3, the largest number of a block could be more than half a step from the last level."""

SCALE_ERROR = 1 / (2**SCALE_DIGITS + 1)
"""By what part of itself a scale is rounded, at most: half of its last digit, where the others are 1 and zeros."""


class FourBits(Codec):
    """A number becomes the nearest of the 15 levels of its block: 0, and the scale times +-7 others.

    The scale is that of the block's largest magnitude, which is nearest to the last level. So what was decoded once is
    encoded to the same numbers again, but for blocks below 1e-36, whose scales have fewer digits.
    """

    def __init__(self, levels: Sequence[float]) -> None:
        """`levels`: 16 of them, by code; code 0 is 0.0. The largest is positive."""
        by_code = torch.tensor(levels, dtype=torch.float32)
        self._largest = float(by_code.max())
        codes = torch.arange(256)
        self._pairs = torch.stack([by_code[codes & 15], by_code[codes >> 4]], dim=1).view(torch.int64).view(-1)
        """Byte -> the two fp32 in it, as one int64: half as many look-ups."""

    def most_bytes(self, count: int) -> int:
        return 2 * num_blocks(count, SHARED) + -(-count // 2)

    def _encode(self, vector: Tensor) -> Sequence[memoryview]:
        count = len(vector)
        blocks = as_blocks(vector, SHARED)
        scales = _rounded(blocks.abs().amax(dim=1).div_(self._largest)).to(torch.bfloat16)
        steps = scales.to(torch.float32)
        # a non-finite value makes its block's scale non-finite, which the decoder's side refuses
        steps = torch.where(steps > 0, steps, torch.ones_like(steps))
        pairs = self._codes((blocks / steps[:, None]).view(-1)).view(torch.int16)  # one code in each of two bytes
        packed = (pairs >> 4).bitwise_or_(pairs).bitwise_and_(0xFF).to(torch.uint8)
        return [*apart(scales), vector_bytes(packed[: -(-count // 2)])]

    @abstractmethod
    def _codes(self, steps: Tensor) -> Tensor:
        """fp32 (n,), numbers over the scale of their block -> uint8 (n,), 0 to 15. May write into `steps`."""

    def _decode(self, data: Buffer, count: int) -> Tensor:
        blocks = num_blocks(count, SHARED)
        scales = together(data, blocks).to(torch.float32)
        packed = torch.frombuffer(data, dtype=torch.uint8, offset=2 * blocks)
        numbers = self._pairs.index_select(0, packed.to(torch.int32)).view(torch.float32)[:count]
        whole = count // SHARED
        numbers[: whole * SHARED].view(whole, SHARED).mul_(scales[:whole, None])
        numbers[whole * SHARED :].mul_(scales[whole:])
        return numbers


def _rounded(scales: Tensor) -> Tensor:
    """fp32 (blocks,) -> fp32 (blocks,), to SCALE_DIGITS, halves to even. What is not finite stays so."""
    dropped = 24 - SCALE_DIGITS  # of the digits of an fp32; whole numbers, so that all machines round alike
    bits = scales.view(torch.int32)
    last = (bits >> dropped).bitwise_and_(1)
    rounded = (bits + (2 ** (dropped - 1) - 1) + last).bitwise_and_(-(2**dropped))
    return torch.where(scales.isfinite(), rounded.view(torch.float32), scales)
