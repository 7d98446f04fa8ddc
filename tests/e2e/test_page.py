"""The page of a real node: there while it serves, and after kill -9 its curves begin where the run did."""

import json
import re
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests import programs
from tests.e2e.conftest import write_run_file
from tests.hub import until

pytestmark = pytest.mark.swarm


def asked(url: str, place: str) -> Any:
    with urllib.request.urlopen(url + place, timeout=10) as answer:
        return json.load(answer)


def url_in(log: Path) -> str:
    """Where the node says that its page is, once it can be looked at."""

    def said() -> list[str]:
        return re.findall(r"a page of the run: (http://\S+/) \(from this machine\)", log.read_text())

    until(lambda: bool(said()), 60)
    until(lambda: "run address: " in log.read_text(), 60)
    return said()[-1]


def test_a_node_shows_its_run_and_knows_it_after_a_kill(tmp_path: Path) -> None:
    run_file = write_run_file(tmp_path / "run.toml")
    typed: list[str | Path] = [
        "serve",
        run_file,
        "--home",
        tmp_path / "node",
        "--listen",
        "/ip4/127.0.0.1/tcp/0",
        "--screen",
        "plain",
    ]
    typed += ["--web", "127.0.0.1:0"]
    node = programs.start("bootstrap", typed, tmp_path / "first.log")
    try:
        url = url_in(tmp_path / "first.log")
        until(lambda: len(asked(url, "api/history")["at"]) > 1, 60)
        status = asked(url, "api/status")
        assert (status["stage"], status["peers"]) == (0, 0)
        begun = asked(url, "api/history")["at"][0]
        with urllib.request.urlopen(url, timeout=10) as page:
            assert b"<title>" in page.read()
    finally:
        node.kill()
        node.wait(10)

    node = programs.start("bootstrap", typed, tmp_path / "second.log")
    try:
        url = url_in(tmp_path / "second.log")
        until(lambda: asked(url, "api/history")["at"][-1] > begun + 5, 60)
        assert asked(url, "api/history")["at"][0] == begun
        stream = urllib.request.urlopen(url + "api/events", timeout=10)  # who looks does not keep it from ending
        assert stream.readline() == b"retry: 3000\n"
        node.terminate()
        assert node.wait(20) == 0
    finally:
        node.kill()
    assert "the node is down" in (tmp_path / "second.log").read_text()


def test_a_page_that_cannot_be_served_costs_no_waiting(tmp_path: Path) -> None:
    run_file = write_run_file(tmp_path / "run.toml")
    ended = programs.run("bootstrap", ["serve", run_file, "--home", tmp_path / "node", "--web", "203.0.113.7:8080"])
    assert ended.returncode == 2
    assert "--web 203.0.113.7:8080: this machine does not have the address 203.0.113.7" in ended.stderr
    ended = programs.run("bootstrap", ["serve", run_file, "--home", tmp_path / "node", "--web", "8080"])
    assert (ended.returncode, "is not HOST:PORT" in ended.stderr) == (2, True)
