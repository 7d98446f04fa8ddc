"""The doctor says what it saw, and what to do if that is not enough."""

import io
import socket
import subprocess
from pathlib import Path

import pytest
from rich.console import Console

from dipaco_swarm import doctor
from dipaco_swarm.doctor import Check, Report, examine
from dipaco_swarm.manifest import RunAddress


def address(port: int) -> RunAddress:
    place = f"/ip4/127.0.0.1/tcp/{port}/p2p/12D3KooWHmZ7sYfVX5tCz1eLQkq3R8bPw6uJd4aNcG2xT9vBs"
    return RunAddress("small", "a" * 32, (place,))


@pytest.fixture(autouse=True)
def _without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_gpu", lambda: Check("gpu", "note", "none that torch can use", "fine"))


def test_a_machine_that_runs_the_tests_can_take_part() -> None:
    report = examine(None)
    assert report.ok, report
    assert {check.name for check in report.checks} >= {
        "python",
        "torch",
        "hivemind",
        "p2p daemon",
        "memory",
        "disk",
        "clock",
    }


def test_a_bootstrap_node_that_listens_is_found() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        (check,) = (c for c in examine(address(listening.getsockname()[1])).checks if c.name == "bootstrap node")
    assert check.verdict == "ok"


def test_no_bootstrap_node_at_all_is_bad_and_says_what_to_do() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    report = examine(address(port))
    assert not report.ok
    assert "firewall" in report.checks[-1].advice


def test_a_daemon_that_does_not_start_is_bad(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(8, "Exec format error")

    monkeypatch.setattr(subprocess, "run", refuse)
    (check,) = (c for c in examine(None).checks if c.name == "p2p daemon")
    assert (check.verdict, check.seen) == ("bad", "does not start: Exec format error")


def test_everything_that_is_not_ok_comes_with_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "DISK_GIB", 10**9)
    monkeypatch.setattr(doctor, "MEMORY_GIB", 10**9)
    checks = examine(None).checks
    assert {check.name for check in checks if check.verdict != "ok"} >= {"disk", "memory"}
    assert all(check.advice for check in checks if check.verdict != "ok")


def test_the_home_of_a_newcomer_need_not_exist(tmp_path: Path) -> None:
    assert str(tmp_path) in doctor._disk(tmp_path / "a" / "b").seen


def test_the_report_ends_with_the_answer() -> None:
    console = Console(width=80, file=io.StringIO(), record=True)
    console.print(Report((Check("clock", "bad", "1970", "set it"),)))
    text = console.export_text()
    assert "set it" in text
    assert text.rstrip().endswith("Not yet: see the red lines.")
