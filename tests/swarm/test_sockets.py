"""Sockets are ours alone; those that killed programs left go; at one where nobody answers nobody waits for ever."""

import os
import signal
import socket
import stat
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from dipaco_swarm.swarm.libp2p import opening, sockets
from dipaco_swarm.swarm.libp2p.node import Node
from dipaco_swarm.swarm.libp2p.sockets import EMPTY_SECONDS, folder_of_sockets, sweep
from dipaco_swarm.swarm.networked import NetworkedSwarm
from dipaco_swarm.swarm.timing import Timing
from tests.hub import until

from .conftest import MakeNetworked
from .test_weeks import node_of


def test_only_dead_sockets_of_ours_are_removed(tmp_path: Path) -> None:
    alive, dead, young, strange = (
        tmp_path / name for name in ("dipaco-a.sock", "dipaco-b.sock.in", "dipaco-c.sock", "other.sock")
    )
    listening = []
    for file in (alive, dead, young, strange):
        server = socket.socket(socket.AF_UNIX)
        server.bind(str(file))
        server.listen(1)
        listening.append(server)
        if file != young:
            os.utime(file, (0, 0))
    (tmp_path / "dipaco-d.sock").write_text("a file that is no socket")
    os.utime(tmp_path / "dipaco-d.sock", (0, 0))
    for server in listening[1:]:
        server.close()
    try:
        assert sweep(tmp_path) == 1
        assert alive.exists()
        assert not dead.exists()
        assert young.exists()
        assert strange.exists()
        assert (tmp_path / "dipaco-d.sock").exists()
        probes = [socket.socket(socket.AF_UNIX) for _ in range(8)]  # one who listens and is busy is not dead
        for probe in probes:
            probe.setblocking(False)
            probe.connect_ex(str(alive))
        assert sweep(tmp_path) == 0
        for probe in probes:
            probe.close()
    finally:
        listening[0].close()


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder for sockets, whose names may not be long."""
    with TemporaryDirectory(prefix="d-", dir="/tmp") as folder:
        monkeypatch.setattr(sockets, "FOLDER", Path(folder))
        yield Path(folder)


def test_what_goes_while_another_program_looks_ends_nobody(short: Path) -> None:
    def come_and_go() -> None:
        for _ in range(200):
            with folder_of_sockets() as folder:
                (folder / "daemon.sock").touch()

    with ThreadPoolExecutor(3) as threads:
        coming = [threads.submit(come_and_go) for _ in range(3)]
        while not all(each.done() for each in coming):
            assert sweep(short) == 0
        for each in coming:
            each.result()


def test_what_a_killed_program_left_in_its_folder_goes_and_the_folder_after_it(short: Path) -> None:
    with folder_of_sockets() as alive, folder_of_sockets() as dead, folder_of_sockets() as starting:
        listening = []
        for folder in (alive, dead):
            server = socket.socket(socket.AF_UNIX)
            server.bind(str(folder / "daemon.sock"))
            server.listen(1)
            os.utime(folder / "daemon.sock", (0, 0))
            listening.append(server)
        listening[1].close()
        long_ago = time.time() - 2 * EMPTY_SECONDS
        for folder in (alive, dead):
            os.utime(folder, (long_ago, long_ago))
        assert sweep(short) == 1
        assert (alive / "daemon.sock").exists()
        assert not dead.exists()
        assert starting.exists()
        listening[0].close()
    assert not list(short.iterdir())


@pytest.mark.swarm
def test_nobody_else_of_this_machine_comes_to_the_sockets_of_a_node(make_libp2p_swarms: MakeNetworked) -> None:
    before = os.umask(0)
    try:
        (swarm,) = make_libp2p_swarms(1)
    finally:
        os.umask(before)
    folder = Path(node_of(swarm).daemon.socket).parent
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    names = sorted(file.name for file in folder.iterdir())
    assert names == ["daemon.sock", "daemon.sock.in"]


def watched(make: MakeNetworked, monkeypatch: pytest.MonkeyPatch, seconds: float) -> tuple[NetworkedSwarm, Node]:
    """A swarm that asks its daemon five times a second, and waits so long for an answer."""
    monkeypatch.setattr(Timing, "in_touch", 0.2)
    monkeypatch.setattr(opening, "ANSWER_SECONDS", seconds)
    (swarm,) = make(1)
    return swarm, node_of(swarm)


@pytest.mark.swarm
def test_a_daemon_that_hangs_is_lost_as_one_that_was_killed(
    make_libp2p_swarms: MakeNetworked, monkeypatch: pytest.MonkeyPatch
) -> None:
    swarm, node = watched(make_libp2p_swarms, monkeypatch, 1.5)
    before = swarm._portal.run(node.addresses())
    assert before
    time.sleep(2.0)
    assert not swarm.lost
    os.kill(node.daemon.process.pid, signal.SIGSTOP)
    began = time.monotonic()
    assert swarm._portal.run(node.addresses()) == before  # what it said last, and in time
    assert time.monotonic() - began < 10
    until(lambda: swarm.lost)


@pytest.mark.swarm
def test_a_daemon_that_stood_still_for_a_while_is_left_alone(
    make_libp2p_swarms: MakeNetworked, monkeypatch: pytest.MonkeyPatch
) -> None:
    swarm, node = watched(make_libp2p_swarms, monkeypatch, 2.0)
    for _ in range(2):
        os.kill(node.daemon.process.pid, signal.SIGSTOP)
        time.sleep(6.0)
        os.kill(node.daemon.process.pid, signal.SIGCONT)
        time.sleep(2.0)
    assert not swarm.lost
    assert swarm._portal.run(node.addresses())
