"""Files of a home folder that are damaged, elsewhere, or cannot be written: one line each, which names the file."""

import errno
import logging
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from dipaco_swarm import files
from dipaco_swarm.errors import HomeError
from dipaco_swarm.operator.home import OperatorHome, load_operator_key, load_standby_key
from dipaco_swarm.peer.life import Life
from dipaco_swarm.swarm.bans import Bans
from dipaco_swarm.swarm.libp2p.identity import load_identity

DIGEST = "ab" * 32
SECRETS: dict[str, Callable[[Path], object]] = {
    "operator.key": load_operator_key,
    "standby.key": load_standby_key,
    "identity.key": lambda home: load_identity(home).key,
}
READERS: dict[str, Callable[[OperatorHome], object]] = {
    "manifest": lambda home: home.manifest("a" * 32),
    "manifest_of_own": lambda home: home.manifest_of_own(),
    "signed_manifest": lambda home: home.signed_manifest(),
}


@pytest.mark.parametrize("name", SECRETS)
def test_a_key_on_a_disk_that_is_not_mounted_is_not_made_anew(name: str, tmp_path: Path) -> None:
    home, disk = tmp_path / "home", tmp_path / "disk"
    SECRETS[name](home)
    before = (home / name).read_bytes()
    disk.mkdir()
    (home / name).rename(disk / name)
    (home / name).symlink_to(disk / name)
    SECRETS[name](home)
    disk.rename(tmp_path / "away")
    with pytest.raises(HomeError, match=rf"{name} is a link to .*disk/{name}, where nothing is; mount"):
        SECRETS[name](home)
    assert (home / name).is_symlink()
    (tmp_path / "away").rename(disk)
    SECRETS[name](home)
    assert (home / name).read_bytes() == before


def test_a_run_whose_key_is_gone_gets_no_other_one(tmp_path: Path) -> None:
    load_operator_key(tmp_path)
    OperatorHome(tmp_path).keep_manifest(b"signed")
    load_operator_key(tmp_path)
    (tmp_path / "operator.key").unlink()
    with pytest.raises(HomeError, match=rf"{tmp_path} has a run, and no operator.key, .*restore"):
        load_operator_key(tmp_path)
    assert not (tmp_path / "operator.key").exists()
    load_standby_key(tmp_path)  # whoever stands by has manifests, and no key of the operator's


@pytest.mark.parametrize("how", READERS)
def test_a_manifest_that_cannot_be_read_is_a_line(how: str, tmp_path: Path) -> None:
    assert READERS[how](OperatorHome(tmp_path)) is None
    (tmp_path / "manifest.json").mkdir()
    with pytest.raises(HomeError, match=r"manifest\.json cannot be read: .*owns"):
        READERS[how](OperatorHome(tmp_path))


def test_invitations_that_cannot_be_read_are_a_line_and_not_none(tmp_path: Path) -> None:
    home, file = OperatorHome(tmp_path), tmp_path / "invitations.txt"
    assert home.invitations() == []
    home.keep_invitations([DIGEST, DIGEST[::-1]])
    assert home.invitations() == [DIGEST, DIGEST[::-1]]
    whole = file.read_bytes()
    for damaged in (b"\xff\xfe" + whole, whole[:-5], b"nothing"):
        file.write_bytes(damaged)
        with pytest.raises(HomeError, match=r"invitations\.txt is damaged; restore it"):
            home.invitations()
    file.unlink()
    file.mkdir()
    with pytest.raises(HomeError, match=r"invitations\.txt cannot be read"):
        home.invitations()


def test_a_full_disk_is_a_line_about_invitations_and_leaves_the_old_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = OperatorHome(tmp_path)
    home.keep_invitations([DIGEST])
    assert (tmp_path / "invitations.txt").stat().st_mode & 0o777 == 0o600

    def full(path: Path) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(files, "_flush", full)
    with pytest.raises(HomeError, match=r"is full: make room there for invitations\.txt"):
        home.keep_invitations([])
    assert home.invitations() == [DIGEST]


def test_a_share_that_is_brackets_without_end_is_made_anew(tmp_path: Path) -> None:
    (tmp_path / "share.json").write_bytes(b"[" * 200_000)
    assert Life(tmp_path).share(0, {}) is None


@pytest.mark.parametrize("damaged", [b"", b"\x91", b"\xc1" * 64, b"\x91\xc4\x01x"])
def test_bans_that_cannot_be_read_are_set_aside_and_that_is_said(
    damaged: bytes, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "bans-a.msgpack"
    file.write_bytes(damaged)
    with caplog.at_level(logging.WARNING):
        bans = Bans(file)
        bans.open(lambda proof: True)
    assert bans.names() == ()
    assert "bans-a.msgpack cannot be used" in caplog.text
    assert (tmp_path / "bans-a.msgpack.damaged").read_bytes() == damaged
    assert not file.exists()
    caplog.clear()
    Bans(file).open(lambda proof: True)
    assert not caplog.text  # of a new home there is none, which is nothing to say
