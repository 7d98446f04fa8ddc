"""bf16: 2 bytes a parameter, 8 bits of mantissa.

data = upper bytes (n,), sign and most of the exponent, of which there are few  |  lower bytes (n,)
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from dipaco_swarm.algorithm.state import vector_bytes
from dipaco_swarm.swarm.round.codecs.codec import Buffer, Codec


class BFloat16(Codec):
    """How much longer a decoded vector can be: every number is rounded up by half of the last of 8 bits at most."""

    name = "bf16"
    lengthens = 1 + 2**-8

    def most_bytes(self, count: int) -> int:
        return 2 * count

    def _encode(self, vector: Tensor) -> Sequence[memoryview]:
        lower, upper = vector.to(torch.bfloat16).view(torch.uint8).view(-1, 2).t().contiguous()
        return [vector_bytes(upper), vector_bytes(lower)]

    def _decode(self, data: Buffer, count: int) -> Tensor:
        upper, lower = torch.frombuffer(data, dtype=torch.uint8).view(2, count)
        return torch.stack([lower, upper], dim=1).view(torch.bfloat16).view(-1).to(torch.float32)


BF16 = BFloat16()
