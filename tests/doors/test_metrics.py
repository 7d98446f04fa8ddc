"""What a peer writes down, and what the demo reads from it."""

import logging
import resource
import signal
from pathlib import Path
from typing import Any

import pytest

from dipaco_swarm.dashboard.metrics import Following, Journal, StepMeter, metrics_file, read_metrics
from dipaco_swarm.demo.chart import smooth, weighted_mean
from dipaco_swarm.demo.scene import Agreement, Curve, agreement_of, curve_of
from dipaco_swarm.events.lines import Entry, from_line
from dipaco_swarm.events.training import Commit, Round, Steps

ROUND = Round(0, 0, 10, 1, None, {})


def steps_of(step: int) -> Steps:
    return Steps(0, 0, step, 1.5, 10 * step, 100.0)


def noted(file: Path) -> list[int]:
    """The steps in a file."""
    return [entry.event.step for entry in read_metrics(file) if isinstance(entry.event, Steps | Round)]


def test_every_tenth_step_is_an_event_with_the_mean_since_the_last() -> None:
    meter = StepMeter()
    made = [meter.step(0, 2, step, float(step), 100, 0.5) for step in range(1, 26)]
    assert [number for number, steps in enumerate(made, 1) if steps is not None] == [10, 20]
    assert made[9] == Steps(stage=0, path=2, step=10, loss=5.5, tokens=1000, tokens_per_second=200.0)  # mean of 1 to 10
    assert made[19] == Steps(stage=0, path=2, step=20, loss=15.5, tokens=2000, tokens_per_second=200.0)


def test_a_new_stage_begins_a_new_mean() -> None:
    meter = StepMeter()
    for step in range(5):
        assert meter.step(0, 0, step, 9.0, 1, 1.0) is None
    (steps,) = [steps for step in range(5, 15) if (steps := meter.step(1, 0, step, 1.0, 1, 1.0)) is not None]
    assert (steps.stage, steps.loss, steps.tokens) == (1, 1.0, 15)


def test_a_full_disk_costs_no_training(tmp_path: Path) -> None:
    (tmp_path / "home").write_text("a file where the folder should be")
    Journal(metrics_file(tmp_path / "home")).note(steps_of(10))
    assert (tmp_path / "home").is_file()


def test_a_disk_that_fills_within_a_line_leaves_no_half_of_it_and_is_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    file = tmp_path / "metrics.jsonl"
    journal = Journal(file)

    def lines(count: int) -> None:
        for step in range(count):
            journal.note(steps_of(step))

    lines(2)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (file.stat().st_size + 30, limits[1]))  # room for half a line
    try:
        lines(3)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, before)
    assert len(read_metrics(file)) == 2
    assert [record.getMessage().count("make room there") for record in caplog.records] == [1]
    lines(1)
    assert len(read_metrics(file)) == 3


def test_months_of_lines_are_two_files_and_readers_see_the_newest_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dipaco_swarm.dashboard.metrics.MOST_BYTES", 2000)
    file = tmp_path / "metrics.jsonl"
    journal = Journal(file)
    for step in range(1, 1001):
        journal.note(steps_of(step))
        if step % 100 == 0:
            assert len(noted(file)) >= 2000 // 200
            assert noted(file) == [*range(step - len(noted(file)) + 1, step + 1)]  # none is missing or there twice
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["metrics.1.jsonl", "metrics.jsonl"]
    assert sum(entry.stat().st_size for entry in tmp_path.iterdir()) <= 2 * 2000


def test_a_file_that_becomes_full_while_it_is_read_is_not_read_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "metrics.jsonl"
    Journal(file).note(ROUND)
    opening = Path.open

    def open_then_rotate(self: Path, *arguments: Any, **named: Any) -> Any:
        opened = opening(self, *arguments, **named)
        if self == file:
            file.replace(tmp_path / "metrics.1.jsonl")
        return opened

    monkeypatch.setattr(Path, "open", open_then_rotate)
    assert [entry.event for entry in read_metrics(file)] == [ROUND]


