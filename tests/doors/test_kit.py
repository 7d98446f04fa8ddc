"""The operator's kit says what the program understands."""

import json
import re
import shutil
import subprocess
import time
from pathlib import Path

import pytest
from starlette.testclient import TestClient
from typer.testing import CliRunner

from benchmarks.page import Crowd, manifest_of
from dipaco_swarm.cli import bootstrap as bootstrap_cli
from dipaco_swarm.events.volunteer import BestSnapshot
from dipaco_swarm.page.app import Application
from dipaco_swarm.page.board import Board
from dipaco_swarm.page.history import History
from dipaco_swarm.page.watch import Watch

KIT = Path(__file__).parents[2] / "bootstrap"


@pytest.mark.parametrize("name", ["README.md", "compose.yaml", "dipaco-bootstrap.service", "bootstrap.env.example"])
def test_every_option_in_the_kit_exists(name: str) -> None:
    known = CliRunner().invoke(bootstrap_cli.app, ["serve", "--help"]).output
    lines = [line for line in (KIT / name).read_text(encoding="utf-8").splitlines() if not line.startswith("docker")]
    ours = re.compile(r"(?<=[ \"=])--(?:home|screen|listen|announce|until-[a-z]+|run-[a-z]+|force|web)\b")
    used = {option for line in lines for option in ours.findall(line)}
    assert used, f"{name} shows how to start the node"
    assert used <= set(re.findall(r"--[a-z-]+", known))


def test_every_file_that_the_kit_names_is_there() -> None:
    text = (KIT / "README.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (.+?) \|", text, re.MULTILINE)
    named = [name for row in rows for name in re.findall(r"`(.+?)`", row)]
    assert len(named) >= 6
    for name in named:
        assert (KIT / name).exists(), name


def test_the_container_copies_only_what_the_context_lets_through() -> None:
    allowed = {line[1:] for line in (KIT.parent / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copied = re.findall(r"^COPY (.+) \S+$", (KIT / "Dockerfile").read_text(), re.MULTILINE)
    assert {name for names in copied for name in names.split()} == allowed
    assert all((KIT.parent / name).exists() for name in allowed)


def test_compose_accepts_the_kit(tmp_path: Path) -> None:
    if not shutil.which("docker") or subprocess.run(["docker", "compose", "version"], capture_output=True).returncode:
        pytest.skip("docker compose is not installed")
    for name in ("compose.yaml", "Dockerfile"):
        shutil.copy(KIT / name, tmp_path)
    (tmp_path / ".env").write_text((KIT / "bootstrap.env.example").read_text(encoding="utf-8"))
    ended = subprocess.run(
        ["docker", "compose", "config"], cwd=tmp_path, capture_output=True, text=True, timeout=30, check=False
    )
    assert ended.returncode == 0, ended.stderr
    assert "/ip4/0.0.0.0/tcp/4001" in ended.stdout


def test_the_dashboard_draws_what_the_node_says() -> None:
    """What Grafana needs of a dashboard to load it, and that every query asks for a metric that there is."""
    board = json.loads((KIT / "grafana-dashboard.json").read_text(encoding="utf-8"))
    assert board["schemaVersion"] >= 36
    assert board["uid"]
    assert board["title"]
    assert board["time"]["from"]
    variables = {each["name"]: each["type"] for each in board["templating"]["list"]}
    assert variables == {"datasource": "datasource", "job": "query"}
    panels = board["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels) > 10
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        assert panel["type"] in {"stat", "timeseries"}
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken, f"{panel['title']} lies over another"
        assert max(x for x, _ in cells) < 24
        taken |= cells
    watch = Watch(History(None), Board(), "a" * 32, ())
    watch.event(BestSnapshot(0, 3.0, {"L0M0": 1}, kept=True))
    for second in range(3):  # so that there are rates
        watch.take(Crowd(2, 4).status(10.0 + 8 * second), manifest_of(2))
        time.sleep(0.01)
    said = TestClient(Application(watch).asgi()).get("/metrics").text
    asked = {name for panel in panels for each in panel["targets"] for name in re.findall(r"dipaco_\w+", each["expr"])}
    assert len(asked) > 15
    assert {name for name in asked if f"\n{name}" not in said} <= {"dipaco_trained_ratio"}  # no peer says it here


def test_what_is_scraped_passes_prometheus_own_check() -> None:
    if not shutil.which("promtool"):
        pytest.skip("promtool is not installed")
    watch = Watch(History(None), Board(), "a" * 32, ())
    watch.take(Crowd(4, 20).status(), manifest_of(4))
    text = TestClient(Application(watch).asgi()).get("/metrics").content
    checked = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, timeout=60, check=False)
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, b"", b"")
