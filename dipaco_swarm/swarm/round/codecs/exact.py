"""fp32: 4 bytes a parameter, the numbers themselves."""

from collections.abc import Sequence

import torch
from torch import Tensor

from dipaco_swarm.algorithm.state import vector_bytes
from dipaco_swarm.swarm.round.codecs.codec import Buffer, Codec


class Exact(Codec):
    name = "fp32"
    exact = True
    lengthens = 1.0

    def most_bytes(self, count: int) -> int:
        return 4 * count

    def _encode(self, vector: Tensor) -> Sequence[memoryview]:
        return [vector_bytes(vector)]

    def _decode(self, data: Buffer, count: int) -> Tensor:
        return torch.frombuffer(data, dtype=torch.float32)


EXACT = Exact()
