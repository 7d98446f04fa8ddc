"""How a piece of an outer gradient becomes bytes and back.

    fp32   4 bytes a parameter, exact
    bf16   2 bytes
    int8   1 byte, and 4 bytes a block of 1024 for the block's largest magnitude

Plain torch operations, each rounded on its own: the same bytes on every machine. A piece always starts at a multiple of
BLOCK, so that blocks are the same however a vector is cut. Decoding checks the size and nothing else; what a stranger's
numbers may be is checked where they are summed.
"""

from typing import Literal

import torch
from torch import Tensor

from dipaco_swarm.algorithm.state import vector_bytes

Codec = Literal["fp32", "bf16", "int8"]

BLOCK = 1024  # 0.4 % overhead for scales; an outlier spoils at most its own block


def encoded_size(codec: Codec, count: int) -> int:
    """Bytes that `count` parameters take."""
    if codec == "fp32":
        return 4 * count
    if codec == "bf16":
        return 2 * count
    return count + 4 * _blocks(count)


def encode(codec: Codec, vector: Tensor) -> memoryview:
    """fp32 (n,) -> bytes. With fp32 a view of the vector itself: it must not change while the bytes are in use."""
    if codec == "fp32":
        return vector_bytes(vector)
    if codec == "bf16":
        return vector_bytes(vector.to(torch.bfloat16))
    blocks = _as_blocks(vector)
    scales = blocks.abs().amax(dim=1).div_(127.0)
    safe = torch.where(scales > 0, scales, torch.ones_like(scales))
    # a non-finite value makes its block's scale non-finite, which the decoder's side refuses
    levels = (blocks / safe[:, None]).round_().clamp_(-127, 127).to(torch.int8)
    out = torch.empty(encoded_size(codec, len(vector)), dtype=torch.uint8)
    head = 4 * len(scales)
    out[:head] = scales.view(torch.uint8)
    out[head:] = levels.view(torch.uint8).flatten()[: len(vector)]
    return vector_bytes(out)


def decode(codec: Codec, data: bytes | bytearray | memoryview, count: int) -> Tensor:
    """Bytes -> fp32 (count,). For fp32 a view of the data. Raises ValueError when the size is not that of `count`."""
    if len(data) != encoded_size(codec, count):
        raise ValueError(f"{len(data)} bytes are not {count} parameters in {codec}")
    if codec == "fp32":
        return torch.frombuffer(data, dtype=torch.float32)
    if codec == "bf16":
        return torch.frombuffer(data, dtype=torch.bfloat16).to(torch.float32)
    blocks = _blocks(count)
    scales = torch.frombuffer(data, dtype=torch.float32, count=blocks)
    levels = torch.frombuffer(data, dtype=torch.int8, offset=4 * blocks)
    if count % BLOCK == 0:
        return levels.view(blocks, BLOCK).to(torch.float32).mul_(scales[:, None]).view(-1)
    return levels.to(torch.float32).mul_(scales.repeat_interleave(BLOCK)[:count])


def _blocks(count: int) -> int:
    return -(-count // BLOCK)


def _as_blocks(vector: Tensor) -> Tensor:
    """(n,) -> (blocks, BLOCK), padded with zeros."""
    missing = -len(vector) % BLOCK
    return (torch.nn.functional.pad(vector, (0, missing)) if missing else vector).view(-1, BLOCK)