def test_a_line_that_is_being_written_is_left_for_later(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "metrics.jsonl"
    Journal(file, wall=lambda: 12.5).note(ROUND)
    with file.open("a") as half:
        half.write('{"kind": "ro')
    assert read_metrics(file) == [Entry(12.5, ROUND)]
    assert read_metrics(tmp_path / "none") == []
    assert not caplog.records


def test_who_looks_again_sees_what_a_new_reader_sees(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dipaco_swarm.dashboard.metrics.MOST_BYTES", 2000)
    file = tmp_path / "metrics.jsonl"
    journal, following = Journal(file), Following(file)
    assert following.entries() == []
    for step in range(1, 101):  # eleven files
        journal.note(steps_of(step))
        if step % 3:  # a file may become full between two looks
            assert following.entries() == read_metrics(file)
    with file.open("a") as half:
        half.write('{"kind": "ro')
    assert following.entries() == read_metrics(file)
    journal.note(ROUND)
    assert following.events()[-1] == read_metrics(file)[-1].event == ROUND
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(lines[0])  # an older home was put back
    assert following.entries() == read_metrics(file)


def test_who_looks_again_reads_nothing_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "metrics.jsonl"
    journal, following, read = Journal(file), Following(file), list[bytes]()

    def reading(line: bytes) -> Entry:
        read.append(line)
        return from_line(line)

    monkeypatch.setattr("dipaco_swarm.dashboard.metrics.from_line", reading)
    for step in range(1, 6):
        journal.note(steps_of(step))
        assert len(following.entries()) == step
    assert len(read) == 5


@pytest.mark.parametrize(
    "torn",
    [
        b'{"kind": "steps", "time": 12.5, "stage": 0, "pa',
        b'{"kind": "steps", "time": 1}',
        b"\0" * 4096,
        b"\xff{",
        b"[1]",
    ],
)
def test_half_a_line_of_a_power_cut_costs_that_line_alone_and_is_said_once(
    torn: bytes, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "metrics.jsonl"
    for step in (10, 20):
        Journal(file).note(steps_of(step))
    with file.open("ab") as half:
        half.write(torn)  # and the machine is off
    for step in (30, 40):
        Journal(file).note(steps_of(step))
    assert noted(file) == noted(file) == [10, 20, 30, 40]
    (record,) = caplog.records
    assert record.getMessage().startswith("metrics.jsonl: 1 of its lines cannot be read and are left out; the first: ")


def test_agreement_counts_what_several_peers_made(tmp_path: Path) -> None:
    versions = {
        "a": [{"L0M0": (1, "x"), "L1M0": (1, "y")}, {"L0M0": (2, "z")}],
        "b": [{"L0M0": (1, "x"), "L1M1": (1, "q")}, {"L0M0": (2, "other")}],
    }
    for peer, rounds in versions.items():
        journal = Journal(metrics_file(tmp_path / peer))
        for number, modules in enumerate(rounds):
            made = {name: Commit(version, digest, 2, 100) for name, (version, digest) in modules.items()}
            journal.note(Round(0, 0, 10, number, 1.5, made))
    # L0M0 versions 1 and 2 have two makers each; of version 2 they made different bytes
    assert agreement_of([tmp_path / "a", tmp_path / "b", tmp_path / "silent"]) == Agreement(shared=2, same=1)


def test_the_mean_of_the_paths_is_weighted_once_documents_are_routed() -> None:
    one = Curve("path 0", (10, 20, 30), (4.0, 2.0, 1.0), (0, 1, 1))
    two = Curve("path 1", (10, 20), (2.0, 6.0), (0, 1))
    assert weighted_mean([one, two], [0.75, 0.25]) == ([10, 20], [3.0, 3.0])  # (4+2)/2, then 0.75*2 + 0.25*6


def test_smoothing_averages_five_points_and_fewer_at_the_ends() -> None:
    assert smooth([1.0, 2.0, 6.0, 3.0, 3.0]) == [3.0, 3.0, 3.0, 3.5, 4.0]  # (1+2+6)/3, ..., (6+3+3)/3
    assert smooth([]) == []


def test_a_curve_is_what_the_steps_say() -> None:
    events = [Steps(0, 0, 10, 2.0, 100, 50.0), ROUND, Steps(1, 0, 20, 1.5, 200, 50.0)]
    assert curve_of("dense", events) == Curve("dense", (10, 20), (2.0, 1.5), (0, 1))
