"""A status that a page tells is the one that the swarm tells, at once."""

import io
import json
import urllib.error
import urllib.request
from contextlib import closing

import pytest
from typer.testing import CliRunner

from benchmarks.page import Crowd, manifest_of, watch_of
from dipaco_swarm.cli import swarm as swarm_cli
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


@pytest.mark.parametrize("said", [b"", b"[]", b'"words"', b'{"run": "small"}', b"\xff\xfe"])
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
