"""Files appear whole or not at all; what nobody can make again is on the disk when it is said to be."""

import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from dipaco_swarm import files
from dipaco_swarm.algorithm.paths import ModuleId, PathIndex
from dipaco_swarm.algorithm.state import ModuleState
from dipaco_swarm.errors import HomeError, UsageError
from dipaco_swarm.files import alone_in, locked, new_folder, remove, replace_whole, set_aside, write_whole
from dipaco_swarm.operator.home import OperatorHome, load_operator_key
from dipaco_swarm.swarm.libp2p.address_book import AddressBook
from dipaco_swarm.swarm.libp2p.identity import load_identity
from dipaco_swarm.swarm.states.blobs import BlobStore
from dipaco_swarm.training import checkpoint as checkpoints
from dipaco_swarm.training.checkpoint import Checkpoint
from dipaco_swarm.training.inner import InnerState

PATIENCE = 60.0
MODULE = ModuleId(0, 0)
STATE = ModuleState(1, torch.ones(4), torch.zeros(4))
CHECKPOINT = Checkpoint(
    "a run", 0, PathIndex(0), {MODULE: STATE}, {MODULE: STATE.params}, {MODULE: 5}, InnerState(0, {}), 0
)


class Disk:
    """What the disk was asked for, in this order: ("flush" or "name", path)."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[tuple[str, Path]] = []
        fsync, rename = os.fsync, os.replace

        def flushed(descriptor: int) -> None:
            self.asked.append(("flush", Path(os.readlink(f"/proc/self/fd/{descriptor}"))))
            fsync(descriptor)

        def renamed(old: Path, new: Path) -> None:
            rename(old, new)
            self.asked.append(("name", Path(new)))

        monkeypatch.setattr(os, "fsync", flushed)
        monkeypatch.setattr(os, "replace", renamed)

    def durable(self, file: Path) -> bool:
        """Whether a power cut right now would leave `file` with all that was written to it."""
        named = self.asked.index(("name", file))
        content = ("flush", file.with_name(file.name + ".tmp")) in self.asked[:named]
        return content and ("flush", file.parent) in self.asked[named:]


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


# ------------------------------------------------------------------------------------------------------------ whole


SOMEBODY = "12D3KooWQYhTNQdmr3ArTeUHRYzFg94BKyTkoWBDWez9kSCVe2Xo"


def test_a_writer_that_fails_in_the_middle_leaves_the_old_file(tmp_path: Path) -> None:
    file = tmp_path / "file"
    write_whole(file, b"old", durable=True)

    def half(unfinished: Path) -> None:
        unfinished.write_bytes(b"ne")
        raise OSError(28, "No space left on device")

    with pytest.raises(HomeError, match=r"is full: make room there for the thing$"):
        write_whole(file, half, durable=True, what="the thing")
    assert file.read_bytes() == b"old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


def test_a_writer_that_is_interrupted_leaves_the_old_file_too(tmp_path: Path) -> None:
    file = tmp_path / "file"
    write_whole(file, b"old", durable=False)

    def interrupted(unfinished: Path) -> None:
        unfinished.write_bytes(b"ne")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_whole(file, interrupted, durable=False)
    assert file.read_bytes() == b"old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


def test_a_file_that_cannot_be_flushed_does_not_replace_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "file"
    write_whole(file, b"old", durable=True)

    def broken(descriptor: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", broken)
    with pytest.raises(HomeError, match=r"file cannot be written to .*Input/output error"):
        write_whole(file, b"new", durable=True)
    assert file.read_bytes() == b"old"


def test_folders_are_made_for_a_file_and_the_name_of_each_is_flushed(tmp_path: Path, disk: Disk) -> None:
    file = tmp_path / "a" / "b" / "file"
    write_whole(file, b"new", durable=True)
    assert disk.durable(file)
    assert {("flush", tmp_path), ("flush", tmp_path / "a")} <= set(disk.asked)


def test_a_private_file_is_private_even_beside_what_a_killed_program_left(tmp_path: Path) -> None:
    (tmp_path / "key.tmp").write_bytes(b"open to all")
    (tmp_path / "key.tmp").chmod(0o666)
    modes = []

    def secret(unfinished: Path) -> None:
        modes.append(stat.S_IMODE(unfinished.stat().st_mode))
        unfinished.write_bytes(b"secret")

    replace_whole(tmp_path / "key", secret, durable=True, private=True)
    assert [*modes, stat.S_IMODE((tmp_path / "key").stat().st_mode)] == [0o600, 0o600]


def test_a_folder_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    def half() -> None:
        with new_folder(tmp_path / "out") as unfinished:
            (unfinished / "half").write_bytes(b"x")
            raise OSError("full")

    with pytest.raises(OSError, match="full"):
        half()
    assert not list(tmp_path.iterdir())
    with new_folder(tmp_path / "out") as unfinished:
        (unfinished / "all").write_bytes(b"x")
        assert not (tmp_path / "out").exists()
    assert [entry.name for entry in (tmp_path / "out").iterdir()] == ["all"]
    assert [entry.name for entry in tmp_path.iterdir()] == ["out"]


# ---------------------------------------------------------------------------------------------------------- durable

DURABLE: dict[str, Callable[[Path], object]] = {
    "operator.key": load_operator_key,
    "identity.key": load_identity,
    "manifest.json": lambda home: OperatorHome(home).keep_manifest(b"signed"),
    "modules/stage-0-L0M0.safetensors": lambda home: OperatorHome(home).keep_state(0, MODULE, STATE),
    "path.safetensors": lambda home: checkpoints.save(home / "path.safetensors", CHECKPOINT),
    "path.given.json": lambda home: checkpoints.note_given(home / "path.safetensors", {MODULE: 3}, {}),
    "blobs/2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881": lambda home: BlobStore(
        home / "blobs"
    ).put(b"x"),
}
ORDINARY: dict[str, Callable[[Path], object]] = {
    "address.txt": lambda home: OperatorHome(home).keep_address("dipaco://"),
    "acquaintances.txt": lambda home: AddressBook(home).remember([f"/ip4/127.0.0.1/tcp/1/p2p/{SOMEBODY}"]),
    "2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881": lambda home: BlobStore(home).put(
        b"x", durable=False
    ),
}


@pytest.mark.parametrize("name", DURABLE)
def test_what_nobody_can_make_again_outlives_a_power_cut(name: str, tmp_path: Path, disk: Disk) -> None:
    DURABLE[name](tmp_path)
    assert disk.durable(tmp_path / name)


@pytest.mark.parametrize("name", ORDINARY)
def test_what_can_be_had_again_does_not_wait_for_the_disk(name: str, tmp_path: Path, disk: Disk) -> None:
    ORDINARY[name](tmp_path)
    assert disk.asked == [("name", tmp_path / name)]


def test_a_manifest_comes_after_the_files_that_it_names(tmp_path: Path, disk: Disk) -> None:
    digest = BlobStore(tmp_path / "blobs").put(b"tokenizer")
    assert disk.durable(tmp_path / "blobs" / digest)
    OperatorHome(tmp_path).keep_manifest(b"signed")
    names = [path for what, path in disk.asked if what == "name"]
    assert names == [tmp_path / "blobs" / digest, tmp_path / "manifest.json"]


# ------------------------------------------------------------------------------------------------- aside and removed


def test_a_damaged_file_is_set_aside_and_what_is_gone_is_gone(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"damaged")
    assert set_aside(file).read_bytes() == b"damaged"
    assert not file.exists()
    assert remove(tmp_path / "file.damaged")
    assert not remove(tmp_path / "file.damaged")
    with pytest.raises(HomeError, match=r"file\.damaged cannot be written to .*No such file"):
        set_aside(file)
    with pytest.raises(HomeError, match=r"cannot be removed: .*check who owns"):
        remove(tmp_path)


# ------------------------------------------------------------------------------------------------------------- locks

HOLDER = """
import sys
from pathlib import Path
from dipaco_swarm.files import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""
CROWD = """
import os, sys
from pathlib import Path
from dipaco_swarm.files import locked
folder = Path(sys.argv[1])
for _ in range(30):
    with locked(folder):
        count = folder / "count"
        was = int(count.read_text()) if count.exists() else 0
        os.sched_yield()
        count.write_text(str(was + 1))
"""


