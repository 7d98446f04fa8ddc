"""The operator's kit says what the program understands."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dipaco_swarm.cli import bootstrap as bootstrap_cli

KIT = Path(__file__).parents[2] / "bootstrap"


@pytest.mark.parametrize("name", ["README.md", "compose.yaml", "dipaco-bootstrap.service", "bootstrap.env.example"])
def test_every_option_in_the_kit_exists(name: str) -> None:
    known = CliRunner().invoke(bootstrap_cli.app, ["serve", "--help"]).output
    lines = [line for line in (KIT / name).read_text(encoding="utf-8").splitlines() if not line.startswith("docker")]
    ours = re.compile(r"(?<=[ \"=])--(?:home|screen|listen|announce|until-[a-z]+|run-[a-z]+|force)\b")
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
