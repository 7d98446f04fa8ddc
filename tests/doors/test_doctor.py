"""The doctor says what it saw, and what to do if that is not enough."""

import io
import json
import socket
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from dipaco_swarm import doctor
from dipaco_swarm.dashboard.views import SwarmStatus
from dipaco_swarm.doctor import examine, of_run
from dipaco_swarm.doctor.of_run import (
    as_a_guest,
    congestion_control,
    joining_check,
    path_check,
    round_check,
    stage_check,
)
from dipaco_swarm.doctor.report import Check, Report
from dipaco_swarm.errors import NodeError, UnreachableError
from dipaco_swarm.run.address import RunAddress
from dipaco_swarm.swarm.libp2p import outside
from dipaco_swarm.swarm.libp2p.outside import Outside, RunPath
from dipaco_swarm.training.trial import Trial
from tests.doors.examples_of_views import small_status
from tests.doors.test_manifest import manifest

LARGE = RunPath(parameters=150_000_000, round_bytes=300_000_000)
SEEN = Outside(
    seen_at="11.2.0.2",
    port=4002,
    tried=True,
    relayed=False,
    clock_ahead=0.3,
    version="0.1.0",
    our_version="0.1.0",
    bytes_up=2.5e6,
    path=RunPath(parameters=1_000_000, round_bytes=2_000_000),
)


def address(port: int) -> RunAddress:
    place = f"/ip4/127.0.0.1/tcp/{port}/p2p/12D3KooWHmZ7sYfVX5tCz1eLQkq3R8bPw6uJd4aNcG2xT9vBsmKp"
    return RunAddress("small", "a" * 32, (place,))


@pytest.fixture(autouse=True)
def _without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_gpu", lambda: Check("gpu", "note", "none that torch can use", "fine"))


def asked(monkeypatch: pytest.MonkeyPatch, answer: Outside | Exception | None, listen: str | None = None) -> Report:
    """All checks, with a bootstrap node that listens and says this."""

    def look(*_: object) -> Outside | None:
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(outside, "look_from_outside", look)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return examine(address(listening.getsockname()[1]), listen)


def check_of(report: Report, name: str) -> Check:
    (check,) = (check for check in report.checks if check.name == name)
    return check


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


def test_a_bootstrap_node_that_listens_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    report = asked(monkeypatch, SEEN)
    assert check_of(report, "bootstrap node").verdict == "ok"
    assert {check_of(report, name).verdict for name in ("port", "clock", "version", "dialling in")} == {"ok"}
    assert "1.0 million parameters" in check_of(report, "path").seen
    assert check_of(report, "a round").verdict == "ok"
    assert "11.2.0.2 port 4002" in check_of(report, "dialling in").seen


def test_who_cannot_be_dialled_can_take_part_and_is_told_what_would_be_better(monkeypatch: pytest.MonkeyPatch) -> None:
    report = asked(monkeypatch, replace(SEEN, port=None, relayed=True))
    check = check_of(report, "dialling in")
    assert report.ok
    assert check.verdict == "note"
    assert "relays" in check.seen
    assert "forward a TCP port" in check.advice
    assert "--listen" in check.advice
    alone = check_of(asked(monkeypatch, replace(SEEN, port=None), "/ip4/0.0.0.0/tcp/4002"), "dialling in")
    assert "does not relay" in alone.seen
    assert "forward this port" in alone.advice


@pytest.mark.parametrize(
    ("ahead", "verdict"), [(0.2, "ok"), (-4.0, "ok"), (8.0, "note"), (-12.0, "note"), (25.0, "bad"), (-90.0, "bad")]
)
def test_the_clock_is_compared_with_the_node_s(monkeypatch: pytest.MonkeyPatch, ahead: float, verdict: str) -> None:
    check = check_of(asked(monkeypatch, replace(SEEN, clock_ahead=ahead)), "clock")
    assert check.verdict == verdict
    assert f"{abs(ahead):.1f} s {'ahead of' if ahead > 0 else 'behind'}" in check.seen


def test_another_version_a_taken_port_and_a_silent_node_come_with_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    version = check_of(asked(monkeypatch, replace(SEEN, version="9.9")), "version")
    assert (version.verdict, version.seen) == ("note", "0.1.0 here, 9.9 at the bootstrap node")
    taken = asked(monkeypatch, NodeError("port 4002 on 0.0.0.0 cannot be used"))
    assert not taken.ok
    assert check_of(taken, "port").verdict == "bad"
    silent = asked(monkeypatch, UnreachableError("no bootstrap node spoke to us"))
    assert not silent.ok
    old = asked(monkeypatch, None)
    assert old.ok
    assert check_of(old, "dialling in").verdict == "note"
    for report in (taken, silent, old):
        assert all(check.advice for check in report.checks if check.verdict != "ok")


