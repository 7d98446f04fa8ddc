"""What a simulated swarm trains: a plan, its run file, and the key of its operator."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from dipaco_swarm.run.address import RunAddress
from dipaco_swarm.run.config import RunConfig
from dipaco_swarm.run.file import parse_run_file
from dipaco_swarm.run.signature import fingerprint_of
from dipaco_swarm.strategies import AVERAGING
from dipaco_swarm.swarm.local import local_address
from dipaco_swarm.swarm.timing import Timing

OPERATOR = "bootstrap"
"""The name of the operator's node."""
KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
"""Of every simulated operator: a run repeats itself."""

Table = Sequence[Sequence[int]]


@dataclass(frozen=True)
class StagePlan:
    """A stage of the run."""

    table: Table | None = None
    """The paths; None: one path, or with the router "discriminative" those of the stage before."""
    router: str = "k-means"
    rounds: int | None = None
    tokens: int | None = None
    """Of a path. Without rounds and tokens the stage has no end."""


@dataclass(frozen=True)
class Plan:
    """What is trained, and how."""

    stages: Sequence[StagePlan] = (StagePlan(((0, 0), (0, 1), (1, 0), (1, 1))),)
    inner_steps: int = 10
    codec: str = "fp32"
    averaging: str = "robust"
    pacing: str = "paced"
    overlap: bool = False
    overlap_steps: int = 0
    parameters: int = 64
    """Of each module."""
    min_peers: int = 1
    early_stopping: bool = False
    rerouting: bool = False
    """Whether there is a window router in the end."""
    until_finished: bool = False
    """Whether programs end when the run does."""
    timing: Timing = field(default_factory=Timing)

    @property
    def paths(self) -> int:
        """Of the stage that has most."""
        return max(len(stage.table or ((),)) for stage in self.stages)

    @property
    def ends(self) -> bool:
        """Whether every stage has an end."""
        return all(stage.rounds is not None or stage.tokens is not None for stage in self.stages)

    @property
    def levels(self) -> int:
        return next(len(stage.table[0]) for stage in self.stages if stage.table is not None)

    def config(self, seed: int) -> RunConfig:
        return parse_run_file(run_file(self, seed))


def address_of(config: RunConfig) -> RunAddress:
    """How peers find the run."""
    return local_address(config.name, fingerprint_of(KEY.public_key()), OPERATOR)


def run_file(plan: Plan, seed: int) -> str:
    """The plan as a run file."""
    blocks = "\n".join(_level(level, plan.levels - 1) for level in range(plan.levels))
    stages = "\n".join(_stage(stage) for stage in plan.stages)
    return f"""\
name = "simulated"
seed = {seed}
min_peers = {plan.min_peers}

[model]
hidden_size = 8
intermediate_size = 8
num_hidden_layers = {plan.levels}
num_attention_heads = 1

{blocks}

[data]
source = "python"
sequence_length = 64

[inner]
batch_sequences = 8

[outer]
momentum = 0.6
averaging = "{plan.averaging}"
rescale = {str(not AVERAGING[plan.averaging].keeps_length).lower()}

[rounds]
pacing = "{plan.pacing}"
inner_steps = {plan.inner_steps}
overlap = {str(plan.overlap).lower()}
overlap_steps = {plan.overlap_steps}

[wire]
codec = "{plan.codec}"

{"[early_stopping]" if plan.early_stopping else ""}
{"[rerouting]" if plan.rerouting else ""}

{stages}
"""


def _level(level: int, last: int) -> str:
    ends = [f"{part} = true" for part, where in (("embedding", 0), ("head", last)) if level == where]
    return "\n".join(["[[levels]]", f"blocks = [{level}]", *ends])


def _stage(stage: StagePlan) -> str:
    lines = ["[[stages]]", f'router = "{stage.router}"']
    if stage.table is not None:
        lines.append(f"paths = {[list(row) for row in stage.table]}")
    if stage.rounds is not None:
        lines.append(f"rounds = {stage.rounds}")
    if stage.tokens is not None:
        lines.append(f"tokens = {stage.tokens}")
    return "\n".join(lines)
