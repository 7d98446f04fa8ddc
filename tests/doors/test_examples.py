"""The programs in examples/ run as their first lines say; one in a process of its own, which takes long to begin."""

import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from dipaco_swarm.run.file import parse_run_file
from dipaco_swarm.simulate import simulate
from tests.e2e.conftest import write_run_file

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_two_peers_in_memory_end_on_the_same_bytes() -> None:
    ended = subprocess.run(
        [sys.executable, str(EXAMPLES / "two_peers_in_memory.py")],
        capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    ada, ben, verdict = ended.stdout.splitlines()
    assert verdict == "same bytes"
    # mean of (-1, 0, -2, 0) and (0, -1, -2, 0), times sqrt(2) for two paths, times 0.7 * (1 + 0.9)
    assert "[0.9405, 0.9405, 3.7618, 0.0]" in ada
    assert ada.removeprefix("ada") == ben.removeprefix("ben")


@pytest.mark.timeout(200)
def test_route_and_generate_goes_on_from_the_prompt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run_file = write_run_file(tmp_path / "RUN.toml", min_peers=2, inner_steps=2, rounds=1)
    simulate(parse_run_file(run_file.read_text()), tmp_path, {"ada": 0, "ben": 3})
    program = str(EXAMPLES / "route_and_generate.py")
    monkeypatch.setattr(sys, "argv", [program, str(tmp_path / "bootstrap"), "def read_lines(path):"])
    capsys.readouterr()
    runpy.run_path(program, run_name="__main__")
    path, text = capsys.readouterr().out.split("\n", 1)
    assert path.startswith("path ")
    assert " of 4: L0M" in path
    assert text.startswith("def read_lines(path):")
    assert len(text) > len("def read_lines(path):\n")


def test_every_example_is_tested() -> None:
    tested = Path(__file__).read_text(encoding="utf-8")
    assert all(f'"{example.name}"' in tested for example in EXAMPLES.glob("*.py"))
