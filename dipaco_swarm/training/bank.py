"""Module states as files, and a path put together from them."""

from collections.abc import Callable, Mapping
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor
from transformers import PreTrainedModel

from dipaco_swarm.algorithm.paths import ModuleId, PathIndex, PathTable
from dipaco_swarm.algorithm.state import ModuleState
from dipaco_swarm.errors import DamagedError
from dipaco_swarm.files import write_whole
from dipaco_swarm.training.modules import PathModel


def tensors_writer(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> Callable[[Path], None]:
    """Who writes a safetensors file for `files.write_whole`; raises OSError when the disk is full."""

    def write(file: Path) -> None:
        try:
            save_file(dict(tensors), file, dict(metadata))
        except SafetensorError as error:
            raise OSError(str(error)) from error

    return write


def save_state(file: Path, state: ModuleState) -> None:
    """Keep a module's state, perhaps the only copy that there is. Raises HomeError."""
    metadata = {"version": str(state.version), "work": str(state.work), "digest": state.digest}
    tensors = {"params": state.params, "momentum": state.momentum}
    write_whole(file, tensors_writer(tensors, metadata), durable=True, what="a module")


def load_state(file: Path) -> ModuleState | None:
    """A kept state, verified; None when there is none. Raises DamagedError when the file is not as it was written."""
    if not file.exists():
        return None
    try:
        with safe_open(file, framework="pt") as opened:
            metadata = opened.metadata() or {}
            state = ModuleState(
                int(metadata.get("version", "-1")),
                opened.get_tensor("params"),
                opened.get_tensor("momentum"),
                int(metadata.get("work", "0")),
            )
    except (OSError, SafetensorError, ValueError) as error:
        raise DamagedError(f"{file} cannot be read ({error}); move it away and it is fetched again") from None
    if state.version < 0 or state.digest != metadata.get("digest"):
        raise DamagedError(
            f"{file} is damaged or was kept by another version of dipaco-swarm: its digest does not fit; move it away "
            "and it is fetched again"
        )
    return state


def module_file(home: Path, stage: int, module: ModuleId) -> Path:
    """Where a keeper has a module."""
    return home / "modules" / f"stage-{stage}-{module}.safetensors"


def load_path(
    model: PathModel, table: PathTable, path: PathIndex, states: Mapping[ModuleId, ModuleState]
) -> PreTrainedModel:
    """Put a path's modules into a model; returns its network."""
    for module in table.modules_of(path):
        model.load(module.level, states[module].params)
    return model.network
