"""What breaks on one machine, with real processes: stopped and woken, killed, out of disk."""

import errno
import itertools
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from dipaco_swarm.dashboard.metrics import metrics_file, read_metrics
from dipaco_swarm.events.training import CaughtUp, Round
from dipaco_swarm.events.volunteer import DaemonRestarts, EndedUnsaved, OnlyHere, Recovered, Resumed, Slept, StageBegan
from dipaco_swarm.swarm.libp2p import sockets
from dipaco_swarm.swarm.libp2p.daemon import DAEMON_IDLE_SECONDS
from dipaco_swarm.training import bank, checkpoint

from .conftest import Commands, checkpoint_file, made_with, saved, write_run_file

pytestmark = [pytest.mark.swarm, pytest.mark.timeout(400)]

PATIENCE = 120.0
SAVE_OFTEN = "from dipaco_swarm.peer import keeping; keeping.CHECKPOINT_SECONDS = 1.0"
ROUND = re.compile(r"round \d+: .*L0M0 v(\d+) with")


AT_LEISURE = ("--cpu-share", "40")
"""Peers that are only there for what happens to them leave the cores to the other tests."""
TOGETHER, ALONE = made_with(1, "L0M0"), made_with(0, "L0M0")


def until(commands: Commands, label: str, pattern: str) -> None:
    """Wait for a line in a log."""
    what = f"{label} never said {pattern!r}"
    commands.until(lambda: re.search(pattern, commands.log(label)) is not None, what, PATIENCE, label)


def test_a_peer_that_is_stopped_killed_and_started_again_loses_little(commands: Commands, tmp_path: Path) -> None:
    run_file = write_run_file(tmp_path / "RUN.toml", min_peers=2, pacing="paced", inner_steps=25, warmup=10_000)
    commands.prelude = SAVE_OFTEN
    address = commands.bootstrap(run_file)
    for label in ("other", "one"):
        commands.peer(label, address, "auto", *AT_LEISURE)
    for label in ("other", "one"):
        commands.until_reported(label, Round, where=TOGETHER)

    # stopped while the other goes on: it looks where the group is before it takes a step of its own
    one = commands.running["one"]
    one.send_signal(signal.SIGSTOP)
    try:
        stopped = time.monotonic()
        commands.until_reported("other", Round, where=ALONE, after=len(commands.events("other")))
        time.sleep(max(0.0, 13 - (time.monotonic() - stopped)))
    finally:
        before = len(commands.events("one"))
        one.send_signal(signal.SIGCONT)
    assert commands.until_reported("one", Slept, after=before).seconds > 1
    commands.until_reported("one", CaughtUp, after=before)
    commands.until_reported("one", Round, where=TOGETHER, after=before)
    meanwhile = itertools.takewhile(lambda event: not isinstance(event, CaughtUp), commands.events("one")[before:])
    assert not any(isinstance(event, Round) and ALONE(event) for event in meanwhile)

    # killed, as the kernel does when memory is short: daemon and sockets do not stay
    daemons = psutil.Process(one.pid).children(recursive=True)
    assert [daemon.name() for daemon in daemons] == ["p2pd"]
    names = [argument for argument in daemons[0].cmdline() if argument.startswith("-listen=/unix")]
    socket_file = Path(names[0].removeprefix("-listen=/unix"))
    assert socket_file.exists()
    one.kill()
    one.wait()
    step = saved(commands, "one", address).inner.steps_done
    noted = checkpoint.trained(checkpoint_file(commands, "one"))
    lost = noted - saved(commands, "one", address).trained
    assert not psutil.wait_procs(daemons, timeout=DAEMON_IDLE_SECONDS + 10)[1]
    time.sleep(sockets.YOUNG_SECONDS / 5)

    log = commands.log("one")
    commands.peer("one", address, "auto", *AT_LEISURE)
    commands.until_reported("one", StageBegan, stage=0, path=0, paths=1)
    commands.until_reported("one", Resumed, step=step)
    commands.until_reported("one", Round, where=TOGETHER)
    assert [event.tokens for event in commands.reported("one", EndedUnsaved)] == [lost] * bool(lost)
    assert not socket_file.exists()
    assert not socket_file.with_name(socket_file.name + ".in").exists()
    assert "Traceback" not in log + commands.log("one") + commands.log("other")

    # both leave, one after the other; the last one does so when the bootstrap node has what only it had
    commands.stops_on_ctrl_c("one")
    commands.until_reported("other", Round, where=ALONE, after=len(commands.events("other")))
    commands.stops_on_ctrl_c("other")
    assert not commands.reported("other", OnlyHere)
    commands.stops_on_ctrl_c("bootstrap")
    for module, state in saved(commands, "other", address).base.items():
        kept = bank.load_state(bank.module_file(commands.folder / "bootstrap", 0, module))
        assert kept is not None
        assert kept.digest == state.digest


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 32 MiB; only root can make one."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=32m", "none", str(folder)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("needs a file system of its own, which only root can mount")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(file: Path) -> None:
    """Leave no room on the disk."""
    with file.open("ab", buffering=0) as filler:
        for size in (1 << 20, 1 << 12, 1):
            try:
                while filler.write(b"x" * size):
                    pass
            except OSError as error:
                assert error.errno == errno.ENOSPC  # noqa: PT017 - it has to end so


