"""What a home knows of all its lives, and when a stage is said to end."""

from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from dipaco_swarm.algorithm.paths import ModuleId, PathIndex
from dipaco_swarm.path_in_training import PathInTraining
from dipaco_swarm.peer.life import SHARE_FILE, Life
from dipaco_swarm.peer.stage_pace import StagePace
from dipaco_swarm.training.checkpoint import file_of, note_trained

ONE, TWO = ModuleId(0, 0), ModuleId(1, 1)


def test_tokens_of_all_paths_and_stages_are_counted(tmp_path: Path) -> None:
    assert Life(tmp_path).tokens_before == 0
    note_trained(file_of(tmp_path, 0, PathIndex(0)), 1000)
    note_trained(file_of(tmp_path, 1, PathIndex(3)), 234)
    assert Life(tmp_path).tokens_before == 1234


def test_the_share_is_of_what_the_modules_learned_in_this_stage_also_in_the_next_life(tmp_path: Path) -> None:
    life = Life(tmp_path)
    assert life.share(1, {ONE: 0, TWO: 0}) is None
    life.counted(1, {ONE: 100, TWO: 100})
    life.counted(1, {ONE: 100})
    assert life.share(1, {ONE: 400, TWO: 400}) == pytest.approx(0.375)
    assert Life(tmp_path).share(1, {ONE: 400, TWO: 400}) == pytest.approx(0.375)
    assert Life(tmp_path).share(2, {ONE: 400}) == 0
    life.counted(2, {ONE: 40})
    assert Life(tmp_path).share(2, {ONE: 400}) == pytest.approx(0.1)
    assert life.share(2, {ONE: 10}) == 1  # others have taken another history


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b'{"stage": null, "counted": 1}', b"\xff"])
def test_a_damaged_file_is_made_anew(tmp_path: Path, content: bytes) -> None:
    (tmp_path / SHARE_FILE).write_bytes(content)
    life = Life(tmp_path)
    assert life.share(0, {ONE: 10}) == 0
    life.counted(0, {ONE: 5})
    assert Life(tmp_path).share(0, {ONE: 10}) == pytest.approx(0.5)


def test_a_folder_that_cannot_be_written_to_ends_nothing(tmp_path: Path) -> None:
    (tmp_path / "home").write_bytes(b"")
    life = Life(tmp_path / "home")
    life.counted(0, {ONE: 5})
    assert life.share(0, {ONE: 10}) == pytest.approx(0.5)


def test_a_stage_ends_when_its_last_version_comes_at_the_pace_of_those_before() -> None:
    now = [0.0]
    pace = StagePace()

    def end_at(seconds: float, first: int, second: int, last: int | None = 10) -> tuple[float, float | None] | None:
        now[0] = seconds
        peer = SimpleNamespace(
            stage=1,
            path=0,
            modules=(ONE, TWO),
            progress={ONE: SimpleNamespace(version=first), TWO: SimpleNamespace(version=second)},
            rules=SimpleNamespace(last_versions={} if last is None else {ONE: last, TWO: last}),
            swarm=SimpleNamespace(clock=SimpleNamespace(monotonic=lambda: now[0])),
        )
        end = pace.end_of(cast(PathInTraining, peer))
        return None if end is None else (end.version, end.seconds)

    assert end_at(0, 2, 2, last=None) is None
    assert end_at(0, 2, 2) == (2, None)
    assert end_at(60, 3, 2) == (2.5, None)
    assert end_at(100, 3, 3) == (3, 700)
    assert end_at(150, 3, 3) == (3, 650)
    assert end_at(5000, 3, 3) == (3, 0)
    assert end_at(5001, 0, 0) == (0, None)  # another path, or another history
