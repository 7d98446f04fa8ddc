import json
import os
import resource
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from dipaco_swarm.algorithm.paths import ModuleId, PathIndex
from dipaco_swarm.algorithm.progress import Part
from dipaco_swarm.algorithm.state import ModuleState
from dipaco_swarm.errors import CheckpointError, HomeError
from dipaco_swarm.training.checkpoint import Checkpoint, given, load, note_given, part_given, salvage, save
from dipaco_swarm.training.inner import InnerState

RUN = "demo:abcdef"
Key = TypeVar("Key")
FIRST, SECOND = ModuleId(0, 3), ModuleId(1, 0)


def checkpoint() -> Checkpoint:
    params = torch.tensor([1.0, 2.0, 3.0])
    return Checkpoint(
        run=RUN,
        stage=2,
        path=PathIndex(37),
        base={
            FIRST: ModuleState(5, params, torch.tensor([0.1, 0.2, 0.3])),
            SECOND: ModuleState.seed(torch.tensor([-1.0])),
        },
        local={FIRST: params, SECOND: torch.tensor([-1.5])},  # a module without progress shares memory with its base
        tokens={FIRST: 0, SECOND: 4096},
        inner=InnerState(
            120,
            {
                "AdamW8bit/w/state1": torch.tensor([[1, 255]], dtype=torch.uint8),
                "AdamW8bit/w/step": torch.tensor(120),
                "AdamW/w/exp_avg": torch.tensor([0.5], dtype=torch.bfloat16),
            },
        ),
        shard_cursor=77,
        residuals={SECOND: torch.tensor([1e-8])},
        given={SECOND: Part(1024, torch.tensor([-1.2]))},
    )


def assert_equal_tensors(ours: Mapping[Key, Tensor], theirs: Mapping[Key, Tensor]) -> None:
    assert set(ours) == set(theirs)
    for key, tensor in ours.items():
        assert tensor.dtype == theirs[key].dtype
        assert torch.equal(tensor, theirs[key])


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "home" / "checkpoint.safetensors"


def test_a_checkpoint_comes_back_as_it_was(file: Path) -> None:
    saved = checkpoint()
    save(file, saved)
    loaded = load(file, RUN)
    assert loaded is not None
    assert (loaded.run, loaded.stage, loaded.path, loaded.shard_cursor) == (RUN, 2, 37, 77)
    assert {module: state.digest for module, state in loaded.base.items()} == {
        module: state.digest for module, state in saved.base.items()
    }
    assert loaded.tokens == saved.tokens
    assert loaded.inner.steps_done == 120
    assert_equal_tensors(loaded.local, saved.local)
    assert_equal_tensors(loaded.residuals, saved.residuals)
    assert_equal_tensors(loaded.inner.tensors, saved.inner.tensors)


def test_without_a_checkpoint_there_is_none(file: Path) -> None:
    assert load(file, RUN) is None


def test_a_new_checkpoint_replaces_the_old_one_and_leaves_no_other_file(file: Path) -> None:
    save(file, checkpoint())
    save(file, replace(checkpoint(), shard_cursor=78))
    loaded = load(file, RUN)
    assert loaded is not None
    assert loaded.shard_cursor == 78
    assert [entry.name for entry in file.parent.iterdir()] == [file.name]


def test_a_loaded_checkpoint_survives_being_overwritten(file: Path) -> None:
    save(file, checkpoint())
    loaded = load(file, RUN)
    assert loaded is not None
    save(file, replace(checkpoint(), local={FIRST: torch.zeros(3), SECOND: torch.zeros(1)}))
    assert loaded.local[FIRST].tolist() == [1.0, 2.0, 3.0]


def test_a_flipped_bit_anywhere_is_found(file: Path) -> None:
    save(file, checkpoint())
    whole = file.read_bytes()
    unnoticed = []
    for place in range(0, len(whole), 7):
        file.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        try:
            load(file, RUN)
        except CheckpointError:
            continue
        unnoticed.append(place)
    assert unnoticed == []


@pytest.mark.parametrize("kept", [0, 5, 200, -1])
def test_a_torn_file_is_refused_with_what_to_do(file: Path, kept: int) -> None:
    save(file, checkpoint())
    file.write_bytes(file.read_bytes()[:kept])
    with pytest.raises(CheckpointError, match=r"checkpoint\.safetensors is damaged.*move it away and start again"):
        load(file, RUN)


