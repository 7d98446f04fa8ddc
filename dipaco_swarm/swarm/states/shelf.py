"""States and averages on the disk instead of in memory, for as long as somebody here uses them.

Each is in a file of its own, mapped, which has lost its name: nothing is left when it is let go, or after a crash. The
system reads pages of it when they are looked at, and has the memory back when it needs it. What is small, and what the
disk has no room for, is in memory.
"""

import logging
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from dipaco_swarm.algorithm.state import Memory, ModuleState, vector_bytes
from dipaco_swarm.files import passing_file
from dipaco_swarm.machine.memory import rest_in_file
from dipaco_swarm.swarm.round.codecs.codec import Buffer

log = logging.getLogger(__name__)

SMALL_BYTES = 1 << 20
"""What is not larger stays in memory: a file costs more than it saves."""


class Shelf:
    """Room on the disk, in one folder; an `algorithm.state.Room`."""

    def __init__(self, folder: Path | None, small: int = SMALL_BYTES) -> None:
        """`folder`: None where there is no disk; all is in memory then."""
        self._folder = folder
        self._small = small

    def state(self, version: int, parameters: int, work: int) -> ModuleState:
        params = self._file(4 * parameters)
        momentum = None if params is None else self._file(4 * parameters)
        if params is None or momentum is None:
            return Memory().state(version, parameters, work)
        return ModuleState(version, params.view(torch.float32), momentum.view(torch.float32), work, mapped=True)

    def rest(self, *states: ModuleState) -> None:
        """Their numbers are in memory again when they are looked at."""
        for state in states:
            for numbers in (state.params, state.momentum) if state.mapped else ():
                rest_in_file(numbers.data_ptr(), numbers.nbytes)

    def copy(self, state: ModuleState) -> ModuleState:
        """The same state, here; for one that is in memory."""
        copy = self.state(state.version, len(state.params), state.work)
        copy.params.copy_(state.params)
        copy.momentum.copy_(state.momentum)
        copy.expects(state.outline)
        self.rest(copy)
        return copy

    def copy_of(self, tensor: Tensor) -> Tensor:
        """A copy of a CPU tensor, of the same type and shape."""
        data = self.put([vector_bytes(tensor.contiguous().view(-1))])
        flat = torch.frombuffer(data if isinstance(data, memoryview) else bytearray(data), dtype=tensor.dtype)
        return flat.view(tensor.shape)

    def zeros(self, count: int) -> Tensor:
        """fp32 (count,), zeros, to be written."""
        numbers = self._file(4 * count)
        return torch.zeros(count) if numbers is None else numbers.view(torch.float32)

    def put(self, parts: Sequence[Buffer]) -> Buffer:
        """These bytes, one part after the other."""
        numbers = self._file(sum(map(len, parts)), parts)
        return b"".join(parts) if numbers is None else vector_bytes(numbers)

    def _file(self, size: int, parts: Sequence[Buffer] = ()) -> Tensor | None:
        """uint8 (size,) in a file that begins with these bytes; None where it is to be in memory."""
        if self._folder is None or size <= self._small:
            return None
        try:
            with passing_file(self._folder, size) as file:
                with open(file, "r+b") as opened:  # several times as fast as through the mapping
                    for part in parts:
                        opened.write(part)
                return torch.from_file(str(file), shared=True, size=size, dtype=torch.uint8)
        except (OSError, RuntimeError) as error:  # torch's word for what cannot be mapped
            log.warning("keeps %d MB in memory, as they cannot be on the disk: %s", size >> 20, error)
            return None