def python(script: str, *arguments: object) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", script, *map(str, arguments)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def test_two_processes_are_in_a_locked_folder_one_after_the_other(tmp_path: Path) -> None:
    crowd = [python(CROWD, tmp_path) for _ in range(2)]
    assert [process.wait(PATIENCE) for process in crowd] == [0, 0]
    assert (tmp_path / "count").read_text() == "60"
    for process in crowd:
        process.communicate()


def test_a_second_program_in_a_home_folder_is_refused_and_one_that_died_is_in_nobody_s_way(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    first = python(HOLDER, home)
    assert first.stdout is not None
    assert first.stdout.readline() == b"held\n"
    with pytest.raises(UsageError, match=r"runs in .*home already; .*--home"), alone_in(home):
        pass
    first.kill()
    first.communicate()
    with alone_in(home), alone_in(tmp_path / "another"):
        pass
    (tmp_path / "file").write_text("")
    with pytest.raises(HomeError, match="cannot be used"), alone_in(tmp_path / "file"):
        pass


def test_whoever_finds_a_folder_locked_is_told_and_comes_in_when_the_other_one_dies(tmp_path: Path) -> None:
    other = python(HOLDER, tmp_path)
    assert other.stdout is not None
    assert other.stdout.readline() == b"held\n"

    def not_now() -> None:
        raise UserWarning("somebody is in there")

    with pytest.raises(UserWarning, match="somebody"), locked(tmp_path, on_busy=not_now):
        pass
    with locked(tmp_path, on_busy=other.kill):
        assert other.wait(PATIENCE) != 0
    other.communicate()
    with locked(tmp_path, on_busy=not_now):
        assert (tmp_path / files.LOCK).exists()


def test_a_secret_that_others_may_read_is_not_used(tmp_path: Path) -> None:
    load_operator_key(tmp_path)
    load_identity(tmp_path)
    for name, load in (("operator.key", load_operator_key), ("identity.key", load_identity)):
        assert (tmp_path / name).stat().st_mode & 0o777 == 0o600
        for mode in (0o644, 0o620, 0o606):
            (tmp_path / name).chmod(mode)
            with pytest.raises(HomeError, match=rf"{name} is secret, .*mode {mode:04o}.* chmod 600"):
                load(tmp_path)
        (tmp_path / name).chmod(0o600)
        load(tmp_path)
