"""How much of a gateway its clients may take."""

from concurrent.futures import ThreadPoolExecutor

import httpx

from dipaco_swarm.gateway.app import AT_ONCE, build_app
from tests.gateway.scripted import Script, served
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
