"""Coming, staying, leaving: real processes, stopped by Ctrl+C, killed, started again."""

import json
import re
import signal
import socket
import time
from functools import partial
from pathlib import Path

import psutil
import pytest
from safetensors.torch import load_file
from typer.testing import CliRunner

from dipaco_swarm.algorithm.paths import ModuleId
from dipaco_swarm.cli import swarm as swarm_cli
from dipaco_swarm.events.operator import NodeDown, NodeResumed, StageOpened
from dipaco_swarm.events.training import Fetched, Round, Steps
from dipaco_swarm.events.volunteer import Left, ReadingDocuments, Resumed, ShardReady, StageBegan, Waiting

from .conftest import Commands, made_with, saved, write_run_file

pytestmark = [pytest.mark.swarm, pytest.mark.timeout(580)]

PATIENCE = 150.0
"""For what takes some seconds on an idle machine."""
TOKENS_PER_STEP = 4 * 64
WITH_ONE_OTHER, WITH_TWO_OTHERS, ALONE = (made_with(others, "L0M0") for others in (1, 2, 0))


def version_in(over: Round) -> int:
    return over.modules["L0M0"].version


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
    run_file = write_run_file(tmp_path / "RUN.toml", min_peers=3, documents=5000)
    address = commands.bootstrap(run_file)
    commands.peer("reader", address, "auto")
    commands.until_reported("reader", ReadingDocuments, documents=2048)
    commands.stops_on_ctrl_c("reader")
    assert not commands.reported("reader", ShardReady)
    assert commands.events("reader")[-1] == Left()

    # the same command goes on with the shard where it was: what was counted is not read again
    commands.peer("reader", address, "auto")
    commands.until_reported("reader", Waiting, reason="peers", peers=2)
    assert not commands.reported("reader", ReadingDocuments, documents=2048)
    assert commands.reported("reader", ShardReady)
    commands.stops_on_ctrl_c("reader", "bootstrap")
    assert commands.events("bootstrap")[-1] == NodeDown()


def test_the_rest_goes_on_when_members_leave_while_training_and_in_a_round(commands: Commands, tmp_path: Path) -> None:
    run_file = write_run_file(tmp_path / "RUN.toml", min_peers=3, inner_steps=40, warmup=10_000)
    address = commands.bootstrap(run_file)
    for label in ("staying", "waiting", "training"):
        commands.peer(label, address, 0)
    for label in ("staying", "waiting", "training"):
        commands.until_reported(label, Round, where=WITH_TWO_OTHERS)

    # one leaves while it trains
    commands.until(lambda: is_computing(commands, "training"), "it never trained", PATIENCE, "training")
    commands.stops_on_ctrl_c("training")
    for label in ("staying", "waiting"):
        commands.until_reported(label, Round, where=WITH_ONE_OTHER)

    # one leaves while it waits in a round, for somebody who is alive and does not come
    commands.running["staying"].send_signal(signal.SIGSTOP)
    try:
        asleep = 0
        while asleep < 20:
            asleep = 0 if is_computing(commands, "waiting") else asleep + 1
            time.sleep(0.1)
        rounds = len(commands.reported("waiting", Round))
        commands.stops_on_ctrl_c("waiting")
        assert len(commands.reported("waiting", Round)) == rounds, "it was not in a round"
    finally:
        commands.running["staying"].send_signal(signal.SIGCONT)
    before = len(commands.events("staying"))
    commands.until_reported("staying", Round, where=ALONE, after=before)

    # it comes back with the same command, behind the others, and takes part in the next round
    left_at = saved(commands, "waiting", address)
    commands.peer("waiting", address, 0)
    commands.until_reported("waiting", Resumed, step=left_at.inner.steps_done)
    commands.until_reported("waiting", Round, where=WITH_ONE_OTHER)
    commands.until_reported("staying", Round, where=WITH_ONE_OTHER, after=before)
    commands.stops_on_ctrl_c("waiting", "staying", "bootstrap")


