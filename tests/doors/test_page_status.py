"""A status that a page tells is the one that the swarm tells, at once."""

import io
import json
import socket
import threading
import time
import urllib.error
import urllib.request
from contextlib import closing, suppress
from typing import Any

import pytest
from typer.testing import CliRunner

from benchmarks.page import Crowd, manifest_of, watch_of
from dipaco_swarm.cli import swarm as swarm_cli
from dipaco_swarm.client import page_status
from dipaco_swarm.client.page_status import status_at
from dipaco_swarm.errors import UnreachableError, UsageError
from dipaco_swarm.page.serving import serving
from dipaco_swarm.settings import Web
from tests.doors.examples_of_views import small_status

runner = CliRunner()


def test_it_is_what_the_node_has_seen() -> None:
    crowd = Crowd(2, 7)
    watch, seen = watch_of(crowd, 2, hours=1), crowd.status()
    watch.take(seen, manifest_of(2))
    with closing(watch.history), serving(watch, Web("127.0.0.1", 0)) as page:
        assert status_at(page.url) == seen
        said = runner.invoke(swarm_cli.app, ["status", "--page", page.url, "--json"])
        assert json.loads(said.output) == json.loads(seen.to_json())
        assert "staffed" in runner.invoke(swarm_cli.app, ["status", "--page", page.url]).output
        with pytest.raises(UsageError, match="answers /api/status with 404"):
            status_at(page.url + "api")
    with pytest.raises(UnreachableError, match="is the run's page served there"):
        status_at(page.url)


@pytest.mark.parametrize("said", [b"", b"[]", b'"words"', b'{"run": "small"}', b"\xff\xfe", b"[" * 99999])
def test_what_is_no_status_is_refused(said: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(urllib.request, "urlopen", lambda *_, **__: io.BytesIO(said))
    with pytest.raises(UsageError, match="is no page of a run of this version"):
        status_at("http://127.0.0.1:1")


def test_what_a_newer_page_says_besides_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    newer = json.dumps({**json.loads(small_status().to_json()), "more": 1}).encode()
    monkeypatch.setattr(urllib.request, "urlopen", lambda *_, **__: io.BytesIO(newer))
    assert status_at("http://127.0.0.1:1") == small_status()


@pytest.mark.parametrize("typed", [[], ["--page", "127.0.0.1:8080"], ["--page", "http://x", "--run", "dipaco:x"]])
def test_one_of_both_is_asked_and_an_address_is_one(typed: list[str]) -> None:
    ended = runner.invoke(swarm_cli.app, ["status", *typed])
    assert ended.exit_code == 2
    assert "--page" in ended.output


def served(monkeypatch: pytest.MonkeyPatch, **changes: Any) -> None:
    said = json.dumps({**json.loads(small_status().to_json()), **changes}).encode()
    monkeypatch.setattr(urllib.request, "urlopen", lambda *_, **__: io.BytesIO(said))


def test_whoever_serves_the_page_says_nothing_to_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    status = json.loads(small_status().to_json())
    status["modules"][0]["name"] = "[red]L0M0[/nope]"
    status["paths"][0]["modules"] = ["[/]", "\x9b2J"]
    served(monkeypatch, **status | {"run": "good\x1b]52;c;cm0=\x07\x1b[2J\u202eevil", "target_version": 0})
    said = runner.invoke(swarm_cli.app, ["status", "--page", "http://127.0.0.1:1"])
    assert said.exit_code == 0, said.exception
    assert "good?]52;c;cm0=??[2J?evil" in said.output
    assert "[red]L0M0[/nope]" in said.output
    assert not set(said.output) & set("\x1b\x07\x9b\u202e")


@pytest.mark.parametrize("change", [{"round_seconds": 1e400}, {"target_version": 10**400}, {"loss": float("nan")}])
def test_numbers_that_nothing_can_be_done_with_are_no_status(
    change: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    served(monkeypatch, **change)
    with pytest.raises(UsageError, match="is no page of a run of this version"):
        status_at("http://127.0.0.1:1")


def test_a_page_that_drips_is_waited_for_no_longer_than_any_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_status, "WHOLE_SECONDS", 0.5)
    over = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as door:

        def drip() -> None:
            line, _ = door.accept()
            with line, suppress(OSError):
                line.sendall(b"HTTP/1.0 200 OK\r\n\r\n")
                while not over.wait(0.05):
                    line.sendall(b" ")

        threading.Thread(target=drip, daemon=True).start()
        began = time.monotonic()
        with pytest.raises(UnreachableError, match="not whole after"):
            status_at(f"http://127.0.0.1:{door.getsockname()[1]}")
        assert time.monotonic() - began < 10
        over.set()
