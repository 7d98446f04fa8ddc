"""Module states as files, and a path put together from them."""

import os
from collections.abc import Mapping
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from transformers import PreTrainedModel

from dipaco_swarm.algorithm.paths import ModuleId, PathIndex, PathTable
from dipaco_swarm.algorithm.state import ModuleState
from dipaco_swarm.errors import DamagedError, cannot_write
from dipaco_swarm.training.modules import PathModel


def write_whole(file: Path, data: bytes) -> None:
    """Write a small file that appears whole or not at all. Raises HomeError."""
    unfinished = file.with_name(file.name + ".tmp")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        try:
            unfinished.write_bytes(data)
            os.replace(unfinished, file)
        finally:
            unfinished.unlink(missing_ok=True)  # half a file would keep a full disk full
    except OSError as error:
        raise cannot_write(file.name, file.parent, error) from None


def save_state(file: Path, state: ModuleState) -> None:
    """Keep a module's state; the file appears whole. Raises HomeError."""
    unfinished = file.with_name(file.name + ".tmp")
    metadata = {"version": str(state.version), "digest": state.digest}
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        try:
            save_file({"params": state.params, "momentum": state.momentum}, unfinished, metadata)
            os.replace(unfinished, file)
        finally:
            unfinished.unlink(missing_ok=True)
    except (OSError, SafetensorError) as error:
        raise cannot_write("a module", file.parent, error) from None


def load_state(file: Path) -> ModuleState | None:
    """A kept state, verified; None when there is none. Raises DamagedError when the file is not as it was written."""
    if not file.exists():
        return None
    try:
        with safe_open(file, framework="pt") as opened:
            metadata = opened.metadata() or {}
            state = ModuleState(
                int(metadata.get("version", "-1")), opened.get_tensor("params"), opened.get_tensor("momentum")
            )
    except (OSError, SafetensorError, ValueError) as error:
        raise DamagedError(f"{file} cannot be read ({error}); move it away and it is fetched again") from None
    if state.version < 0 or state.digest != metadata.get("digest"):
        raise DamagedError(
            f"{file} is damaged or was kept by another version of dipaco-swarm: its digest does not fit; move it away "
            "and it is fetched again"
        )
    return state


def set_aside(file: Path) -> Path:
    """Rename a damaged file, so that it is in nobody's way and still there to look at. Raises HomeError."""
    aside = file.with_name(file.name + ".damaged")
    try:
        os.replace(file, aside)
    except OSError as error:
        raise cannot_write(aside.name, aside.parent, error) from None
    return aside


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
