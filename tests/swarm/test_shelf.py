"""What is on the disk instead of in memory is the same, leaves nothing behind, and is in nobody's memory."""

import gc
import re
import sys
from pathlib import Path

import pytest
import torch

from dipaco_swarm.algorithm.state import ModuleState
from dipaco_swarm.machine.memory import give_back_freed
from dipaco_swarm.outer_step import follow_averages, outer_step
from dipaco_swarm.swarm.states.averages import pack, shelved, unpack
from dipaco_swarm.swarm.states.shelf import Shelf
from tests.averages import OUTER, PARAMETERS, average_of, chain_from, state_of

BASE = state_of(1)
linux = pytest.mark.skipif(sys.platform != "linux", reason="/proc, and files with room that is promised")


@pytest.fixture
def shelf(tmp_path: Path) -> Shelf:
    return Shelf(tmp_path / "shelf", small=0)


def own_memory() -> int:
    """Bytes of this process that are in no file, without what it has freed."""
    gc.collect()
    give_back_freed()
    found = re.search(r"RssAnon:\s+(\d+)", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) << 10


@linux
@pytest.mark.parametrize("codec", ["fp32", "bf16", "int8", "int4"])
def test_an_outer_step_on_the_disk_gives_the_same_bytes(shelf: Shelf, codec: str) -> None:
    average = average_of(BASE, 9, codec)
    here, there = outer_step(BASE, average, OUTER), outer_step(BASE, average, OUTER, shelf)
    assert (here.mapped, there.mapped) == (False, True)
    assert there.digest == here.digest
    assert torch.equal(there.params, here.params)


@linux
def test_a_state_that_rests_comes_back(shelf: Shelf) -> None:
    state = shelf.copy(BASE)
    assert state.mapped
    made = outer_step(state, average_of(BASE, 9), OUTER, shelf)
    for resting in (state, made):
        shelf.rest(resting)
        now = ModuleState(resting.version, resting.params, resting.momentum, resting.work)
        assert now.digest == resting.digest
    shelf.rest(BASE)  # in memory: nothing happens
    assert state.digest == BASE.digest == ModuleState(BASE.version, BASE.params, BASE.momentum, BASE.work).digest


@linux
def test_zeros_are_written_without_memory(shelf: Shelf) -> None:
    before = own_memory()
    numbers = shelf.zeros(1 << 23)
    assert numbers.sum() == 0
    numbers.fill_(1.5)
    assert own_memory() - before < numbers.nbytes // 2
    assert numbers.sum() == 1.5 * len(numbers)


@linux
def test_nothing_has_a_name_on_the_disk(shelf: Shelf, tmp_path: Path) -> None:
    held = shelf.copy(BASE), shelf.put([b"1", b"23"])
    assert list((tmp_path / "shelf").iterdir()) == []
    assert bytes(held[1]) == b"123"


def test_a_shelved_average_is_the_same_blob(shelf: Shelf) -> None:
    average, state = chain_from(BASE, 1)[0]
    blob, there = pack(average, state.digest), shelved(average, shelf)
    assert pack(there, state.digest).packed == blob.packed
    assert bytes(pack(there, state.digest).data) == blob.data
    assert unpack("peer", pack(there, state.digest).data, PARAMETERS).base == average.base
    after = follow_averages(OUTER, BASE, [there], shelf)
    assert after is not None
    assert after.digest == state.digest


def test_tensors_of_all_kinds_are_copied(shelf: Shelf) -> None:
    for tensor in (torch.tensor(7), torch.randn(3, 5), torch.randn(4).to(torch.bfloat16), torch.arange(6).view(2, 3).T):
        copy = shelf.copy_of(tensor)
        assert (copy.dtype, copy.shape) == (tensor.dtype, tensor.shape)
        assert torch.equal(copy, tensor)
    tensor = torch.ones(9)
    copy = shelf.copy_of(tensor)
    tensor.zero_()
    assert torch.equal(copy, torch.ones(9))


def test_what_the_disk_does_not_take_is_in_memory(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "shelf").write_bytes(b"a file where the folder should be")
    state = outer_step(BASE, average_of(BASE, 9), OUTER, Shelf(tmp_path / "shelf", small=0))
    assert not state.mapped
    assert state.digest == outer_step(BASE, average_of(BASE, 9), OUTER).digest
    assert "in memory, as they cannot be on the disk" in caplog.text


def test_without_a_disk_and_where_it_is_little_it_is_in_memory(tmp_path: Path) -> None:
    assert not Shelf(None, small=0).state(1, PARAMETERS, 0).mapped
    assert not Shelf(tmp_path, small=4 * PARAMETERS).state(1, PARAMETERS, 0).mapped


@linux
def test_memory_does_not_grow_with_what_is_on_the_shelf(shelf: Shelf) -> None:
    base, average = shelf.copy(BASE), average_of(BASE, 9)
    outer_step(base, average, OUTER, shelf)  # what the first one takes stays
    before = own_memory()
    held = [(outer_step(base, average, OUTER, shelf), shelved(average, shelf)) for _ in range(60)]
    there = sum(state.num_bytes for state, _ in held)
    assert there > 70e6
    assert own_memory() - before < there / 2  # what else a process does while it counts takes some, too
