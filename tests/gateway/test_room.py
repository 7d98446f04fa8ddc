"""How much of a gateway its clients may take."""

import contextlib
import json
import socket
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from starlette.datastructures import URL
from starlette.requests import Request
from tokenizers import Tokenizer

from benchmarks.page import config_of
from dipaco_swarm.algorithm.paths import PathIndex
from dipaco_swarm.gateway import app, dialect
from dipaco_swarm.gateway.app import AT_ONCE, build_app
from dipaco_swarm.gateway.asked import Origin, Over, Piece, SilentError, Task, go_on_unless
from dipaco_swarm.gateway.own_paths import OwnPaths, _Loaded
from dipaco_swarm.training.modules import build_network
from dipaco_swarm.training.writing import Written, think
from tests.gateway.scripted import Script, origin_of, served
from tests.gateway.test_words import TOKENIZER
from tests.hub import until

ASKED = {"model": "small", "prompt": "x", "max_tokens": 4, "stream": True}


def test_so_many_are_answered_at_once_and_all_others_are_told_to_wait() -> None:
    script = Script("abcd")
    with served(lambda gateway: build_app(lambda: gateway), script) as url, httpx.Client(timeout=20) as client:
        script.gate.clear()
        place = f"{url}v1/completions"
        with ThreadPoolExecutor(AT_ONCE) as pool:
            streams = [pool.submit(httpx.post, place, json=ASKED, timeout=30) for _ in range(AT_ONCE)]
            until(lambda: len(script.asked) == AT_ONCE)
            refused = client.post(place, json=ASKED)
            assert refused.status_code == 429
            assert refused.json()["error"]["code"] == "rate_limit_exceeded"
            assert refused.headers["retry-after"] == "5"
            assert client.get(f"{url}health").status_code == 200  # the page and the list of models have room
            assert client.get(f"{url}about").status_code == 200
            script.gate.set()
            assert all("[DONE]" in stream.result().text for stream in streams)
        script.gate.clear()
        for _ in range(AT_ONCE + 3):  # who goes before the end takes no room for ever
            with client.stream("POST", place, json=ASKED) as stream:
                assert stream.status_code in (200, 429)
        script.gate.set()
        until(lambda: client.post(place, json=ASKED).status_code == 200)
        for wrong in ({"model": "other"}, {"prompt": ""}):
            for _ in range(AT_ONCE + 1):
                assert client.post(place, json={**ASKED, **wrong}).status_code in (400, 404)
        assert client.post(place, json=ASKED).status_code == 200


class Endless(Script):
    """Writes one token after the other, as slowly as a path does."""

    written = 0

    def write(self, task: Task) -> Iterator[Piece]:
        for _ in range(task.most_tokens):
            threading.Event().wait(0.01)
            self.written += 1
            yield Piece(Written(60, None), origin_of(task.path))


@pytest.mark.parametrize("stream", [False, True])
def test_nothing_is_written_for_who_has_gone(stream: bool) -> None:
    script = Endless()
    asked = {**ASKED, "max_tokens": 8192, "stream": stream}
    with served(lambda gateway: build_app(lambda: gateway), script) as url:
        with (
            contextlib.suppress(httpx.ReadTimeout),
            httpx.stream("POST", f"{url}v1/completions", json=asked, timeout=0.5) as answer,
        ):
            next(answer.iter_raw())
        last = [-1]

        def stands_still() -> bool:
            threading.Event().wait(0.1)
            before, last[0] = last[0], script.written
            return before == script.written

        until(stands_still)
        assert 0 < script.written < 4000


def test_a_request_is_for_so_many_tokens_in_all_and_comes_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "READ_SECONDS", 0.3)
    script = Script("abcd")
    script.gate.set()
    with served(lambda gateway: build_app(lambda: gateway), script) as url, httpx.Client(timeout=20) as client:
        place = f"{url}v1/completions"
        much = client.post(place, json={**ASKED, "prompt": ["x"] * 64, "n": 16, "max_tokens": 8192})
        assert much.status_code == 400
        assert "in all" in much.json()["error"]["message"]
        assert client.post(place, json={**ASKED, "prompt": ["x"] * 64, "max_tokens": 16}).status_code == 200

        def slowly() -> Iterator[bytes]:
            yield b'{"model": '
            threading.Event().wait(1.0)
            yield b'"small"}'

        assert client.post(place, content=slowly(), headers={"content-type": "application/json"}).status_code == 408


# ------------------------------------------------------------------------------------------- what is given back


TOO_MUCH: tuple[dict[str, Any], ...] = (
    {"prompt": ["x" * 600_000] * 2},
    {"prompt": "x" * 100_000, "n": 16},
    {"prompt": [[70] * 70_000] * 16},
)