def test_a_path_that_fits_says_what_it_takes_and_one_that_does_not_says_of_what_there_is_too_little() -> None:
    gib = doctor.GIB
    roomy, tight = path_check(LARGE, 8 * gib, 20 * gib, None), path_check(LARGE, 4 * gib, 2 * gib, None)
    assert (roomy.verdict, tight.verdict) == ("ok", "bad")
    assert roomy.seen.startswith("150 million parameters: 5.6 GB of memory, 15.6 GB of disk")
    assert "too little memory and disk:" in tight.advice
    on_gpu = path_check(LARGE, 5 * gib, 20 * gib, 1 * gib)
    assert on_gpu.seen.startswith("150 million parameters: 1.5 GB on the GPU, 3.2 GB of memory")
    assert "too little memory of the GPU:" in on_gpu.advice
    assert path_check(LARGE, None, 20 * gib, None).verdict == "ok"


def test_a_round_takes_as_long_as_the_line_needs() -> None:
    check = round_check(LARGE, 2.5e6, "cubic")
    assert (check.verdict, check.seen) == (
        "ok",
        "sends up to 300 MB: 2 min at the 20.0 Mbit/s that this line sends now",
    )
    assert check.figures["sending_seconds"] == 120
    slow, unknown = round_check(LARGE, 1e5, None), round_check(LARGE, None, None)
    assert (slow.verdict, unknown.verdict) == ("note", "note")
    assert "50 min at the 0.8 Mbit/s" in slow.seen
    assert slow.advice.startswith("others may make rounds without this machine")
    assert unknown.advice


def test_who_is_slow_is_told_of_another_way_to_send(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(of_run, "CONGESTION_CONTROL", tmp_path / "congestion")
    assert congestion_control() is None
    for said, is_told in (("cubic\n", True), ("reno\n", True), ("bbr\n", False)):
        of_run.CONGESTION_CONTROL.write_text(said)
        slow = round_check(LARGE, 1e5, congestion_control())
        assert ("tcp_congestion_control=bbr" in slow.advice) == is_told
        assert "others may make rounds without this machine" in slow.advice


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


def test_joining_takes_as_long_as_the_line_takes_in() -> None:
    check = joining_check(LARGE, 1e6)
    assert (check.verdict, check.seen) == (
        "ok",
        "fetches up to 1.8 GB: 30 min at the 8.0 Mbit/s that this line takes in now",
    )
    assert check.figures["joining_seconds"] == 1800
    slow, unknown = joining_check(LARGE, 1e4), joining_check(LARGE, None)
    assert (slow.verdict, unknown.verdict) == ("note", "note")
    assert slow.advice
    assert unknown.advice


def a_look(_: RunAddress) -> tuple[Trial, SwarmStatus]:
    return Trial(manifest().rules, 512), small_status()


def test_a_machine_is_tried_on_the_run_s_own_path(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, float]] = []

    def tried(trial: Trial, device: str, seconds: float) -> float:
        asked.append((device, seconds))
        return trial.round_tokens / 120

    monkeypatch.setattr(Trial, "tokens_per_second", tried)
    speed, stage = as_a_guest(address(1), a_look, "cpu")
    assert asked == [("cpu", 10.0)]
    assert speed.figures["round_seconds_alone"] == pytest.approx(120)
    assert speed.seen.endswith("tokens/s on cpu; a path alone makes a round in 2 min")
    assert stage.name == "stage"

    def nobody(_: RunAddress) -> tuple[Trial, SwarmStatus]:
        raise UnreachableError("nobody of it answers")

    (check,) = as_a_guest(address(1), nobody, "cpu")
    assert (check.verdict, check.seen) == ("note", "not measured: nobody of it answers")
    assert check.advice


def test_the_end_of_a_stage_is_said_by_the_pace_of_those_who_train_or_by_ours() -> None:
    status = replace(small_status(), target_version=20, round_seconds=60.0, peers=3, finished=False)
    left = (20 - status.version_min) * 60
    theirs = stage_check(status, 600.0)
    assert theirs.figures["stage_seconds_left"] == left
    assert theirs.seen.endswith("left at the pace of 3 peers")
    alone = stage_check(replace(status, round_seconds=None), 600.0)
    assert alone.figures["stage_seconds_left"] == 10 * left
    assert alone.seen.endswith("at the pace of this machine, as nobody trains now")
    assert "when the operator says so" in stage_check(replace(status, target_version=None), 600.0).seen
    assert stage_check(replace(status, finished=True), 600.0).verdict == "note"


def test_programs_are_told_all_of_it_with_figures() -> None:
    told = json.loads(Report((Check("clock", "bad", "1970", "set it"), joining_check(LARGE, 1e6))).to_json())
    assert told["ok"] is False
    assert told["checks"][0] == {"name": "clock", "verdict": "bad", "seen": "1970", "advice": "set it"}
    assert told["figures"]["bytes_down_per_second"] == 1e6
