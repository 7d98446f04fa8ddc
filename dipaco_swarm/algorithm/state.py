"""The state of one module, and the digest by which members of a module group know that they agree."""

import hashlib
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from dipaco_swarm.errors import ManifestError


@dataclass(frozen=True, eq=False)
class ModuleState:
    """`version` outer steps made these parameters and this momentum.

    `params`, `momentum`: fp32 on the CPU, contiguous, shape (parameters,). Treat both as immutable.
    """

    version: int
    params: Tensor
    momentum: Tensor

    @classmethod
    def seed(cls, params: Tensor) -> "ModuleState":
        """A module before its first outer step: given parameters, momentum zero."""
        return cls(0, params, torch.zeros_like(params))

    @cached_property
    def digest(self) -> str:
        """SHA-256 over version, parameters and momentum. Equal digests, equal bytes."""
        digest = hashlib.sha256(b"dipaco module state 1" + self.version.to_bytes(8, "little"))
        digest.update(vector_bytes(self.params))
        digest.update(vector_bytes(self.momentum))
        return digest.hexdigest()

    @property
    def num_bytes(self) -> int:
        return self.params.nbytes + self.momentum.nbytes


def vector_bytes(vector: Tensor) -> memoryview:
    """The bytes of a contiguous CPU tensor, without a copy."""
    return vector.detach().view(torch.uint8).numpy().data


def vector_to_bytes(vector: Tensor) -> bytes:
    """The blob of what a module starts from, parameters or momentum: fp32, little-endian, nothing else."""
    return bytes(vector_bytes(vector))


def vector_from_bytes(data: bytes) -> Tensor:
    """The vector in such a blob, fp32 (parameters,). Raises ManifestError when it cannot be one."""
    if not data or len(data) % 4:
        raise ManifestError(f"a module seed of {len(data)} bytes is not a vector of fp32; ask the operator")
    vector = torch.frombuffer(bytearray(data), dtype=torch.float32)
    if not bool(torch.isfinite(vector).all()):
        raise ManifestError("a module seed holds values that are not finite; ask the operator")
    return vector
