"""Coming, staying, leaving: real processes, stopped by Ctrl+C, killed, started again."""

import json
import re
import signal
import socket
import time
from pathlib import Path

import psutil
import pytest
from safetensors.torch import load_file
from typer.testing import CliRunner

from dipaco_swarm.algorithm.paths import ModuleId
from dipaco_swarm.cli import swarm as swarm_cli
from dipaco_swarm.run.address import RunAddress
from dipaco_swarm.training import checkpoint
from dipaco_swarm.training.checkpoint import Checkpoint

from .conftest import Commands, write_run_file

pytestmark = [pytest.mark.swarm, pytest.mark.timeout(580)]

PATIENCE = 150.0
"""For what takes some seconds on an idle machine."""
TOKENS_PER_STEP = 4 * 64
WITH_ONE_OTHER = re.compile(r"round \d+: .*L0M0 v(\d+) with 1 other\b")
WITH_TWO_OTHERS = re.compile(r"round \d+: .*L0M0 v(\d+) with 2 others\b")
ALONE = re.compile(r"round \d+: .*L0M0 v(\d+) with 0 others\b")


def until(commands: Commands, label: str, pattern: re.Pattern[str] | str, *, after: int = 0) -> re.Match[str]:
    """Wait for a line in a log, past its first `after` characters."""
    compiled = re.compile(pattern) if isinstance(pattern, str) else pattern
    what = f"{label} never said {compiled.pattern!r}"
    commands.until(lambda: compiled.search(commands.log(label), after) is not None, what, PATIENCE, label)
    found = compiled.search(commands.log(label), after)
    assert found is not None
    return found


def saved(commands: Commands, label: str, address: str) -> Checkpoint:
    run = RunAddress.parse(address)
    file = commands.folder / label / "checkpoints" / "stage-0-path-0.safetensors"
    found = checkpoint.load(file, f"{run.name}:{run.fingerprint}")
    assert found is not None
    return found


def in_process(*arguments: str | Path) -> str:
    """What `dipaco-swarm` prints, without starting Python, torch and hivemind again."""
    ended = CliRunner().invoke(swarm_cli.app, [str(argument) for argument in arguments])
    assert ended.exit_code == 0, ended.output
    return ended.stdout


def status(address: str) -> dict[str, object]:
    seen = json.loads(in_process("status", "--run", address, "--json"))
    assert isinstance(seen, dict)
    return seen


def is_computing(commands: Commands, label: str) -> bool:
    """Whether the training thread runs or would like to; it sleeps while it waits for others."""
    return bool(psutil.Process(commands.running[label].pid).status() == psutil.STATUS_RUNNING)


# ---------------------------------------------------------------------------------------------------- leaving, resuming


def test_ctrl_c_ends_a_peer_that_builds_its_shard_and_one_that_waits_for_peers(
    commands: Commands, tmp_path: Path
) -> None:
    run_file = write_run_file(tmp_path / "RUN.toml", min_peers=3, documents=20_000)
    address = commands.bootstrap(run_file)
    commands.peer("reader", address, "auto")
    until(commands, "reader", "reading documents: 2,048")
    commands.stops_on_ctrl_c("reader")
    assert "shard ready" not in commands.log("reader")
    assert "left the swarm" in commands.log("reader")

    # the same command goes on with the shard where it was: what was counted is not read again
    commands.peer("reader", address, "auto")
    until(commands, "reader", "waiting for 2 more peers to start")
    assert "reading documents: 2,048," not in commands.log("reader")
    assert "shard ready" in commands.log("reader")
    commands.stops_on_ctrl_c("reader", "bootstrap")
    assert "the same command goes on from here" in commands.log("bootstrap")