def test_so_much_of_prompts_is_given_back() -> None:
    with served(lambda gateway: build_app(lambda: gateway), Script("abcd")) as url, httpx.Client(timeout=20) as client:
        asked = {"model": "small", "max_tokens": 0, "echo": True}

        def said(**more: Any) -> httpx.Response:
            return client.post(f"{url}v1/completions", json={**asked, **more})

        for much in TOO_MUCH:
            refused = said(**much)
            assert refused.status_code == 400
            assert refused.json()["error"]["param"] == "echo"
            assert said(**{**much, "echo": False}).status_code == 200
        refused = said(prompt=[[70] * 20_000] * 2, logprobs=1)
        assert refused.status_code == 400
        assert "32,768 tokens" in refused.json()["error"]["message"]
        whole = said(prompt="x" * 500_000, n=2)
        assert [choice["text"] for choice in whole.json()["choices"]] == ["x" * 500_000] * 2
        assert int(whole.headers["content-length"]) == len(whole.content) > 1_000_000
        assert whole.headers["content-type"] == "application/json"


def posted(url: str, body: bytes, length: int | None = None) -> socket.socket:
    """A client that reads nothing."""
    opened = socket.socket()
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    opened.connect(("127.0.0.1", httpx.URL(url).port or 0))
    head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: "
    opened.sendall(f"{head}{length or len(body)}\r\n\r\n".encode() + body)
    return opened


def test_an_answer_keeps_its_place_until_it_is_taken_or_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "AT_ONCE", 1)
    monkeypatch.setattr(app, "READ_SECONDS", 1.5)
    asked = {"model": "small", "prompt": "\U0001f600" * 1_000_000, "max_tokens": 0, "echo": True}
    long = json.dumps(asked, ensure_ascii=False).encode()
    with served(lambda gateway: build_app(lambda: gateway), Script("abcd")) as url, httpx.Client(timeout=20) as client:

        def status() -> int:
            return client.post(f"{url}v1/completions", json={**ASKED, "stream": False}).status_code

        with posted(url, long) as unread:
            assert unread.recv(10) == b"HTTP/1.1 2"
            assert status() == 429
            until(lambda: status() == 200)


def test_who_has_no_place_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "AT_ONCE", 1)
    threads: list[str] = []

    def parsed(*given: Any) -> Any:
        threads.append(threading.current_thread().name)
        return app_parsed(*given)

    app_parsed = dialect.parsed
    monkeypatch.setattr(app, "parsed", parsed)
    with served(lambda gateway: build_app(lambda: gateway), Script("abcd")) as url, httpx.Client(timeout=20) as client:
        with posted(url, b"{", 1000):
            until(lambda: client.post(f"{url}v1/completions", json=ASKED).status_code == 429)
        until(lambda: client.post(f"{url}v1/completions", json=ASKED).status_code == 200)
    assert all("worker" in name for name in threads)


class Thinking(Script):
    """Thinks until it is over."""

    begun = False
    ended = False

    def think(
        self, path: PathIndex, text: Sequence[int], alternatives: int, over: Over = lambda: False
    ) -> tuple[list[Written], Origin]:
        self.begun = True
        try:
            while True:
                threading.Event().wait(0.05)
                go_on_unless(over)
        finally:
            self.ended = True


def test_nothing_is_judged_for_who_has_gone() -> None:
    script = Thinking()
    with served(lambda gateway: build_app(lambda: gateway), script) as url:
        asked = {"model": "small", "prompt": "x", "max_tokens": 0, "echo": True, "logprobs": 1}
        with posted(url, json.dumps(asked).encode()):
            until(lambda: script.begun)
            assert not script.ended
        until(lambda: script.ended)


MARKED = Tokenizer.from_str(TOKENIZER.to_str())
MARKED.add_special_tokens(["</s>"])


def test_this_machine_judges_a_text_in_parts_until_it_is_over() -> None:
    network = build_network(config_of(2).model, 300, 0)
    loaded: Future[_Loaded] = Future()
    loaded.set_result(_Loaded(network, origin_of(0)))
    own = OwnPaths(SimpleNamespace(tokenizer=MARKED))  # type: ignore[arg-type]
    own._paths[PathIndex(0)] = loaded
    text = [5, 6, 7] * network.config.max_position_embeddings
    assert own.think(PathIndex(0), text, 2) == (think(network, text, 2), origin_of(0))
    looks: list[bool] = []

    def over() -> bool:
        looks.append(len(looks) == 2)
        return looks[-1]

    with pytest.raises(SilentError):
        own.think(PathIndex(0), text, 2, over)
    assert len(looks) == 3


def test_a_door_of_this_machine_is_called_by_its_names() -> None:
    with served(lambda gateway: build_app(lambda: gateway), Script("abcd")) as url:
        for name, status in (("localhost:80", 200), ("elsewhere.example", 400), ("testserver", 400)):
            assert httpx.get(f"{url}health", headers={"host": name}).status_code == status


def test_by_no_name_of_the_host_a_door_opens_that_wants_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Request, "url", URL("http://localhost/health"))  # starlette once made that of Host: x/health?
    script = Script("abcd")
    with served(lambda gateway: build_app(lambda: gateway, api_key="sesame"), script) as url:
        assert httpx.get(f"{url}health").status_code == 200
        assert httpx.get(f"{url}v1/models").status_code == 401
