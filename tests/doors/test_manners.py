"""When a volunteer's machine is for somebody else: what is decided, from which facts, and who is asked."""

import os
import threading
from collections.abc import Sequence
from dataclasses import replace
from datetime import time
from pathlib import Path
from typing import cast

import pytest
from typer.testing import CliRunner

from dipaco_swarm.cli import peer_home
from dipaco_swarm.cli.words import hours_choice, yield_choice
from dipaco_swarm.errors import HomeError, UsageError
from dipaco_swarm.machine.clock import SystemClock
from dipaco_swarm.machine.manners import (
    CALM_SECONDS,
    CPU_BUSY,
    CPU_CALM,
    GPU_BUSY,
    RUN,
    Hours,
    Pause,
    Situation,
    decide,
    would_pause,
)
from dipaco_swarm.machine.others import (
    ASK_SECONDS,
    BatteryOfThisMachine,
    CpuOfOthers,
    LineOfThisMachine,
    Times,
    share_of_others,
)
from dipaco_swarm.machine.watching import Sources, Watch, ask_for_pause, asks_for_pause, let_go_on, looking
from dipaco_swarm.peer.answering import AnswerDesk
from dipaco_swarm.peer.service import install, unit_of
from dipaco_swarm.swarm.questions import AskText, NotNow, Said
from tests.doors.examples_of_views import ADDRESS

NIGHT = Hours(time(22), time(7))
NM = "org.freedesktop.NetworkManager"


def reason(situation: Situation) -> str | None:
    decision = decide(situation)
    return decision.reason if isinstance(decision, Pause) else None


# ------------------------------------------------------------------------------------------------------- the decision


@pytest.mark.parametrize(
    ("situation", "expected"),
    [
        (Situation(), None),
        (Situation(asked=True), "asked"),
        (Situation(asked=True, insists=True), "asked"),
        (Situation(hours=NIGHT, now=time(12)), "hours"),
        (Situation(hours=NIGHT, now=time(12), insists=True), None),
        (Situation(hours=NIGHT, now=time(23)), None),
        (Situation(on_battery=True), "battery"),
        (Situation(on_metered=True), "metered"),
        (Situation(on_metered=True, insists=True), None),
        (Situation(gpu=GPU_BUSY), "gpu"),
        (Situation(cpu=CPU_BUSY), "cpu"),
        (Situation(cpu=CPU_BUSY - 0.01), None),
        (Situation(cpu=0.0, paused_for="cpu", calm_seconds=CALM_SECONDS - 1), "cpu"),
        (Situation(cpu=0.0, paused_for="cpu", calm_seconds=CALM_SECONDS), None),
        (Situation(cpu=CPU_CALM, paused_for="gpu", calm_seconds=0), "gpu"),
        (Situation(cpu=0.0, paused_for="hours", calm_seconds=0), None),
    ],
)
def test_each_row_of_the_table(situation: Situation, expected: str | None) -> None:
    assert reason(situation) == expected


def test_a_pause_says_what_it_is_for() -> None:
    assert str(decide(Situation(hours=NIGHT))) == "paused outside of 22:00-07:00"
    assert "processor" in str(decide(Situation(cpu=1.0)))
    assert would_pause(Situation(cpu=1.0, insists=True))


@pytest.mark.parametrize(
    ("text", "within", "without"),
    [
        ("22-7", [(22, 0), (23, 59), (0, 0), (6, 59)], [(7, 0), (21, 59)]),
        ("8:30-17:15", [(8, 30), (17, 14)], [(8, 29), (17, 15), (0, 0)]),
        ("0-24", [], []),
        ("20-24", [(20, 0), (23, 59)], [(0, 0), (19, 59)]),
    ],
)
def test_hours_go_over_midnight(text: str, within: list[tuple[int, int]], without: list[tuple[int, int]]) -> None:
    if text == "0-24":  # all day is what nobody has to say
        with pytest.raises(ValueError, match="the whole day"):
            Hours.parse(text)
        return
    hours = Hours.parse(text)
    assert all(hours.have(time(*at)) for at in within)
    assert not any(hours.have(time(*at)) for at in without)


@pytest.mark.parametrize("text", ["", "22", "22-", "-7", "7-7", "25-7", "22-7:60", "a-b", "22-7-8", "٣-7", "-1-5"])
def test_what_are_no_hours_is_said(text: str) -> None:
    with pytest.raises(UsageError, match="--hours"):
        hours_choice(text)


def test_what_a_peer_yields_to() -> None:
    assert yield_choice("no") == frozenset()
    assert yield_choice("battery,cpu") == {"cpu", "battery"}
    assert yield_choice("all") >= {"cpu", "battery"}
    for wrong in ("", "disk", "cpu,", "cpu,cpu", "cpu,all"):
        with pytest.raises(UsageError, match="--yield"):
            yield_choice(wrong)


