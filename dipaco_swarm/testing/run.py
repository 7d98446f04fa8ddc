"""The run of a simulated world: its manifest, its first states, and the node that keeps its modules."""

import contextlib
import random
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from dipaco_swarm.algorithm.paths import PathTable
from dipaco_swarm.algorithm.state import ModuleState, vector_to_bytes
from dipaco_swarm.run.address import RunAddress
from dipaco_swarm.run.file import parse_run_file
from dipaco_swarm.run.manifest import Manifest, Stage
from dipaco_swarm.run.signature import fingerprint_of, sign_manifest
from dipaco_swarm.swarm.interface import Announcement, Role
from dipaco_swarm.swarm.local import LocalTransport
from dipaco_swarm.swarm.networked import NetworkedSwarm, networked_swarm
from dipaco_swarm.swarm.states.blobs import MemoryBlobs
from dipaco_swarm.testing.directory import SimulatedRecords
from dipaco_swarm.testing.virtual_time import Inline, Program, VirtualClock

if TYPE_CHECKING:
    from dipaco_swarm.testing.world import Plan, World

OPERATOR = "bootstrap"
KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
"""Of every simulated operator: a run repeats itself."""


def run_file(plan: "Plan") -> str:
    levels = len(plan.table[0])
    ends = (
        {0: "embedding = true\n", levels - 1: "head = true\n"} if levels > 1 else {0: "embedding = true\nhead = true\n"}
    )
    blocks = "\n".join(f"[[levels]]\nblocks = [{level}]\n{ends.get(level, '')}" for level in range(levels))
    modules = [list(row) for row in plan.table]
    return f"""\
name = "simulated"
min_peers = {plan.min_peers}

[model]
hidden_size = 8
intermediate_size = 8
num_hidden_layers = {levels}
num_attention_heads = 1

{blocks}

[data]
source = "python"
sequence_length = 64

[inner]
batch_sequences = 8

[outer]
momentum = 0.6

[rounds]
pacing = "{plan.pacing}"
inner_steps = {plan.inner_steps}

[wire]
codec = "{plan.codec}"

[[stages]]
router = "k-means"
paths = {modules}
{"" if plan.rounds is None else f"rounds = {plan.rounds}"}
"""


class SimulatedRun:
    """The operator's side."""

    def __init__(self, plan: "Plan", address: Callable[[str, str, str], RunAddress]) -> None:
        self._plan = plan
        self.config = parse_run_file(run_file(plan))
        self.address = address(self.config.name, fingerprint_of(KEY.public_key()), OPERATOR)
        self._program: Program | None = None

    async def open(self, world: "World") -> None:
        """Publish the run."""
        clock = VirtualClock(world.loop)
        self._program = program = Program(world.loop, OPERATOR)
        table = PathTable(tuple(tuple(row) for row in self._plan.table))
        generator = torch.Generator().manual_seed(world.seed)
        opened = world.loop.create_future()

        async def join() -> NetworkedSwarm:
            transport = LocalTransport(
                world.local,
                OPERATOR,
                clock=clock,
                records=SimulatedRecords(world.directory, OPERATOR, clock),
                executor=Inline,
                random=random.Random(f"{world.seed}/{OPERATOR}"),
            )
            transport.open()
            return await stack.enter_async_context(networked_swarm(program, transport, self.address, MemoryBlobs()))

        stack = contextlib.AsyncExitStack()

        def live() -> None:
            swarm = program.run(join())
            states = {
                module: ModuleState.seed(torch.randn(self._plan.parameters, generator=generator))
                for module in table.modules
            }
            seeds = {str(module): swarm.put_blob(vector_to_bytes(state.params)) for module, state in states.items()}
            shares = tuple(1 / table.num_paths for _ in range(table.num_paths))
            stage = Stage(
                index=0,
                table=table.rows,
                path_weights=shares,
                router=swarm.put_blob(b"router"),
                seeds=seeds,
                rounds=self._plan.rounds,
            )
            tokenizer = swarm.put_blob(b"tokenizer")
            manifest = Manifest(revision=0, config=self.config, tokenizer=tokenizer, stages=(stage,))
            swarm.publish_manifest(sign_manifest(manifest, KEY))
            swarm.announce(
                [
                    Announcement(swarm.peer, 0, module, None, state.version, state.digest, role=Role.KEEPS)
                    for module, state in states.items()
                ]
            )
            opened.set_result(None)
            while True:
                program.sleep(45)
                swarm.publish_manifest(sign_manifest(manifest, KEY))

        program.start(live)
        await opened

    def end(self) -> None:
        if self._program is not None:
            self._program.kill()
