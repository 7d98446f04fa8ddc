"""bf16: 2 bytes a parameter, 8 bits of mantissa.

data = upper bytes (n,)  |  lower bytes (n,)
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from dipaco_swarm.swarm.round.codecs.codec import Buffer, Codec, apart, together


class BFloat16(Codec):
    """How much longer a decoded vector can be: every number is rounded up by half of the last of 8 bits at most."""

    name = "bf16"
    lengthens = 1 + 2**-8

    def most_bytes(self, count: int) -> int:
        return 2 * count

    def _encode(self, vector: Tensor) -> Sequence[memoryview]:
        return apart(vector.to(torch.bfloat16))

    def _decode(self, data: Buffer, count: int) -> Tensor:
        return together(data, count).to(torch.float32)


BF16 = BFloat16()
