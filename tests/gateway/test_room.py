"""How much of a gateway its clients may take."""

import contextlib
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from dipaco_swarm.gateway import app
from dipaco_swarm.gateway.app import AT_ONCE, build_app
from dipaco_swarm.gateway.asked import Piece, Task
from dipaco_swarm.training.writing import Written
from tests.gateway.scripted import Script, origin_of, served
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
