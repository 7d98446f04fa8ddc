"""What a path takes of a machine: measured, and said by the doctor, by a peer and by `dipaco-bootstrap check` alike.

`python -m benchmarks.memory` measures it; the table is in docs/operator.md.
"""

from dataclasses import dataclass

from dipaco_swarm.strategies import CODECS

PROGRAM_BYTES = 500_000_000
"""Of memory, before any path: torch, transformers and hivemind."""
MEMORY_BYTES = 34
"""A parameter of a path, at most, beside activations: on a CPU, in a round, while a checkpoint is written..."""
GPU_BYTES, BESIDE_GPU_BYTES = 10, 18
"""... and with a GPU, which has the parameters, their gradients, and their moments in eight bits."""
HELPER_BYTES = 16
"""Of each process that helps, beside the program: parameters, gradients, and both on their way, here and there."""
DISK_BYTES = 104
"""The checkpoint, and the next one; two agreed states, and the next one; error feedback; averages of six rounds."""
NODE_DISK_BYTES = 8 + 16 + 5
"""On the bootstrap node, a parameter of the whole bank: a stage's modules, what is served now and before, averages."""

ANCHOR_BYTES = 8
"""The same, for a copy of all modules that the run can go back to."""


@dataclass(frozen=True)
class PathNeeds:
    """What a volunteer's machine needs, in bytes; activations, and what --disk gives to documents, come on top."""

    memory: int
    memory_beside_gpu: int
    gpu: int
    disk: int
    helper: int
    """Of memory, for each device beside the first."""

    @classmethod
    def of(cls, parameters: int) -> "PathNeeds":
        """For a path of so many parameters."""
        return cls(
            memory=PROGRAM_BYTES + MEMORY_BYTES * parameters,
            memory_beside_gpu=PROGRAM_BYTES + BESIDE_GPU_BYTES * parameters,
            gpu=GPU_BYTES * parameters,
            disk=DISK_BYTES * parameters,
            helper=PROGRAM_BYTES + HELPER_BYTES * parameters,
        )


def round_bytes(codec: str, parameters: int) -> int:
    """Bytes that a member sends at most in a round of so many parameters: as many as it takes in."""
    return round(2 * CODECS[codec].bytes_on_the_way * parameters)