def test_who_wants_to_yield_the_gpu_needs_what_looks_at_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dipaco_swarm.cli.words.find_spec", lambda name: None)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(UsageError, match="nvidia-ml-py"):
        yield_choice("gpu")
    with pytest.raises(UsageError, match="busctl"):
        yield_choice("cpu,metered")
    assert yield_choice("all") == {"cpu", "battery"}


@pytest.mark.parametrize(
    ("says", "expected"),
    [("u 1", True), ("u 3", True), ("u 2", False), ("u 4", False), ("u 0", False), ("", False), ("s", False)],
)
def test_network_manager_is_asked_whether_the_line_is_metered(
    says: str, expected: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """busctl is played by a program that notes how it was asked."""
    busctl = tmp_path / "busctl"
    busctl.write_text(f'#!/bin/sh\necho "$*" >> {tmp_path}/asked\necho "{says}"\n')
    busctl.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert yield_choice("metered") == {"metered"}
    clock = Clock()
    line = LineOfThisMachine(clock)
    assert line.is_metered() is expected
    busctl.unlink()
    clock.at += ASK_SECONDS - 1
    assert line.is_metered() is expected  # not asked again so soon
    clock.at += 1
    assert not line.is_metered()  # nobody answers
    (asked,) = (tmp_path / "asked").read_text().splitlines()
    assert asked == f"--system get-property {NM} /org/freedesktop/NetworkManager {NM} Metered"


# ----------------------------------------------------------------------------------------------------------- the facts


def test_others_are_who_runs_with_normal_priority_and_is_not_us() -> None:
    times = iter([Times(100, 10, {1: 5}), Times(104, 13, {1: 6}), Times(104, 13, {1: 6}), Times(108, 13, {1: 7})])
    cpu = CpuOfOthers(lambda: next(times))
    assert cpu.look() == 0.0  # nothing to compare with
    assert cpu.look() == pytest.approx(0.5)
    assert cpu.look() == 0.0  # no time has passed
    assert cpu.look() == 0.0  # never less


def test_what_a_child_has_used_that_has_ended_is_not_taken_for_others() -> None:
    times = iter([Times(100, 10, {1: 1.0, 2: 9.0}), Times(104, 11, {1: 2.0}), Times(108, 12, {1: 2.0, 3: 1.0})])
    cpu = CpuOfOthers(lambda: next(times))
    assert [cpu.look() for _ in range(3)] == [0.0, 0.0, 0.0]


def test_this_machine_says_something_sensible() -> None:
    cpu = CpuOfOthers()
    cpu.look()
    threading.Event().wait(0.2)
    assert 0 <= cpu.look() <= 1
    assert not BatteryOfThisMachine().is_discharging() or os.name == "posix"


def test_of_the_gpu_our_own_share_does_not_count_nor_what_nobody_can_name() -> None:
    assert share_of_others({1: 0.5, 2: 0.3, 3: 0.1}, {1}) == pytest.approx(0.4)
    assert share_of_others({}, {1}) == 0
    assert share_of_others({77: 0.9}, {1}) == 0
    assert share_of_others({1: 0.1, 2: 0.9, 3: 0.9}, {1}) == 1


class Used:
    """`Share` and `Battery` that somebody sets."""

    def __init__(self) -> None:
        self.share = 0.0
        self.discharges = False
        self.counts = False

    def look(self) -> float:
        return self.share

    def is_discharging(self) -> bool:
        return self.discharges

    def is_metered(self) -> bool:
        return self.counts


class Clock(SystemClock):
    def __init__(self) -> None:
        self.at = 0.0

    def monotonic(self) -> float:
        return self.at


def test_a_pause_begins_at_once_and_ends_when_others_have_been_calm_for_a_while(tmp_path: Path) -> None:
    clock, used = Clock(), Used()
    watch = Watch(tmp_path, Sources(cpu=used, gpu=used, battery=used, line=used), clock)
    assert watch.look() == RUN
    used.share = 0.9
    assert isinstance(watch.look(), Pause)
    used.share = 0.0
    clock.at += CALM_SECONDS - 1
    assert isinstance(watch.look(), Pause)
    clock.at += 1
    assert watch.look() == RUN
    used.discharges = True
    assert isinstance(watch.look(), Pause)
    assert isinstance(watch.now, Pause)
    assert watch.now.reason == "battery"
    used.discharges, used.counts = False, True
    metered = watch.look()
    assert isinstance(metered, Pause)
    assert metered.reason == "metered"


def test_a_key_pauses_and_goes_on_whatever_the_pause_is_for(tmp_path: Path) -> None:
    clock, used = Clock(), Used()
    watch = Watch(tmp_path / "home", Sources(battery=used), clock)

    def pauses() -> bool:
        return isinstance(watch.look(), Pause)

    watch.toggle()
    assert pauses()
    assert asks_for_pause(tmp_path / "home")
    watch.toggle()
    assert not pauses()
    used.discharges = True
    assert pauses()
    watch.toggle()
    assert not pauses()
    assert not pauses()  # for as long as it lasts
    used.discharges = False
    assert not pauses()
    used.discharges = True
    assert pauses()


def test_a_file_in_the_home_folder_pauses_within_two_seconds_and_over_restarts(tmp_path: Path) -> None:
    with looking(Watch(tmp_path, Sources())) as watch:
        assert not isinstance(watch.now, Pause)
        ask_for_pause(tmp_path)
        done = threading.Event()
        for _ in range(20):
            if isinstance(watch.now, Pause):
                break
            done.wait(0.1)
        assert isinstance(watch.now, Pause)
    assert isinstance(Watch(tmp_path, Sources()).now, Pause)
    let_go_on(tmp_path)
    let_go_on(tmp_path)
    assert not isinstance(Watch(tmp_path, Sources()).now, Pause)


# -------------------------------------------------------------------------------------------------------- the commands

runner = CliRunner()


def test_pause_and_resume_take_a_home_or_find_the_only_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    home = tmp_path / "dipaco" / "demo" / "peer"
    refused = runner.invoke(peer_home.app, ["pause"])
    assert refused.exit_code == 2
    assert "which peer?" in refused.output
    home.mkdir(parents=True)
    assert runner.invoke(peer_home.app, ["pause"]).exit_code == 0
    assert asks_for_pause(home)
    assert runner.invoke(peer_home.app, ["resume", str(home)]).exit_code == 0
    assert not asks_for_pause(home)
    assert runner.invoke(peer_home.app, ["pause", "--home", str(home)]).exit_code == 0
    assert asks_for_pause(home)
    assert runner.invoke(peer_home.app, ["pause", str(home / "none")]).exit_code == 2
    (tmp_path / "dipaco" / "other" / "peer").mkdir(parents=True)
    assert "other" in runner.invoke(peer_home.app, ["resume"]).output


def test_the_unit_runs_exactly_the_command() -> None:
    text = unit_of("demo", ["/opt/a b/dipaco-peer", "--run", ADDRESS, "--name", 'half "50 %" $HOME \\ end'])
    (line,) = (line for line in text.splitlines() if line.startswith("ExecStart="))
    start = f'ExecStart="/opt/a b/dipaco-peer" "--run" "{ADDRESS}" "--name" '
    assert line == start + '"half \\"50 %%\\" $$HOME \\\\ end"'
    assert "WantedBy=default.target" in text


def test_a_unit_finds_folders_where_its_command_was_typed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder := tmp_path / "50 % of it").mkdir()
    monkeypatch.chdir(folder)
    assert f"WorkingDirectory={tmp_path}/50 %% of it\n" in unit_of("demo", ["x", "--home", "a"])


