"""What a peer writes down, and what the demo reads from it."""

import itertools
import json
import logging
import resource
import signal
from pathlib import Path
from typing import Any

import pytest

from dipaco_swarm.dashboard.metrics import Metrics, read_metrics, steps_after
from dipaco_swarm.demo.chart import smooth, weighted_mean
from dipaco_swarm.demo.scene import Agreement, Curve, agreement_of, curve_of
from dipaco_swarm.events.training import Commit, Round

ROUND = Round(0, 0, 10, 1, None, {})


def test_every_tenth_step_is_a_line_with_the_mean_since_the_last(tmp_path: Path) -> None:
    metrics = Metrics(tmp_path / "home" / "metrics.jsonl")
    for step in range(1, 26):
        metrics.step(0, 2, step, float(step), 100, 0.5)
    first, second = read_metrics(tmp_path / "home" / "metrics.jsonl")
    assert (first["step"], first["loss"], first["tokens"]) == (10, 5.5, 1000)  # mean of 1 to 10
    assert (second["step"], second["loss"], second["tokens"]) == (20, 15.5, 2000)
    assert (second["path"], second["tokens_per_second"]) == (2, 200.0)


def test_a_new_stage_begins_a_new_mean(tmp_path: Path) -> None:
    metrics = Metrics(tmp_path / "metrics.jsonl")
    for step in range(5):
        metrics.step(0, 0, step, 9.0, 1, 1.0)
    for step in range(5, 15):
        metrics.step(1, 0, step, 1.0, 1, 1.0)
    (line,) = read_metrics(tmp_path / "metrics.jsonl")
    assert (line["stage"], line["loss"], line["tokens"]) == (1, 1.0, 15)


def test_a_full_disk_costs_no_training(tmp_path: Path) -> None:
    (tmp_path / "home").write_text("a file where the folder should be")
    metrics = Metrics(tmp_path / "home" / "metrics.jsonl")
    for step in range(20):
        metrics.step(0, 0, step, 1.0, 1, 1.0)


def test_a_disk_that_fills_within_a_line_leaves_no_half_of_it_and_is_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    file = tmp_path / "metrics.jsonl"
    metrics = Metrics(file)

    def lines(count: int) -> None:
        for step in range(10 * count):
            metrics.step(0, 0, step, 1.0, 1, 1.0)

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


def test_steps_that_a_crash_costs_are_counted_at_the_end_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    assert steps_after(file, 0, 0, 0) == 0

    def life(path: int, *steps: range) -> None:
        metrics = Metrics(file)
        for step in itertools.chain(*steps):
            metrics.step(0, path, step, 1.0, 1, 1.0)

    life(0, range(1, 46))
    life(1, range(101, 136))
    assert (steps_after(file, 0, 0, 12), steps_after(file, 0, 1, 0), steps_after(file, 1, 0, 0)) == (30, 30, 0)
    with file.open("a") as half:
        half.write('{"kind": "steps", "st\n')
    assert steps_after(file, 0, 0, 12) == 30
    life(0, range(13, 25), range(1001, 1009))  # goes on from 12, where others have trained a thousand meanwhile
    assert steps_after(file, 0, 0, 12) == 20
    assert steps_after(file, 0, 0, 1008) == 0


def test_months_of_lines_are_two_files_and_readers_see_the_newest_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dipaco_swarm.dashboard.metrics.MOST_BYTES", 2000)
    file = tmp_path / "metrics.jsonl"
    metrics = Metrics(file)
    for step in range(1, 10_001):
        metrics.step(0, 0, step, 1.0, 1, 1.0)
        if step % 1000 == 0:
            noted = [line["step"] for line in read_metrics(file)]
            assert len(noted) >= 2000 // 200
            assert noted == [*range(step - 10 * (len(noted) - 1), step + 1, 10)]  # none is missing or there twice
            assert steps_after(file, 0, 0, step - 100) == 100
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["metrics.1.jsonl", "metrics.jsonl"]
    assert sum(entry.stat().st_size for entry in tmp_path.iterdir()) <= 2 * 2000


