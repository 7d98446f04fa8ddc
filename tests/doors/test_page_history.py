"""What is written down for a page's curves: from the beginning of a run, bounded, and there after a kill."""

import os
import signal
import subprocess
import sys
import textwrap
from dataclasses import replace
from pathlib import Path

import pytest

from dipaco_swarm.page import history as histories
from dipaco_swarm.page.history import MOST_EVENTS, TIERS, Contributor, History, Sample, merged, thinned, tier_of

BEGUN = 1_800_000_000.0
SAMPLE = Sample(at=BEGUN, stage=1, tokens=100, version=2.5, peers=3, staffed=2, speed=10.0, loss=4.0, paths=(4.5, None))


def rows(history: History) -> int:
    return int(history._database.execute("SELECT count(*) FROM samples").fetchone()[0])


def test_a_sample_comes_back_as_it_was_written(tmp_path: Path) -> None:
    history = History(tmp_path / "history.sqlite")
    history.note(SAMPLE)
    assert history.samples(BEGUN - 1, BEGUN + 1, 0) == [SAMPLE]
    assert history.since() == BEGUN


def test_of_a_year_there_is_the_beginning_and_not_more_than_the_tiers_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    tiers = (histories.Tier(5, 12), histories.Tier(60, 10), histories.Tier(600, 10), histories.Tier(7200, 8760))
    monkeypatch.setattr(histories, "TIERS", tiers)
    history, day = History(None), 24 * 3600
    for at in range(0, 10 * day, 300):
        history.note(replace(SAMPLE, at=BEGUN + at, tokens=at, loss=at / day))
    assert rows(history) <= sum(tier.kept + 2 for tier in tiers[:3]) + 10 * day / 7200 + 1
    found = history.samples(BEGUN, BEGUN + 10 * day, 0)
    assert found[0].at == BEGUN
    assert found[0].loss == pytest.approx(0.04, abs=0.01)
    assert [sample.at for sample in found] == sorted({sample.at for sample in found})
    assert found[-1].tokens == 10 * day - 300


def test_a_coarser_sample_is_the_mean_of_what_was_known_and_the_last_count() -> None:
    samples = [
        replace(SAMPLE, loss=None, tokens=5, paths=(1.0,)),
        replace(SAMPLE, loss=3.0, tokens=7, peers=5, paths=(1.0, None)),
        replace(SAMPLE, loss=4.0, tokens=9, peers=7, paths=(3.0, 2.0)),
    ]
    one = merged(samples)
    assert (one.loss, one.tokens, one.peers) == (3.5, 9, 5)
    assert one.paths == (2.0, 2.0)  # of the stage that the last one is in


def test_a_curve_has_no_more_points_than_a_screen() -> None:
    samples = [replace(SAMPLE, at=BEGUN + i) for i in range(1001)]
    assert len(thinned(samples, 400)) <= 400
    assert thinned([], 400) == []
    assert [tier_of(seconds, 800) for seconds in (60, 7200, 86400 * 5, 86400 * 400)] == [0, 1, 2, 3]


def test_events_and_peers_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(histories, "MOST_EVENTS", 10)
    monkeypatch.setattr(histories, "MOST_PEERS", 3)
    history = History(None)
    for i in range(30):
        history.note_event(float(i), "logged", f"line {i} " + "x" * 1000)
    assert [event.line[:7] for event in history.events(100)] == [f"line {i}" for i in range(20, 30)]
    assert max(len(event.line) for event in history.events(100)) == 500
    assert MOST_EVENTS > 100
    history.note_contributors(Contributor(f"peer {i}", "", 0, 1.0, 2.0, 3.0, float(i)) for i in range(9))
    assert sorted(each.peer for each in history.contributors()) == ["peer 6", "peer 7", "peer 8"]


def test_what_was_written_is_there_after_kill_9(tmp_path: Path) -> None:
    """A real process writes a sample each millisecond until it is killed in the middle of it."""
    file = tmp_path / "history.sqlite"
    program = f"""
        from dataclasses import replace
        from pathlib import Path
        from tests.doors.test_page_history import BEGUN, SAMPLE
        from dipaco_swarm.page.history import History
        history = History(Path({str(file)!r}))
        for i in range(10**6):
            history.note(replace(SAMPLE, at=BEGUN + 5 * i, tokens=i))
            history.remember("tokens", i)
            print(i, flush=True)
    """
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    assert process.stdout is not None
    for line in process.stdout:
        if int(line) >= 100:
            break
    os.kill(process.pid, signal.SIGKILL)
    last = int(line) if not (rest := process.stdout.read().split()) else int(rest[-1])
    process.wait()

    history = History(file)
    found = history.samples(BEGUN, BEGUN + 10**7, 0)
    assert found[0].at == BEGUN
    assert [sample.tokens for sample in found][: last + 1] == list(range(last + 1))
    assert history.remembered()["tokens"] >= last
    history.note(replace(SAMPLE, at=BEGUN + 10**6))
    assert history.since() == BEGUN


def test_a_damaged_file_is_set_aside_and_begun_anew(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "history.sqlite"
    file.write_bytes(b"this is no database, and never was" * 100)
    history = History(file)
    history.note(SAMPLE)
    assert history.samples(BEGUN - 1, BEGUN + 1, 0) == [SAMPLE]
    assert (tmp_path / "history.damaged").read_bytes().startswith(b"this is no")
    assert "is damaged, and set aside as history.damaged" in caplog.text


def test_a_full_disk_costs_a_curve_and_not_the_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    history = History(tmp_path / "history.sqlite")
    pages = history._database.execute("PRAGMA page_count").fetchone()[0]
    history._database.execute(f"PRAGMA max_page_count = {pages}")
    for i in range(2000):
        history.note_event(float(i), "logged", "x" * 400)
    assert caplog.text.count("the history cannot be written just now") == 1
    history._database.execute("PRAGMA max_page_count = 1000000")
    history.note_event(1.0, "logged", "there is room again")
    assert history.events(1)[0].line == "there is room again"


def test_a_folder_that_cannot_be_written_is_said_and_nothing_ends(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    history = History(tmp_path / "missing" / "history.sqlite")
    history.note(SAMPLE)
    assert len(history.samples(BEGUN - 1, BEGUN + 1, TIERS.index(TIERS[0]))) == 1
    assert "the history cannot be written" in caplog.text
