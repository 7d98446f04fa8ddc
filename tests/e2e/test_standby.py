"""A second bootstrap node, with real processes: the first is killed for good, the second takes over."""

import signal
import time
from pathlib import Path

import psutil
import pytest

from dipaco_swarm.events.operator import Promoted, RunFinished, StageOpened, StandbyAppointed, StandingBy
from dipaco_swarm.events.training import Round
from dipaco_swarm.events.volunteer import StageBegan
from dipaco_swarm.operator.home import OperatorHome

from .conftest import LOOPBACK, Commands, write_run_file

pytestmark = [pytest.mark.swarm, pytest.mark.timeout(300)]


def kill_for_good(commands: Commands, label: str) -> None:
    """SIGKILL to a program and its daemon."""
    process = psutil.Process(commands.running[label].pid)
    daemons = process.children(recursive=True)
    commands.running[label].send_signal(signal.SIGKILL)
    for daemon in daemons:
        daemon.kill()
    psutil.wait_procs(daemons, timeout=5)
    commands.running[label].wait(10)


def stand_by(commands: Commands, address: str) -> str:
    """Start a standby; what it says of itself."""
    commands.start(
        "standby", "bootstrap", "standby", "--run", address, "--home", commands.folder / "standby",
        "--listen", LOOPBACK, "--screen", "plain",
    )  # fmt: skip
    return commands.until_reported("standby", StandingBy).name


def do(commands: Commands, label: str, *arguments: str | Path) -> None:
    """A command of the operator's, to its end."""
    assert commands.start(label, "bootstrap", *arguments).wait(60) == 0, commands.log(label)


def test_a_standby_takes_over_and_newcomers_join_by_the_old_address(commands: Commands) -> None:
    run_file = write_run_file(commands.folder / "run.toml", min_peers=1, pacing="paced", warmup=3, rounds=2)
    text = run_file.read_text().replace("rounds = 3\n", "", 1)  # the warm-up ends when somebody says so
    run_file.write_text(text)
    home, standby = commands.folder / "bootstrap", commands.folder / "standby"
    # rounds of half a second: sixty would be made until all have heard of the last one
    commands.prelude = "from dipaco_swarm.operator import readiness; readiness.HEARD_FACTOR = 0.1"
    name = stand_by(commands, commands.bootstrap(run_file))
    do(commands, "appoint", "appoint", run_file, name, "--home", home)
    commands.until_reported("bootstrap", StandbyAppointed)
    commands.until_reported("standby", StandingBy, appointed=True)
    address = (home / "address.txt").read_text().strip()
    assert name.partition("@")[2] in address

    commands.peer("ada", address, 0)
    commands.peer("ben", address, 3)
    commands.until_reported("ada", Round, round=1)
    kill_for_good(commands, "bootstrap")
    before = len(commands.events("ada"))
    commands.until_reported("ada", Round, after=before)  # nobody waits for it

    do(commands, "promote", "promote", "--home", standby)
    commands.until_reported("standby", Promoted)
    commands.peer("late", address, 1)
    commands.until_reported("late", StageBegan, stage=0)
    do(commands, "advance", "advance", run_file, "--home", standby)
    commands.until_reported("standby", StageOpened, stage=1)
    for peer in ("ada", "ben", "late"):
        commands.until_reported(peer, StageBegan, stage=1)
    commands.until_reported("standby", RunFinished)

    # the first node comes back from its old folder: it must not open stages of its own
    commands.start(
        "again", "bootstrap", "serve", run_file, "--home", home, "--listen", LOOPBACK, "--screen", "plain"
    )  # fmt: skip
    commands.until(lambda: "another node leads the run now" in commands.log("again"), "it leads", 90, "again")
    fingerprint = address.split(":")[2].partition("@")[0]
    deadline = time.monotonic() + 30
    while (kept := OperatorHome(home).manifest(fingerprint)) is None or not kept.finished:
        assert time.monotonic() < deadline
        time.sleep(0.2)
    assert kept.revision > 1000