def test_a_file_that_becomes_full_while_it_is_read_is_not_read_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "metrics.jsonl"
    Metrics(file).round(ROUND)
    opening = Path.open

    def open_then_rotate(self: Path, *arguments: Any, **named: Any) -> Any:
        opened = opening(self, *arguments, **named)
        if self == file:
            file.replace(tmp_path / "metrics.1.jsonl")
        return opened

    monkeypatch.setattr(Path, "open", open_then_rotate)
    assert [line["round"] for line in read_metrics(file)] == [1]


def test_a_line_that_is_being_written_is_left_for_later(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "metrics.jsonl"
    Metrics(file).round(ROUND)
    with file.open("a") as half:
        half.write('{"kind": "ro')
    assert [line["round"] for line in read_metrics(file)] == [1]
    assert read_metrics(tmp_path / "none") == []
    assert not caplog.records


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

    def life(*steps: int) -> None:
        metrics = Metrics(file)
        for step in itertools.chain(*(range(step - 9, step + 1) for step in steps)):
            metrics.step(0, 0, step, 1.0, 1, 1.0)

    life(10, 20)
    with file.open("ab") as half:
        half.write(torn)  # and the machine is off
    assert steps_after(file, 0, 0, 0) == 20
    life(30, 40)
    assert [line["step"] for line in read_metrics(file)] == [10, 20, 30, 40]
    assert steps_after(file, 0, 0, 20) == 20
    assert [record.getMessage() for record in caplog.records] == [
        "metrics.jsonl: 1 of its lines cannot be read, after a power cut perhaps; left out"
    ]


def test_the_end_of_a_long_file_is_looked_at_without_a_word(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "metrics.jsonl"
    metrics = Metrics(file)
    for step in range(1, 101):
        metrics.step(0, 0, step, 1.0, 1, 1.0)
    monkeypatch.setattr("dipaco_swarm.dashboard.metrics.TAIL_BYTES", file.stat().st_size // 2 - 30)
    assert steps_after(file, 0, 0, 0) == 40  # four whole lines are in there
    assert not caplog.records


def test_agreement_counts_what_several_peers_made(tmp_path: Path) -> None:
    versions = {
        "a": [{"L0M0": (1, "x"), "L1M0": (1, "y")}, {"L0M0": (2, "z")}],
        "b": [{"L0M0": (1, "x"), "L1M1": (1, "q")}, {"L0M0": (2, "other")}],
    }
    for peer, rounds in versions.items():
        metrics = Metrics(tmp_path / peer / "metrics.jsonl")
        for number, modules in enumerate(rounds):
            made = {name: Commit(version, digest, 2, 100) for name, (version, digest) in modules.items()}
            metrics.round(Round(0, 0, 10, number, 1.5, made))
    # L0M0 versions 1 and 2 have two makers each; of version 2 they made different bytes
    assert agreement_of([tmp_path / "a", tmp_path / "b", tmp_path / "silent"]) == Agreement(shared=2, same=1)


def test_the_mean_of_the_paths_is_weighted_once_documents_are_routed() -> None:
    one = Curve("path 0", (10, 20, 30), (4.0, 2.0, 1.0), (0, 1, 1))
    two = Curve("path 1", (10, 20), (2.0, 6.0), (0, 1))
    assert weighted_mean([one, two], [0.75, 0.25]) == ([10, 20], [3.0, 3.0])  # (4+2)/2, then 0.75*2 + 0.25*6


def test_smoothing_averages_five_points_and_fewer_at_the_ends() -> None:
    assert smooth([1.0, 2.0, 6.0, 3.0, 3.0]) == [3.0, 3.0, 3.0, 3.5, 4.0]  # (1+2+6)/3, ..., (6+3+3)/3
    assert smooth([]) == []


def test_a_curve_is_what_the_steps_say(tmp_path: Path) -> None:
    lines = [
        {"kind": "steps", "step": 10, "loss": 2.0, "stage": 0},
        {"kind": "round", "round": 1},
        {"kind": "steps", "step": 20, "loss": 1.5, "stage": 1},
    ]
    assert curve_of("dense", json.loads(json.dumps(lines))) == Curve("dense", (10, 20), (2.0, 1.5), (0, 1))