def test_the_rest_goes_on_when_members_leave_while_training_and_in_a_round(commands: Commands, tmp_path: Path) -> None:
    run_file = write_run_file(tmp_path / "RUN.toml", min_peers=3, inner_steps=40, warmup=10_000)
    address = commands.bootstrap(run_file)
    for label in ("staying", "waiting", "training"):
        commands.peer(label, address, 0)
    for label in ("staying", "waiting", "training"):
        until(commands, label, WITH_TWO_OTHERS)

    # one leaves while it trains
    commands.until(lambda: is_computing(commands, "training"), "it never trained", PATIENCE, "training")
    commands.stops_on_ctrl_c("training")
    for label in ("staying", "waiting"):
        until(commands, label, WITH_ONE_OTHER)

    # one leaves while it waits in a round, for somebody who is alive and does not come
    commands.running["staying"].send_signal(signal.SIGSTOP)
    try:
        asleep = 0
        while asleep < 20:
            asleep = 0 if is_computing(commands, "waiting") else asleep + 1
            time.sleep(0.1)
        rounds = commands.log("waiting").count("round ")
        commands.stops_on_ctrl_c("waiting")
        assert commands.log("waiting").count("round ") == rounds, "it was not in a round"
    finally:
        commands.running["staying"].send_signal(signal.SIGCONT)
    before = len(commands.log("staying"))
    until(commands, "staying", ALONE, after=before)

    # it comes back with the same command, behind the others, and takes part in the next round
    left_at = saved(commands, "waiting", address)
    commands.peer("waiting", address, 0)
    until(commands, "waiting", f"going on from the checkpoint at step {left_at.inner.steps_done}\n")
    until(commands, "waiting", WITH_ONE_OTHER)
    until(commands, "staying", WITH_ONE_OTHER, after=before)
    commands.stops_on_ctrl_c("waiting", "staying", "bootstrap")


def test_a_lone_peer_keeps_its_progress_and_a_slower_one_joins_it(commands: Commands, tmp_path: Path) -> None:
    steps = 250
    run_file = write_run_file(
        tmp_path / "RUN.toml", min_peers=1, pacing="paced", inner_steps=steps, warmup=10_000, codec="int8"
    )
    address = commands.bootstrap(run_file)

    # Ctrl+C in the middle of the first round, and the same command again: the round has exactly its steps
    commands.peer("fast", address, 0)
    until(commands, "fast", "path 0: training, loss")
    commands.stops_on_ctrl_c("fast")
    half = saved(commands, "fast", address)
    assert 0 < half.inner.steps_done < steps
    assert set(half.tokens.values()) == {half.inner.steps_done * TOKENS_PER_STEP}
    assert all((half.local[m] != half.base[m].params).any() for m in half.base)
    assert commands.peer("fast", address, 0, "--rounds", "1").wait(PATIENCE) == 0
    assert f"going on from the checkpoint at step {half.inner.steps_done}\n" in commands.log("fast")
    assert ALONE.findall(commands.log("fast")) == ["1"]
    whole = saved(commands, "fast", address)
    assert whole.inner.steps_done == whole.shard_cursor == steps
    assert {state.version for state in whole.base.values()} == {1}

    # a slower one joins late, fetches the modules, and both make rounds together, each with what it has
    commands.peer("fast", address, 0)
    until(commands, "fast", ALONE)
    slow = commands.peer("slow", address, 0, "--micro-batch", "1")
    psutil.Process(slow.pid).nice(5)
    fetched = until(commands, "slow", r"fetched L0M0 at version (\d+)\n")
    assert int(fetched[1]) >= 2
    until(commands, "slow", "fetched L1M0 at version")
    together = [int(until(commands, label, WITH_ONE_OTHER)[1]) for label in ("slow", "fast")]
    for label in ("slow", "fast"):

        def goes_on(label: str = label) -> bool:
            return any(int(version) >= max(together) + 2 for version in WITH_ONE_OTHER.findall(commands.log(label)))

        commands.until(goes_on, f"{label} made no more rounds with the other", PATIENCE, label)
    seen = status(address)
    assert seen["peers"] == 2
    assert seen["digests_agree"] is True
    commands.stops_on_ctrl_c("slow")
    until(commands, "fast", ALONE, after=len(commands.log("fast")))
    commands.stops_on_ctrl_c("fast")

    # both ended on the bytes of one version or another of the same history
    states = saved(commands, "slow", address), saved(commands, "fast", address)
    assert states[0].base[ModuleId(0, 0)].version < states[1].base[ModuleId(0, 0)].version
    commands.stops_on_ctrl_c("bootstrap")


# --------------------------------------------------------------------------------------- paths, stages, the bootstrap


