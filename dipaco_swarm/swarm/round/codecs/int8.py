"""int8: 1 byte a parameter, and 4 bytes a block for the block's largest magnitude.

data = scales, fp32 (blocks,)  |  levels, int8 (n,)          x = scale * level,   level in -80 .. 80
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from dipaco_swarm.algorithm.state import vector_bytes
from dipaco_swarm.swarm.round.codecs.codec import BLOCK, Buffer, Codec, as_blocks, num_blocks

LARGEST = 80
"""127 would be the most. A third less saves 0.7 bits of what is packed; normal numbers are off by 1.25, not 0.8 %."""


class BlockwiseInt8(Codec):
    """0.4 % overhead for scales; an outlier spoils at most its own block.

    How much longer a decoded vector can be: worst is a block with one number at level 80 and all the others just above
    2.5, which become 3. In numbers (80^2 + 1023 * 3^2) / (80^2 + 1023 * 2.5^2) = 1.2199, and its root is 1.1045.
    Other levels lengthen less.
    """

    name = "int8"
    lengthens = ((LARGEST**2 + (BLOCK - 1) * 3**2) / (LARGEST**2 + (BLOCK - 1) * 2.5**2)) ** 0.5  # 1.1045

    def most_bytes(self, count: int) -> int:
        return count + 4 * num_blocks(count, BLOCK)

    def _encode(self, vector: Tensor) -> Sequence[memoryview]:
        blocks = as_blocks(vector, BLOCK)
        scales = blocks.abs().amax(dim=1).div_(LARGEST)
        safe = torch.where(scales > 0, scales, torch.ones_like(scales))
        # a non-finite value makes its block's scale non-finite, which the decoder's side refuses
        levels = (blocks / safe[:, None]).round_().clamp_(-LARGEST, LARGEST).to(torch.int8)
        return [vector_bytes(scales), vector_bytes(levels.view(-1)[: len(vector)])]

    def _decode(self, data: Buffer, count: int) -> Tensor:
        blocks = num_blocks(count, BLOCK)
        scales = torch.frombuffer(data, dtype=torch.float32, count=blocks)
        levels = torch.frombuffer(data, dtype=torch.int8, offset=4 * blocks)
        if count % BLOCK == 0:
            return levels.view(blocks, BLOCK).to(torch.float32).mul_(scales[:, None]).view(-1)
        return levels.to(torch.float32).mul_(scales.repeat_interleave(BLOCK)[:count])


INT8 = BlockwiseInt8()