@pytest.mark.long
def test_a_lone_peer_keeps_its_progress_and_a_slower_one_joins_it(commands: Commands, tmp_path: Path) -> None:
    steps = 250
    blocking = write_run_file(
        tmp_path / "RUN.toml",
        min_peers=1,
        pacing="paced",
        overlap=False,
        inner_steps=steps,
        warmup=10_000,
        codec="int8",
    )
    address = commands.bootstrap(blocking)

    # Ctrl+C in the middle of the first round, and the same command again: the round has exactly its steps
    commands.peer("fast", address, 0)
    commands.until_reported("fast", Steps)
    commands.stops_on_ctrl_c("fast")
    half = saved(commands, "fast", address)
    assert 0 < half.inner.steps_done < steps
    assert set(half.tokens.values()) == {half.inner.steps_done * TOKENS_PER_STEP}
    assert all((half.local[m] != half.base[m].params).any() for m in half.base)
    assert commands.peer("fast", address, 0, "--rounds", "1").wait(PATIENCE) == 0
    assert commands.reported("fast", Resumed) == [Resumed(half.inner.steps_done)]
    assert [version_in(over) for over in commands.reported("fast", Round)] == [1]
    whole = saved(commands, "fast", address)
    assert whole.inner.steps_done == whole.shard_cursor == steps
    assert {state.version for state in whole.base.values()} == {1}

    # a slower one joins late, fetches the modules, and both make rounds together, each with what it has
    commands.peer("fast", address, 0)
    commands.until_reported("fast", Round, where=ALONE)
    slow = commands.peer("slow", address, 0, "--micro-batch", "1")
    psutil.Process(slow.pid).nice(5)
    assert commands.until_reported("slow", Fetched, module="L0M0").version >= 2
    commands.until_reported("slow", Fetched, module="L1M0")
    together = [version_in(commands.until_reported(label, Round, where=WITH_ONE_OTHER)) for label in ("slow", "fast")]
    for label in ("slow", "fast"):

        def goes_on(label: str = label) -> bool:
            rounds = [over for over in commands.reported(label, Round) if WITH_ONE_OTHER(over)]
            return any(version_in(over) >= max(together) + 2 for over in rounds)

        commands.until(goes_on, f"{label} made no more rounds with the other", PATIENCE, label)
    seen = status(address)
    assert seen["peers"] == 2
    assert seen["digests_agree"] is True
    commands.stops_on_ctrl_c("slow")
    commands.until_reported("fast", Round, where=ALONE, after=len(commands.events("fast")))
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
        commands.until_reported(label, Round, round=1)

    # the bootstrap node is killed: everybody trains to the end of the stage
    commands.running["bootstrap"].send_signal(signal.SIGKILL)
    commands.running["bootstrap"].wait()
    assert not commands.reported("bootstrap", StageOpened)
    for label in peers:
        commands.until_reported(label, Waiting, reason="stage")
        assert any(made_with(3, "L0M0")(over) and version_in(over) == 12 for over in commands.reported(label, Round))

    # started again it goes on with the run, under the address that everybody knows, and opens the next stage
    assert commands.bootstrap(run_file, *listen) == address
    commands.until_reported("bootstrap", NodeResumed, stage=0)
    commands.until_reported("bootstrap", StageOpened, stage=1, paths=4)
    for label in peers:
        commands.until_reported(label, Round, stage=1)
    everywhere = {0, 1, 2, 3}  # who chose the same path at the same time sees that later, and one of them moves
    commands.until(lambda: {_path_of(commands, p) for p in peers} == everywhere, "not all paths", PATIENCE, peers[0])
    for label in peers:
        commands.until_reported(label, Round, where=with_somebody, after=_last_entry(commands, label))

    # a fifth takes a path, fetches its modules from the others, and takes part in the next round
    commands.peer("late", address, "auto")
    for level in (0, 1):
        commands.until_reported("late", Fetched, where=partial(_is_of_level, level))
    commands.until_reported("late", Round, where=with_somebody, round=1)

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
    commands.stops_on_ctrl_c("bootstrap")  # whoever asks it from now on hears no older word of it
    assert commands.bootstrap(run_file, *listen) == address
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
    fetched, _, written = commands.log("generate").partition("\n")
    assert re.fullmatch(r"no peer answers for path \d now; this machine fetches it and writes itself", fetched)
    assert written == at_home["generate"]
    ours, theirs = (load_file(commands.folder / where / "model.safetensors") for where in ("run", "home"))
    assert ours.keys() == theirs.keys()
    assert all(ours[name].equal(theirs[name]) for name in ours)


def _path_of(commands: Commands, label: str) -> int:
    """The path that a peer took last."""
    return commands.reported(label, StageBegan, stage=1)[-1].path


def _last_entry(commands: Commands, label: str) -> int:
    """Events before a peer entered its path of stage 1."""
    began = [number for number, event in enumerate(commands.events(label)) if isinstance(event, StageBegan)]
    return began[-1]


def _is_of_level(level: int, event: Fetched) -> bool:
    return ModuleId.parse(event.module).level == level


def with_somebody(over: Round) -> bool:
    """Whether a module of it was made together with others."""
    return any(made.peers > 1 for made in over.modules.values())


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port
