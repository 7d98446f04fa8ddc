"""What a path takes of a machine: measured, and said by the doctor and by `dipaco-bootstrap check` alike.

`python -m benchmarks.memory` measures it; the table is in docs/operator.md.
"""

PROGRAM_BYTES = 500_000_000
"""Of memory, before any path: torch, transformers and hivemind."""
MEMORY_BYTES = 38
"""A parameter of a path, at most, beside activations: on a CPU, in a round, while a checkpoint is written..."""
GPU_BYTES, BESIDE_GPU_BYTES = 10, 22
"""... and with a GPU, which has the parameters, their gradients, and their moments in eight bits."""
DISK_BYTES = 96
"""The checkpoint, and the next one; two agreed states, and the next one; averages of six rounds."""
NODE_DISK_BYTES = 8 + 16 + 5
"""On the bootstrap node, a parameter of the whole bank: a stage's modules, what is served now and before, averages."""