def test_whole_modules_of_a_damaged_checkpoint_are_salvaged(file: Path) -> None:
    save(file, checkpoint())
    whole = file.read_bytes()
    kept: set[frozenset[ModuleId]] = set()
    for place in range(0, len(whole), 5):
        file.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        states = salvage(file, RUN)
        for module, state in states.items():
            assert state.digest == checkpoint().base[module].digest
        kept.add(frozenset(states))
    assert {frozenset({FIRST, SECOND}), frozenset({FIRST}), frozenset({SECOND}), frozenset()} == kept
    file.write_bytes(whole)
    assert set(salvage(file, RUN)) == {FIRST, SECOND}
    assert salvage(file, "other:123456") == {}


def test_a_changed_number_is_found(file: Path) -> None:
    save(file, checkpoint())
    with safe_open(file, framework="pt") as opened:
        metadata = opened.metadata()
    numbers = json.loads(metadata["checkpoint"]) | {"shard_cursor": 0}
    save_file(load_file(file), file, metadata | {"checkpoint": json.dumps(numbers, sort_keys=True)})
    with pytest.raises(CheckpointError, match="its digest does not match"):
        load(file, RUN)


def test_a_checkpoint_of_another_run_is_refused_with_both_names(file: Path) -> None:
    save(file, checkpoint())
    with pytest.raises(CheckpointError, match="belongs to the run demo:abcdef, not to other:123456"):
        load(file, "other:123456")


def test_a_safetensors_file_that_is_no_checkpoint_is_refused(file: Path) -> None:
    file.parent.mkdir()
    save_file({"weight": torch.zeros(1)}, file)
    with pytest.raises(CheckpointError, match="another version of dipaco-swarm"):
        load(file, RUN)


def test_a_full_disk_leaves_the_previous_checkpoint_intact(file: Path) -> None:
    save(file, checkpoint())
    large = replace(checkpoint(), local={FIRST: torch.zeros(100_000), SECOND: torch.zeros(1)})
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, limits[1]))  # no file may grow beyond 10 kB
    try:
        with pytest.raises(HomeError, match=f"cannot be written to {file.parent}.*make room"):
            save(file, large)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert load(file, RUN) is not None
    assert [entry.name for entry in file.parent.iterdir()] == [file.name]


def test_a_failing_disk_is_reported_and_leaves_the_previous_checkpoint_intact(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(file, checkpoint())

    def broken_disk(descriptor: int) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", broken_disk)
        with pytest.raises(HomeError, match="Input/output error"):
            save(file, replace(checkpoint(), shard_cursor=78))
    loaded = load(file, RUN)
    assert loaded is not None
    assert loaded.shard_cursor == 77


def test_a_home_that_is_a_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "home").write_text("")
    with pytest.raises(HomeError, match="cannot be written to"):
        save(tmp_path / "home" / "checkpoint.safetensors", checkpoint())
    with pytest.raises(HomeError, match="cannot be opened"):
        load(tmp_path, RUN)


def test_what_was_given_to_others_is_remembered_beside_the_checkpoint(tmp_path: Path) -> None:
    file = tmp_path / "home" / "stage-0-path-1.safetensors"
    assert given(file) == {}
    note_given(file, {FIRST: 5, SECOND: 0}, {FIRST: 640})
    assert given(file) == {FIRST: 5, SECOND: 0}
    note_given(file, {}, {})
    assert given(file) == {}
    for damage in (b"", b"[1]", b'{"L0M3": []}', b'{"module": 1}', b"\xff"):
        (beside,) = file.parent.glob("*.given.json")
        beside.write_bytes(damage)
        assert given(file) == {}


def test_what_others_may_have_is_told_apart_only_where_the_last_note_says_the_same(file: Path) -> None:
    saved = checkpoint()
    save(file, saved)
    loaded = load(file, RUN)
    assert loaded is not None
    assert part_given(file, loaded, SECOND) is None  # nothing was noted
    note_given(file, {FIRST: 5, SECOND: 0}, {SECOND: 1024})
    part = part_given(file, loaded, SECOND)
    assert part is not None
    assert part.tokens == 1024
    assert torch.equal(part.params, torch.tensor([-1.2]))
    assert part_given(file, loaded, FIRST) is None
    note_given(file, {SECOND: 0}, {SECOND: 2048})  # a later round had more of it
    assert part_given(file, loaded, SECOND) is None
    note_given(file, {SECOND: 1}, {SECOND: 1024})  # another version
    assert part_given(file, loaded, SECOND) is None
