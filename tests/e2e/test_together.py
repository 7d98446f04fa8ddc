"""One path on two devices, in real processes: one peer to the others, and a helper that is killed costs nothing."""

import json
import os
import signal

import psutil
import pytest

from dipaco_swarm.events.training import Round
from tests.programs import run

from .conftest import Commands, write_run_file

pytestmark = [pytest.mark.swarm, pytest.mark.long, pytest.mark.timeout(400)]


def helper_of(commands: Commands, label: str, *, word: str = "now") -> psutil.Process:
    """The process that helps, once it is at work."""
    commands.until_logged(label, f"2 devices share each step {word}: cpu, cpu", 120)
    children = psutil.Process(commands.running[label].pid).children(recursive=True)
    (helper,) = (child for child in children if "spawn_main" in " ".join(child.cmdline()))
    return helper


def test_two_processes_on_one_path_are_one_peer_and_outlive_each_other(commands: Commands) -> None:
    run_file = write_run_file(commands.folder / "run.toml", min_peers=1, pacing="paced", warmup=10_000)
    address = commands.bootstrap(run_file)
    commands.peer("both", address, 0, "--device", "cpu,cpu")
    helper = helper_of(commands, "both")
    told = run("swarm", ["status", "--run", address, "--json"])
    assert json.loads(told.stdout)["peers"] == 1, told.stdout
    seen = len(commands.events("both"))
    os.kill(helper.pid, signal.SIGKILL)
    commands.until_logged("both", "a helping process ended; cpu trains on alone, nothing is lost")
    commands.until_reported("both", Round, after=seen)
    again = helper_of(commands, "both", word="again")
    assert again.pid != helper.pid
    peer = commands.running["both"]
    peer.kill()
    again.wait(20)  # it ends by itself
    peer.wait(10)
    assert "Traceback" not in commands.log("both"), commands.log("both")
    commands.peer("both", address, 0, "--device", "cpu,cpu")
    last = helper_of(commands, "both")
    commands.running["both"].send_signal(signal.SIGINT)
    assert commands.running["both"].wait(60) == 0, commands.log("both")[-2000:]
    last.wait(20)
    assert "Traceback" not in commands.log("both"), commands.log("both")
