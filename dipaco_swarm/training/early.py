"""Per-path early stopping: of all the versions of a path, the one with the lowest loss on a slice of its own shard.

    agreed modules of the path --slice of the shard--> loss --lowest so far--> Snapshot --> a file, a blob, a statement

Snapshots are for serving alone: nothing of them goes back into training or averaging (paper section 4: 12.39 -> 12.22;
docs/paper.md#early-stopping). Here is what one machine does; `dipaco_swarm/snapshots.py` speaks with the others.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from pydantic import BaseModel, ConfigDict, Field
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from dipaco_swarm.algorithm.paths import ModuleId, PathIndex, PathTable
from dipaco_swarm.algorithm.state import ModuleState
from dipaco_swarm.errors import CheckpointError, in_short
from dipaco_swarm.run.values import Digest
from dipaco_swarm.training.checkpoint import digest_of
from dipaco_swarm.training.evaluation import Score, evaluate
from dipaco_swarm.training.modules import PathModel
from dipaco_swarm.training.pieces import EvaluationSet

FORMAT = 1


@dataclass(frozen=True, eq=False)
class Snapshot:
    """A path as it was when its loss was the lowest."""

    run: str
    """Which run this belongs to: its name and the operator's fingerprint."""
    stage: int
    path: PathIndex
    loss: float
    """Mean cross-entropy on the slice, in nats per token."""
    versions: Mapping[ModuleId, int]
    params: Mapping[ModuleId, Tensor]
    """Agreed parameters of each module of the path, fp32 on the CPU, shape (parameters,)."""

    @property
    def named_versions(self) -> dict[str, int]:
        """By the name of the module, in level order."""
        return {str(module): version for module, version in sorted(self.versions.items())}


class PathShape(Protocol):
    """How long the modules of a path are; a `PathModel` is one."""

    @property
    def num_levels(self) -> int: ...

    def size(self, level: int) -> int:
        """Parameters of the level's modules."""
        ...


class SnapshotStatement(BaseModel):
    """What a peer says when it has a new best snapshot of its path."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    path: int = Field(ge=0)
    loss: float = Field(ge=0, allow_inf_nan=False)
    snapshot: Digest
    """Blob of `snapshot_to_bytes`."""

    @property
    def blob(self) -> str:
        return self.snapshot

    def to_bytes(self) -> bytes:
        return json.dumps(self.model_dump()).encode()


def topic_of(stage: int) -> str:
    """Where the snapshots of a stage are announced."""
    return f"best/{stage}"


def snapshot_file(home: Path, stage: int, path: PathIndex) -> Path:
    """Where a peer or a bootstrap node keeps a path's snapshot."""
    return home / "best" / f"stage-{stage}-path-{path}.safetensors"


def run_of(name: str, fingerprint: str) -> str:
    """How snapshots and checkpoints name their run."""
    return f"{name}:{fingerprint}"


class BestSoFar:
    """When to score a path, and whether the score is its best. A new one for each stage and each path."""

    def __init__(self, every: int, version: int, lowest: float = math.inf) -> None:
        self._every = every
        self._scored = version
        self._ended = False
        self._lowest = lowest

    def is_due(self, version: int, stage_done: bool) -> bool:
        """Whether to score now: each `every` versions of the path's youngest module, and at the stage's end."""
        return version // self._every > self._scored // self._every or (stage_done and not self._ended)

    def note(self, version: int, stage_done: bool, loss: float) -> bool:
        """Whether this loss is the lowest so far. Of equal losses the first stays the best; nan never is."""
        self._scored, self._ended = version, stage_done
        is_best = loss < self._lowest
        self._lowest = loss if is_best else self._lowest
        return is_best


def score_agreed(
    model: PathModel, base: Mapping[ModuleId, ModuleState], pieces: EvaluationSet, prefix_tokens: int
) -> float:
    """Mean cross-entropy of the agreed modules on `pieces`, in nats per token; the model is left as it was.

    What the model has beyond `base` is local progress, which nobody has agreed to.
    """
    now = {module: model.vector(module.level) for module in base}
    try:
        for module, state in base.items():
            model.load(module.level, state.params)
        return loss_on(model, pieces, prefix_tokens)
    finally:
        for module, params in now.items():
            model.load(module.level, params)


