"""A whole run in one process: turns, the command, and what it leaves behind."""

import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dipaco_swarm import simulate
from dipaco_swarm.client import exporting
from dipaco_swarm.client import visits as use
from dipaco_swarm.errors import UsageError
from dipaco_swarm.machine.stopping import Stopping
from dipaco_swarm.simulate import PausesInTurns, Turns, run_simulation
from tests import programs
from tests.e2e.conftest import write_run_file


def test_no_more_peers_compute_at_once_than_there_are_turns() -> None:
    turns, lock = Turns(2), threading.Lock()
    computing, most = 0, 0

    def peer() -> None:
        nonlocal computing, most
        with turns.taken():
            with lock:
                computing += 1
                most = max(most, computing)
            time.sleep(0.02)
            with lock:
                computing -= 1

    with ThreadPoolExecutor(6) as pool:
        for done in [pool.submit(peer) for _ in range(6)]:
            done.result(timeout=10)
    assert most == 2


def test_a_peer_that_sleeps_lets_another_have_its_turn() -> None:
    turns, stop = Turns(1), Stopping()
    computed = threading.Event()

    def sleeper() -> bool:
        with turns.taken():
            return stop.until_then(PausesInTurns(turns)).wait(30)  # ends when the other has had its turn

    def other() -> None:
        with turns.taken():
            computed.set()
        stop.request()

    with ThreadPoolExecutor(2) as pool:
        asleep = pool.submit(sleeper)
        pool.submit(other).result(timeout=10)
        assert asleep.result(timeout=10)
    assert computed.is_set()


def test_a_peer_that_never_waits_lets_others_compute_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulate, "LONGEST_TURN", 0.02)
    turns, stop = Turns(1), Stopping()
    steps = [0, 0, 0]

    def peer(number: int) -> None:
        waiting = stop.until_then(PausesInTurns(turns))
        with turns.taken():
            while not waiting():  # as training does where rounds are made beside it
                time.sleep(0.001)
                steps[number] += 1
                if min(steps) >= 10:
                    stop.request()

    with ThreadPoolExecutor(3) as pool:
        for done in [pool.submit(peer, number) for number in range(3)]:
            done.result(timeout=10)
    assert min(steps) >= 10


def test_a_peer_that_others_wait_for_keeps_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulate, "LONGEST_TURN", 0.0)
    turns, reading, told = Turns(1), threading.Event(), []

    def another() -> None:
        reading.wait(10)
        with turns.taken():
            told.append("another")

    with ThreadPoolExecutor(1) as pool, turns.taken():
        waits = pool.submit(another)
        with turns.kept():
            reading.set()
            for _ in range(20):
                time.sleep(0.005)
                turns.offer()
            told.append("read")
        while len(told) < 2:
            turns.offer()
        waits.result(timeout=10)
    assert told == ["read", "another"]


def test_what_works_beside_a_peer_has_no_turn_to_leave() -> None:
    turns, computing = Turns(1), []

    def beside() -> None:
        with turns.left():
            computing.append("beside")

    with turns.taken(), ThreadPoolExecutor(1) as pool:
        pool.submit(beside).result(timeout=10)  # while the peer has its turn, which it keeps
    with turns.taken():
        computing.append("another")
    assert computing == ["beside", "another"]


def test_fewer_peers_than_paths_would_never_end(tmp_path: Path) -> None:
    run_file = write_run_file(tmp_path / "RUN.toml")
    with pytest.raises(UsageError, match=r"3 peers cannot train the 4 paths .* --peers 4"):
        run_simulation(run_file, tmp_path / "out", peers=3)


@pytest.mark.timeout(300)
def test_the_command_trains_and_leaves_a_home_to_use(tmp_path: Path) -> None:
    # min_peers=1 in the run file: the command waits for all of its own peers nevertheless
    run_file = write_run_file(tmp_path / "RUN.toml", min_peers=1, inner_steps=2, rounds=2)
    home = tmp_path / "out"

    typed: list[str | Path] = ["simulate", run_file, "--peers", "5", "--seed", "3", "--home", home, "--screen", "plain"]
    ended = programs.run("swarm", typed, timeout=200)
    assert ended.returncode == 0, ended.stderr
    said = ended.stdout
    assert "stage 1 is open: 4 paths" in said
    assert "peer-4: stage 1: path 0 of 4" in said  # the fifth is a replica of the first path
    assert "with 2 others" in said  # both modules of path 0 have three peers
    # what was left behind gives the same figures again, and can be written with and exported
    again = use.evaluate(home / "bootstrap", None)
    for score in again.paths:
        assert f"{score.perplexity:,.2f}" in said[said.index("routed perplexity") :]
    sampled = use.generate(home / "bootstrap", "def main():", tokens=4, temperature=0.8, top_k=40, seed=0)
    assert "".join(sampled)
    exporting.export(home / "bootstrap", 3, tmp_path / "model")
    assert (tmp_path / "model" / "model.safetensors").exists()


@pytest.mark.timeout(200)
def test_ctrl_c_ends_it_in_five_seconds_and_it_goes_on(tmp_path: Path) -> None:
    run_file = write_run_file(tmp_path / "RUN.toml", inner_steps=50, rounds=400)
    log = tmp_path / "log"
    process = programs.start("swarm", ["simulate", run_file, "--home", tmp_path / "out", "--screen", "plain"], log)
    try:
        until = time.monotonic() + 120
        while "round 1:" not in log.read_text():
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < until, log.read_text()
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        # a crowded machine is given its time
        assert process.wait(5 * max(1.0, os.getloadavg()[0])) == 130, log.read_text()
    finally:
        process.kill()
        process.wait()
    assert "stopped; the same command goes on from here" in log.read_text()
    assert "Traceback" not in log.read_text()
