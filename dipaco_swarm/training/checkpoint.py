"""What a peer needs to go on after a restart, as one safetensors file.

The file appears whole (written beside its place, flushed to the disk, renamed) and carries a digest of everything in
it, so that a checkpoint is read back exactly as it was written or not at all. Tensors, by name:

    base/L0M1/params, base/L0M1/momentum    the last agreed state of each module
    local/L0M1                              its current parameters, after inner training since that state
    residual/L0M1                           error feedback: what the codec has left unsent
    given/L0M1                              its parameters when they were given to a round whose end is not known
    inner/...                               moments of the inner optimizer

Numbers and names are JSON in the header's metadata.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from dipaco_swarm.algorithm.paths import ModuleId, PathIndex
from dipaco_swarm.algorithm.progress import Part
from dipaco_swarm.algorithm.state import ModuleState, vector_bytes
from dipaco_swarm.errors import CheckpointError, DamagedError, HomeError
from dipaco_swarm.files import write_in_place, write_whole
from dipaco_swarm.training.bank import tensors_writer
from dipaco_swarm.training.inner import InnerState

FORMAT = 4


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """The whole state of a peer that trains a path. All tensors are on the CPU."""

    run: str
    """Which run this belongs to: its name and the operator's fingerprint."""
    stage: int
    path: PathIndex
    base: Mapping[ModuleId, ModuleState]
    """The last agreed state of each module of the path."""
    local: Mapping[ModuleId, Tensor]
    """The parameters of each module now, fp32 (parameters,); the difference to base is the local progress."""
    tokens: Mapping[ModuleId, int]
    """Tokens trained since each module's base."""
    inner: InnerState
    shard_cursor: int
    """Batches of the path's shard that were consumed."""
    trained: int = 0
    """Tokens that this peer has trained on the path, in all its lives."""
    residuals: Mapping[ModuleId, Tensor] = field(default_factory=dict)
    """Error feedback: what the codec has left unsent of a module's outer gradients, fp32 (parameters,).

    Of modules where it belongs to the version in `base`; none with an exact codec.
    """
    given: Mapping[ModuleId, Part] = field(default_factory=dict)
    """What others may have of our progress since `base`: a round is under way, or its end was not heard."""


def save(file: Path, checkpoint: Checkpoint) -> None:
    """Replace the checkpoint at `file`, making its folder if need be.

    Raises HomeError when it cannot be written; the checkpoint that was there is then still there.
    """
    tensors = _tensors(checkpoint)
    body = json.dumps(_numbers(checkpoint), sort_keys=True)
    metadata = {"format": str(FORMAT), "checkpoint": body, "digest": digest_of(body, tensors)}
    write_whole(file, tensors_writer(tensors, metadata), durable=True, what="the checkpoint")


def load(file: Path, run: str) -> Checkpoint | None:
    """The checkpoint at `file`; None when there is none.

    Raises DamagedError when it is torn or altered, CheckpointError when it was written by a newer program or belongs to
    another run than `run`; HomeError when the file cannot be opened.
    """
    if not file.exists():
        return None
    metadata, tensors = _read(file)
    if metadata.get("format") != str(FORMAT):
        raise CheckpointError(
            f"{file} has format {metadata.get('format')} and this program reads {FORMAT}; it was written by another "
            "version of dipaco-swarm. Use that version, or move the file away to start from the swarm's state"
        )
    body = metadata.get("checkpoint", "")
    if metadata.get("digest") != digest_of(body, tensors):
        raise DamagedError(_damaged(file, "its digest does not match what it holds"))
    numbers = json.loads(body)
    if numbers["run"] != run:
        raise CheckpointError(
            f"{file} belongs to the run {numbers['run']}, not to {run}; use another --home for each run, or move the "
            "file away"
        )
    return _assemble(numbers, tensors)


def salvage(file: Path, run: str) -> dict[ModuleId, ModuleState]:
    """The agreed states that are whole in a damaged checkpoint of this run; it may have the only copy of a module."""
    try:
        metadata, tensors = _read(file)
        numbers = json.loads(metadata["checkpoint"])
        if numbers["run"] != run:
            return {}
        states = {ModuleId.parse(module): _base(module, numbers, tensors) for module in numbers["versions"]}
        return {module: state for module, state in states.items() if state.digest == numbers["digests"][str(module)]}
    except (CheckpointError, KeyError, ValueError, TypeError):
        return {}


def note_given(file: Path, versions: Mapping[ModuleId, int], tokens: Mapping[ModuleId, int]) -> None:
    """Note, beside the checkpoint at `file`, the versions from which others have received our progress.

    `tokens`: how much of it, where that is known.

    The checkpoint is usually older than that. So the progress that it holds of such a module may be in the group's
    average already, and must not be brought again (docs/decisions/0004-what-was-given-is-not-brought-again.md). Raises
    HomeError.
    """
    said = json.dumps({str(module): [version, tokens.get(module)] for module, version in versions.items()})
    write_whole(_given_beside(file), said.encode(), durable=True)


def given(file: Path) -> dict[ModuleId, int]:
    """The versions that `note_given` wrote last; none where they cannot be read, which at worst counts twice."""
    return {module: version for module, (version, _) in _given(file).items()}


def part_given(file: Path, checkpoint: Checkpoint, module: ModuleId) -> Part | None:
    """What others may have of the progress in the checkpoint at `file`; None where it may be all, or nothing of it.

    A checkpoint may be older than the last round that was begun: then it does not have that one's part.
    """
    part, (version, tokens) = checkpoint.given.get(module), _given(file).get(module, (-1, None))
    known = part is not None and part.tokens == tokens and checkpoint.base[module].version == version
    return part if known else None