def loss_on(model: PathModel, pieces: EvaluationSet, prefix_tokens: int) -> float:
    """Mean cross-entropy of the model on `pieces` after the router's prefix, in nats per token."""
    return sum(evaluate(model.network, pieces, prefix_tokens).values(), Score()).loss


def load_into(model: PathModel, snapshot: Snapshot) -> None:
    """Put a snapshot that fits (`misfit`) into a model."""
    for module, params in snapshot.params.items():
        model.load(module.level, params)


def misfit(snapshot: Snapshot, shape: PathShape, table: PathTable) -> str | None:
    """Why a snapshot cannot be used as the path that it names; None when it can."""
    if not 0 <= snapshot.path < table.num_paths:
        return f"there is no path {snapshot.path}"
    if set(snapshot.params) != set(table.modules_of(snapshot.path)):
        return f"its modules are not those of path {snapshot.path}"
    for module, params in snapshot.params.items():
        if params.shape != (shape.size(module.level),):
            return f"its {module} has {params.numel()} parameters where the model has {shape.size(module.level)}"
        if not bool(torch.isfinite(params).all()):
            return f"its {module} has values that are not finite"
    return None


# ------------------------------------------------------------------------------------------------------ as bytes


def snapshot_to_bytes(snapshot: Snapshot) -> bytes:
    """A safetensors file: a tensor for each module, the numbers as JSON in its metadata, and a digest of all.

    Equal snapshots give equal bytes, so that replicas of a path offer the same blob.
    """
    tensors = {str(module): params.detach().contiguous() for module, params in snapshot.params.items()}
    numbers = {
        "run": snapshot.run,
        "stage": snapshot.stage,
        "path": snapshot.path,
        "loss": snapshot.loss,
        "versions": {str(module): version for module, version in snapshot.versions.items()},
    }
    body = json.dumps(numbers, sort_keys=True)
    # one entry, as safetensors writes several in any order
    return save(tensors, {"snapshot": json.dumps({"format": FORMAT, "digest": digest_of(body, tensors), "body": body})})


class _Numbers(BaseModel):
    """The metadata of a snapshot, checked: it may come from a stranger."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    run: str
    stage: int = Field(ge=0)
    path: int = Field(ge=0)
    loss: float = Field(ge=0, allow_inf_nan=False)
    versions: dict[str, int]


def snapshot_from_bytes(data: bytes, run: str) -> Snapshot:
    """Read a snapshot of a run. Raises ValueError when it is malformed, altered, or of another run."""
    try:
        tensors = load(data)  # checks the header against the length before anything is read
        header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
        envelope = json.loads(header["__metadata__"]["snapshot"])
        version, digest, body = envelope["format"], envelope["digest"], str(envelope["body"])
    except (SafetensorError, KeyError, TypeError, AttributeError, RuntimeError) as error:
        raise ValueError(f"it is not a snapshot ({in_short(error)})") from None
    if version != FORMAT:
        raise ValueError(f"it has format {version}, and this program reads {FORMAT}")
    if any(tensor.dtype != torch.float32 for tensor in tensors.values()):
        raise ValueError("it has values that are not fp32")
    if digest != digest_of(body, tensors):
        raise ValueError("its digest does not match what it holds")
    numbers = _Numbers.model_validate_json(body)  # a ValidationError is a ValueError
    if numbers.run != run:
        raise ValueError(f"it belongs to the run {numbers.run}, not to {run}")
    if set(numbers.versions) != set(tensors):
        raise ValueError("its versions are not those of its modules")
    return Snapshot(
        run=run,
        stage=numbers.stage,
        path=PathIndex(numbers.path),
        loss=numbers.loss,
        versions={ModuleId.parse(module): version for module, version in numbers.versions.items()},
        params={ModuleId.parse(module): params for module, params in tensors.items()},
    )


def load_snapshot(file: Path, run: str) -> Snapshot | None:
    """The snapshot kept in `file`; None when there is none. Raises CheckpointError when it cannot be used."""
    try:
        return snapshot_from_bytes(file.read_bytes(), run)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise CheckpointError(
            f"the snapshot {file} cannot be used: {error}; move it away, training does not need it"
        ) from None