def test_four_peers_find_four_paths_though_the_bootstrap_node_is_killed(commands: Commands, tmp_path: Path) -> None:
    run_file = write_run_file(tmp_path / "RUN.toml", min_peers=4, inner_steps=10, warmup=12, rounds=10_000)
    listen = "--listen", f"/ip4/127.0.0.1/tcp/{_free_port()}"
    address = commands.bootstrap(run_file, *listen)
    peers = [f"peer-{i}" for i in range(4)]
    for label in peers:
        commands.peer(label, address, "auto")
    for label in peers:
        until(commands, label, "round 1:")

    # the bootstrap node is killed: everybody trains to the end of the stage
    commands.running["bootstrap"].send_signal(signal.SIGKILL)
    commands.running["bootstrap"].wait()
    assert "stage 1 is open" not in commands.log("bootstrap")
    for label in peers:
        until(commands, label, "this stage is done; waiting for the next one")
        assert "L0M0 v12 with 3 others" in commands.log(label)

    # started again it goes on with the run, under the address that everybody knows, and opens the next stage
    assert commands.bootstrap(run_file, *listen) == address
    until(commands, "bootstrap", "going on with stage 0")
    until(commands, "bootstrap", "stage 1 is open: 4 paths")
    for label in peers:
        until(commands, label, r"stage 1: path \d of 4(.*\n)+.*round \d+: ")
    everywhere = {0, 1, 2, 3}  # who chose the same path at the same time sees that later, and one of them moves
    commands.until(lambda: {_path_of(commands, p) for p in peers} == everywhere, "not all paths", PATIENCE, peers[0])
    for label in peers:
        until(commands, label, r"round \d+: .*with 1 other", after=commands.log(label).rindex("stage 1: path"))

    # a fifth takes a path, fetches its modules from the others, and takes part in the next round
    commands.peer("late", address, "auto")
    until(commands, "late", r"fetched L0M\d at version")
    until(commands, "late", r"fetched L1M\d at version")
    until(commands, "late", r"round 1: .*with [12] others?")

    # who trains what, for programs and for people
    seen = status(address)
    assert seen["stage"] == 1
    assert (seen["peers"], seen["staffed"], seen["keepers"]) == (5, 4, 1)
    assert isinstance(seen["paths"], list)
    assert sorted(path["peers"] for path in seen["paths"]) == [1, 1, 1, 2]
    assert seen["paths"][_path_of(commands, "late")]["peers"] == 2
    text = in_process("status", "--run", address)
    for words in ("stage 1 (of 2)", "5 training", "4 of 4 staffed"):
        assert words in text
    commands.stops_on_ctrl_c("late", *peers)
    _check_that_the_swarm_and_a_home_are_used_alike(commands, address)
    commands.stops_on_ctrl_c("bootstrap")


def _check_that_the_swarm_and_a_home_are_used_alike(commands: Commands, address: str) -> None:
    jobs = {
        "eval": ["eval"],
        "generate": ["generate", "def main(", "--tokens", "20"],
        "export": ["export", "--path", "1", "--out"],
    }
    for label, job in jobs.items():
        out = [commands.folder / "run"] if label == "export" else []
        commands.start(label, "swarm", *job, *out, "--run", address)
    home = "--home", commands.folder / "bootstrap"
    at_home = {label: in_process(*jobs[label], *home) for label in ("eval", "generate")}
    in_process(*jobs["export"], commands.folder / "home", *home)
    for label in jobs:
        assert commands.running[label].wait(PATIENCE) == 0, commands.log(label)
    assert "perplexity" in at_home["eval"]
    assert commands.log("eval") == at_home["eval"]
    assert len(at_home["generate"]) > len("def main(")
    assert commands.log("generate") == at_home["generate"]
    ours, theirs = (load_file(commands.folder / where / "model.safetensors") for where in ("run", "home"))
    assert ours.keys() == theirs.keys()
    assert all(ours[name].equal(theirs[name]) for name in ours)


def _path_of(commands: Commands, label: str) -> int:
    """The path that a peer took last."""
    return int(re.findall(r"stage 1: path (\d) of 4", commands.log(label))[-1])


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port
