"""The state of one module, and the digest by which members of a module group know that they agree.

The digest is one over the digests of pieces: 4 MiB of parameters each, then as many of momentum. So a state can come
from many holders at once, none of them trusted: whoever has the pieces' digests can check each piece alone.
"""

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor

from dipaco_swarm.errors import ManifestError

PIECE_BYTES = 1 << 22
"""Large enough that messages and hops between threads cost nothing, small enough to give a slow holder few of them."""
HASH_BYTES = 32
MAX_WORK = (1 << 62) - 1
"""256 generations of more tokens than all runs together (`generations.py`)."""


@dataclass(frozen=True)
class StateOutline:
    """All that a state's digest covers, without the numbers themselves: enough to check any piece of it alone."""

    version: int
    parameters: int
    hashes: bytes
    """SHA-256 of each piece, 32 bytes each: the pieces of the parameters, then those of the momentum."""
    work: int = 0
    """Tokens behind all outer steps of this stage that made the state, of everybody who was in them."""

    @cached_property
    def digest(self) -> str:
        header = b"".join(number.to_bytes(8, "little") for number in (self.version, self.parameters, self.work))
        return hashlib.sha256(b"dipaco module state 3" + header + self.hashes).hexdigest()

    @property
    def num_pieces(self) -> int:
        return num_pieces(self.parameters)

    def fits(self, piece: int, data: memoryview) -> bool:
        """Whether these are the bytes of that piece."""
        return hashlib.sha256(data).digest() == self.hashes[piece * HASH_BYTES : (piece + 1) * HASH_BYTES]


@dataclass(frozen=True, eq=False)
class ModuleState:
    """`version` outer steps made these parameters and this momentum.

    `params`, `momentum`: fp32 on the CPU, contiguous, shape (parameters,). Treat both as immutable.
    """

    version: int
    params: Tensor
    momentum: Tensor
    work: int = 0
    """Tokens behind all outer steps of this stage that made it: of two histories, the one with more work counts. Its
    upper bits say how often the operator has gone back with the module (`generations.py`)."""
    mapped: bool = False
    """Whether the numbers are in a file of their own, mapped: the system may have their memory."""

    @classmethod
    def seed(cls, params: Tensor) -> "ModuleState":
        """A module before its first outer step: given parameters, momentum zero."""
        return cls(0, params, torch.zeros_like(params))

    @classmethod
    def checked(cls, outline: StateOutline, params: Tensor, momentum: Tensor) -> "ModuleState":
        """A state that fits this outline, as the caller has seen."""
        state = cls(outline.version, params, momentum, outline.work)
        state.expects(outline)
        return state

    def expects(self, outline: StateOutline) -> None:
        """The caller sees to it that the numbers fit this outline, piece by piece; they are not hashed again."""
        self.__dict__["outline"] = outline  # where cached_property keeps what it has computed

    @cached_property
    def outline(self) -> StateOutline:
        hashes = (hashlib.sha256(self.piece(i)).digest() for i in range(num_pieces(len(self.params))))
        return StateOutline(self.version, len(self.params), b"".join(hashes), self.work)

    @property
    def digest(self) -> str:
        """SHA-256 over version, length, work, and the SHA-256 of each piece. Equal digests, equal bytes."""
        return self.outline.digest

    def piece(self, index: int) -> memoryview:
        """The bytes of one piece, without a copy: PIECE_BYTES of the parameters or of the momentum, or their rest."""
        half = num_pieces(len(self.params)) // 2
        vector, place = (self.params, index) if index < half else (self.momentum, index - half)
        return vector_bytes(vector)[place * PIECE_BYTES : (place + 1) * PIECE_BYTES]

    @property
    def num_bytes(self) -> int:
        return self.params.nbytes + self.momentum.nbytes


class Room(Protocol):
    """Where new states are made."""

    def state(self, version: int, parameters: int, work: int) -> ModuleState:
        """A state whose numbers the caller is about to write."""
        ...

    def rest(self, *states: ModuleState) -> None:
        """What was looked at of these states is not wanted for some time."""
        ...


class Memory:
    """Room in memory."""

    def state(self, version: int, parameters: int, work: int) -> ModuleState:
        return ModuleState(version, torch.empty(parameters), torch.empty(parameters), work)

    def rest(self, *states: ModuleState) -> None:
        """They stay where they are."""


def num_pieces(parameters: int) -> int:
    """Pieces of a state: as many of its momentum as of its parameters."""
    return 2 * -(-4 * parameters // PIECE_BYTES)


def all_finite(numbers: Tensor) -> bool:
    """Whether each of these numbers is one, neither infinite nor NaN. fp32, flat."""
    step = PIECE_BYTES // 4
    return all(bool(torch.isfinite(numbers[at : at + step]).all()) for at in range(0, len(numbers), step))


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
