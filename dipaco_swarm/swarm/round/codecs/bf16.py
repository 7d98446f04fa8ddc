"""bf16: 2 bytes a parameter, 8 bits of mantissa."""

import torch
from torch import Tensor

from dipaco_swarm.algorithm.state import vector_bytes
from dipaco_swarm.swarm.round.codecs.codec import Buffer, Codec


class BFloat16(Codec):
    """How much longer a decoded vector can be: every number is rounded up by half of the last of 8 bits at most."""

    name = "bf16"
    lengthens = 1 + 2**-8

    def encoded_size(self, count: int) -> int:
        return 2 * count

    def encode(self, vector: Tensor) -> memoryview:
        return vector_bytes(vector.to(torch.bfloat16))

    def _decode(self, data: Buffer, count: int) -> Tensor:
        return torch.frombuffer(data, dtype=torch.bfloat16).to(torch.float32)


BF16 = BFloat16()