def test_a_service_is_written_started_and_its_failure_said(tmp_path: Path) -> None:
    ran: list[str] = []

    def execute(step: Sequence[str]) -> int:
        ran.append(" ".join(step))
        return 0

    said = install("demo", ["x"], tmp_path / "units", execute)
    assert (tmp_path / "units" / "dipaco-peer-demo.service").read_text() == unit_of("demo", ["x"])
    assert ran == ["systemctl --user daemon-reload", "systemctl --user enable --now dipaco-peer-demo.service"]
    assert any("enable-linger" in line for line in said)
    with pytest.raises(HomeError, match="daemon-reload failed"):
        install("demo", ["x"], tmp_path / "units", lambda step: 1)


def test_without_systemd_it_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    written = runner.invoke(peer_home.app, ["install-service", "--run", ADDRESS, "--hours", "22-7", "--threads", "1"])
    assert written.exit_code == 0, written.output
    assert "there is no systemctl here" in written.output
    (unit,) = (tmp_path / "config" / "systemd" / "user").iterdir()
    assert '"--hours" "22-7" "--threads" "1"' in unit.read_text()
    assert runner.invoke(peer_home.app, ["install-service", "--run", ADDRESS, "--no-such"]).exit_code == 2
    assert runner.invoke(peer_home.app, ["install-service"]).exit_code == 2


def test_who_is_asked_in_a_pause_sends_the_asker_elsewhere() -> None:
    desk, said = AnswerDesk(SystemClock(), "cpu", 1), list[Said]()
    desk.rest(resting=True)
    desk.take(cast(AskText, None), "somebody", said.append)
    (answer,) = said
    assert isinstance(answer, NotNow)
    assert "needed otherwise" in answer.reason
    desk.rest(resting=False)
    desk.take(cast(AskText, None), "somebody", said.append)
    assert isinstance(said[-1], NotNow)
    assert "not ready" in said[-1].reason
    desk.close()


def test_the_decision_depends_on_nothing_else() -> None:
    assert decide(replace(Situation(), calm_seconds=5, now=time(3))) == RUN