def _given(file: Path) -> dict[ModuleId, tuple[int, int | None]]:
    try:
        said = json.loads(_given_beside(file).read_bytes())
        return {ModuleId.parse(module): (int(version), tokens) for module, (version, tokens) in said.items()}
    except (OSError, ValueError, AttributeError, TypeError, RecursionError):
        return {}


def note_trained(file: Path, tokens: int) -> None:
    """Note, beside the checkpoint at `file`, how many tokens this peer has trained on the path in all its lives.

    After every step: a peer that is killed leaves the number right, and knows after a restart what it has lost. Raises
    HomeError.
    """
    write_in_place(_trained_beside(file), f"{tokens:20}\n".encode())


def trained(file: Path) -> int:
    """What `note_trained` wrote last; 0 where it cannot be read. After a power cut it may be some seconds old."""
    try:
        return int(_trained_beside(file).read_bytes())
    except (OSError, ValueError):
        return 0


def all_trained(home: Path) -> int:
    """Tokens that the peer of this home has trained on all its paths, in all its lives."""
    return sum(trained(file) for file in home.glob("checkpoints/*.trained"))


def file_of(home: Path, stage: int, path: PathIndex) -> Path:
    """Where a peer with this home keeps its checkpoint of a path."""
    return home / "checkpoints" / f"stage-{stage}-path-{path}.safetensors"


def _trained_beside(file: Path) -> Path:
    return file.with_suffix(".trained")


def _given_beside(file: Path) -> Path:
    return file.with_suffix(".given.json")


# ------------------------------------------------------------------------------------------------- values <-> tensors


def _tensors(checkpoint: Checkpoint) -> dict[str, Tensor]:
    """Every tensor under its name; each with memory of its own, as safetensors asks."""
    named = {f"base/{module}/params": state.params for module, state in checkpoint.base.items()}
    named |= {f"base/{module}/momentum": state.momentum for module, state in checkpoint.base.items()}
    named |= {f"local/{module}": tensor for module, tensor in checkpoint.local.items()}
    named |= {f"residual/{module}": tensor for module, tensor in checkpoint.residuals.items()}
    named |= {f"given/{module}": part.params for module, part in checkpoint.given.items()}
    named |= {f"inner/{name}": tensor for name, tensor in checkpoint.inner.tensors.items()}
    seen: set[int] = set()
    for name, tensor in named.items():
        memory = tensor.untyped_storage().data_ptr()
        named[name] = tensor.detach().clone() if memory in seen else tensor.detach().contiguous()
        seen.add(memory)
    return named


def _numbers(checkpoint: Checkpoint) -> dict[str, Any]:
    return {
        "run": checkpoint.run,
        "stage": checkpoint.stage,
        "path": checkpoint.path,
        "versions": {str(module): state.version for module, state in checkpoint.base.items()},
        "work": {str(module): state.work for module, state in checkpoint.base.items()},
        "digests": {str(module): state.digest for module, state in checkpoint.base.items()},
        "tokens": {str(module): tokens for module, tokens in checkpoint.tokens.items()},
        "inner_steps": checkpoint.inner.steps_done,
        "shard_cursor": checkpoint.shard_cursor,
        "trained": checkpoint.trained,
        "given": {str(module): part.tokens for module, part in checkpoint.given.items()},
    }


def _assemble(numbers: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Checkpoint:
    def under(folder: str) -> Iterator[tuple[str, Tensor]]:
        return ((name.removeprefix(folder), tensors[name]) for name in tensors if name.startswith(folder))

    return Checkpoint(
        run=numbers["run"],
        stage=numbers["stage"],
        path=PathIndex(numbers["path"]),
        base={ModuleId.parse(module): _base(module, numbers, tensors) for module in numbers["versions"]},
        local={ModuleId.parse(name): tensor for name, tensor in under("local/")},
        tokens={ModuleId.parse(name): tokens for name, tokens in numbers["tokens"].items()},
        inner=InnerState(numbers["inner_steps"], dict(under("inner/"))),
        shard_cursor=numbers["shard_cursor"],
        trained=numbers["trained"],
        residuals={ModuleId.parse(name): tensor for name, tensor in under("residual/")},
        given={ModuleId.parse(name): Part(numbers["given"][name], tensor) for name, tensor in under("given/")},
    )


def _base(module: str, numbers: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> ModuleState:
    params, momentum = tensors[f"base/{module}/params"], tensors[f"base/{module}/momentum"]
    return ModuleState(numbers["versions"][module], params, momentum, numbers["work"][module])


# --------------------------------------------------------------------------------------------------- bytes and the disk


def digest_of(body: str, tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 over the metadata and every tensor's name, type, shape and bytes."""
    digest = hashlib.sha256(body.encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(f"\n{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        digest.update(vector_bytes(tensor.reshape(-1)))
    return digest.hexdigest()


def _read(file: Path) -> tuple[dict[str, str], dict[str, Tensor]]:
    try:
        with safe_open(file, framework="pt") as opened:
            return opened.metadata() or {}, {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise DamagedError(_damaged(file, str(error))) from error
    except OSError as error:
        raise HomeError(f"the checkpoint {file} cannot be opened: {error}; check who owns the folder") from error


def _damaged(file: Path, reason: str) -> str:
    return (
        f"the checkpoint {file} is damaged ({reason}); move it away and start again: the modules come from the swarm, "
        "only the progress since the last outer round is lost"
    )
