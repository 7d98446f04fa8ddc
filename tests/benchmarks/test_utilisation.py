"""What `benchmarks.utilisation` says of a row, and when it fails."""

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import pytest

from benchmarks import utilisation
from benchmarks.chaos.story import Disappointed
from benchmarks.utilisation import Row

FINE = Row(
    line="home",
    group="grid",
    minutes=5.0,
    overlap=True,
    shares=(0.96, 0.97),
    speed=0.95,
    goodput=1.0,
    versions=4,
    seconds_a_version=400.0,
    longest_seconds=600.0,
    bytes_up=1.9,
    bytes_for={"round": 1.0, "versions": 0.5, "joining": 0.0, "messages": 0.1},
)


@pytest.mark.parametrize(
    ("row", "missed"),
    [
        (FINE, []),
        (replace(FINE, shares=(0.94, 0.99)), ["trained 0.94, aim 0.95"]),
        (replace(FINE, shares=(0.94, 0.99), minutes=1.0), []),
        (replace(FINE, shares=(0.89, 0.99), minutes=1.0), ["trained 0.89, aim 0.9"]),
        (replace(FINE, shares=(0.91, 0.99), line="far"), []),
        (replace(FINE, goodput=0.98), ["goodput 0.98, aim 0.99"]),
        (replace(FINE, versions=0), ["versions 0, aim 1"]),
        (replace(FINE, wrong=("5 tokens are nowhere",)), ["5 tokens are nowhere"]),
    ],
)
def test_a_row_misses_its_aims_by_name(row: Row, missed: list[str]) -> None:
    assert row.missed == missed


def test_a_row_has_a_cell_for_every_column() -> None:
    assert str(FINE).count("|") == utilisation.HEAD.splitlines()[0].count("|")
    assert "| 1.90 | 1.00 | 0.50 | 0.00 | 0.40 |" in str(FINE)


def exit_code(monkeypatch: pytest.MonkeyPatch, runs: list[list[Row] | Disappointed], *arguments: str) -> int:
    asked: list[tuple[str, str, Sequence[float], list[float]]] = []

    def play(
        line: str, group: str, minutes: Sequence[float], seconds: Callable[[float], float], codec: str, *, overlap: bool
    ) -> Iterator[Row]:
        asked.append((line, group, minutes, [seconds(t) for t in minutes]))
        rows = next(given)
        if isinstance(rows, Disappointed):
            raise rows
        yield from rows

    given: Iterator[list[Row] | Disappointed] = iter(runs)
    monkeypatch.setattr(utilisation, "play", play)
    monkeypatch.setattr("benchmarks.chaos.lab.Lab.missing", staticmethod(lambda: None))
    monkeypatch.setattr("benchmarks.chaos.crew.prepare", lambda: None)
    monkeypatch.setattr(sys, "argv", ["utilisation", *arguments])
    code = utilisation.main()
    assert asked == [("home", group, [1, 5], [45.0, 60.0]) for group in ("two", "grid")]
    return code


def test_quick_plays_four_rows_in_two_runs_and_fails_for_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    short = replace(FINE, minutes=1.0)
    assert exit_code(monkeypatch, [[short, FINE]] * 2, "--quick") == 0
    assert "all aims are met" in capsys.readouterr().out
    slow = replace(FINE, shares=(0.5, 0.5))
    assert exit_code(monkeypatch, [[short, slow], Disappointed("no version")], "--quick") == 1
    said = capsys.readouterr().out
    assert "missed, home, two, 5 min: trained 0.5, aim 0.95" in said
    assert "missed, home, grid: no version" in said
    assert exit_code(monkeypatch, [[short, slow]] * 2, "--quick", "--blocking") == 0
