"""Module states as files: what is kept comes back, and what cannot be trusted is refused."""

import hashlib
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from dipaco_swarm.algorithm.state import ModuleState, vector_bytes
from dipaco_swarm.errors import CheckpointError
from dipaco_swarm.training.bank import load_state, save_state

STATE = ModuleState(3, torch.arange(1000, dtype=torch.float32), torch.ones(1000))


def test_a_state_that_was_kept_comes_back(tmp_path: Path) -> None:
    file = tmp_path / "modules" / "state.safetensors"
    assert load_state(file) is None
    save_state(file, STATE)
    loaded = load_state(file)
    assert loaded is not None
    assert loaded.version == 3
    assert loaded.digest == STATE.digest
    assert torch.equal(loaded.params, STATE.params)


def test_a_state_with_a_digest_of_the_old_kind_is_refused_with_advice(tmp_path: Path) -> None:
    old = hashlib.sha256(b"dipaco module state 1" + (3).to_bytes(8, "little"))
    for vector in (STATE.params, STATE.momentum):
        old.update(vector_bytes(vector))
    file = tmp_path / "state.safetensors"
    metadata = {"version": "3", "digest": old.hexdigest()}
    save_file({"params": STATE.params, "momentum": STATE.momentum}, file, metadata)
    with pytest.raises(CheckpointError, match=r"state\.safetensors .*another version.*move it away"):
        load_state(file)