@pytest.mark.long
def test_training_goes_on_while_the_disk_is_full(commands: Commands, tmp_path: Path, small_disk: Path) -> None:
    run_file = write_run_file(tmp_path / "RUN.toml", min_peers=1, inner_steps=15, warmup=10_000)
    commands.prelude = (
        f"{SAVE_OFTEN}; from dipaco_swarm.operator import publishing, surroundings; "
        "surroundings.WRITE_AGAIN_SECONDS = 1.0; publishing.REPUBLISH_SECONDS = 2.0"
    )
    for home in ("bootstrap", "one", "cache"):
        (small_disk / home).mkdir()
        (commands.folder / home).symlink_to(small_disk / home)
    address = commands.bootstrap(run_file)
    commands.peer("one", address, 0, *AT_LEISURE)
    commands.until_reported("one", Round, round=4)

    fill(small_disk / "filler")
    line = r"the disk of \S+ is full: make room there for "  # in the log: the events are on the full disk as well
    until(commands, "one", line + "the checkpoint; training goes on\n")
    until(commands, "bootstrap", line + "a module; the run goes on\n")
    old = saved(commands, "one", address)
    at = [int(found) for found in ROUND.findall(commands.log("one"))][-1]
    until(commands, "one", rf"L0M0 v{at + 10} with")
    assert saved(commands, "one", address).inner.steps_done == old.inner.steps_done  # the old one, whole
    assert commands.log("one").count("the checkpoint; training") == 1
    assert len(re.findall(line, commands.log("bootstrap"))) == 1
    assert commands.log("bootstrap").count("the history cannot be written") <= 1  # samples of it come less often
    assert not list((small_disk / "one").rglob("*.tmp"))

    # who has nothing to begin with cannot go on: one line, exit code 2, and what to do
    newcomer = commands.peer("newcomer", address, 0, "--cache", small_disk / "cache" / "of its own")
    assert newcomer.wait(PATIENCE) == 2
    ended = commands.log("newcomer").splitlines()
    assert re.fullmatch(r"error: the disk of \S.* is full: make room there for the shard of path 0", ended[-1])

    # and when there is room again
    (small_disk / "filler").unlink()
    commands.until_reported("one", Recovered, what="checkpoint")
    commands.until_reported("bootstrap", Recovered, what="disk")
    commands.stops_on_ctrl_c("one")
    assert saved(commands, "one", address).base.keys()
    assert min(state.version for state in saved(commands, "one", address).base.values()) > at
    commands.stops_on_ctrl_c("bootstrap")
    for module, state in saved(commands, "one", address).base.items():
        kept = bank.load_state(bank.module_file(commands.folder / "bootstrap", 0, module))
        assert kept is not None
        assert kept.digest == state.digest
    for label in ("one", "bootstrap", "newcomer"):
        assert "Traceback" not in commands.log(label)
    assert read_metrics(metrics_file(commands.folder / "one"))
    assert os.path.ismount(small_disk)


def test_a_daemon_that_ends_under_a_program_is_started_again(commands: Commands, tmp_path: Path) -> None:
    run_file = write_run_file(tmp_path / "RUN.toml", min_peers=2, pacing="paced", inner_steps=25, warmup=10_000)
    address = commands.bootstrap(run_file)
    for label in ("one", "other"):
        commands.peer(label, address, 0, *AT_LEISURE)
    for label in ("bootstrap", "one"):
        commands.until_reported("one", Round, where=TOGETHER, after=len(commands.events("one")))
        before = {name: len(commands.events(name)) for name in ("bootstrap", "one")}
        (daemon,) = psutil.Process(commands.running[label].pid).children()
        daemon.kill()
        commands.until_reported(label, DaemonRestarts, after=before[label])
        if label == "one":
            commands.until_reported("one", Resumed, after=before["one"])
        commands.until_reported("one", Round, where=TOGETHER, after=before["one"])
    assert (commands.folder / "bootstrap" / "address.txt").read_text().strip() == address
    commands.stops_on_ctrl_c("one", "other", "bootstrap")
    for label in ("one", "other", "bootstrap"):
        assert "Traceback" not in commands.log(label)
        assert "Error" not in commands.log(label)
