"""curl, as the user's page has it."""

import json
import shutil
import subprocess
from typing import Any

import pytest

from dipaco_swarm.gateway.app import build_app
from tests.gateway.scripted import Script, served
from tests.gateway.test_chat_page import TEMPLATE

pytestmark = pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")


def curl(address: str, place: str, asked: dict[str, Any] | None = None, key: str = "sesame") -> tuple[int, str]:
    """The status, and what is said."""
    words = ["curl", "-sS", "-w", "\n%{http_code}", f"{address}{place}", "-H", f"Authorization: Bearer {key}"]
    if asked is not None:
        words += ["-H", "Content-Type: application/json", "-d", json.dumps({"model": "small", **asked})]
    said = subprocess.run(words, capture_output=True, text=True, check=True, timeout=30).stdout
    text, _, status = said.rpartition("\n")
    return int(status), text


def test_curl_asks_for_texts_conversations_and_models() -> None:
    text, chat = {"prompt": "x", "max_tokens": 40}, {"messages": [{"role": "user", "content": "x"}], "max_tokens": 40}

    def app(gateway: Any) -> Any:
        return build_app(lambda: gateway, api_key="sesame", template=TEMPLATE)

    with served(app, Script("an answer")) as address:
        assert curl(address, "health", key="") == (200, '{"status":"ok"}')
        status, said = curl(address, "v1/models")
        assert (status, json.loads(said)["data"][0]["id"]) == (200, "small")
        for place, asked in (("v1/completions", text), ("v1/chat/completions", chat)):
            status, said = curl(address, place, asked)
            (choice,) = json.loads(said)["choices"]
            assert (status, choice.get("text", choice.get("message", {}).get("content"))) == (200, "an answer")
            assert choice["finish_reason"] == "stop"
            status, said = curl(address, place, {**asked, "stream": True})
            *parts, done = [line.removeprefix("data: ") for line in said.splitlines() if line]
            choices = [each for part in parts for each in json.loads(part)["choices"]]
            pieces = [each["text"] if "text" in each else each["delta"].get("content", "") for each in choices]
            assert (status, "".join(pieces), done) == (200, "an answer", "[DONE]")
            status, said = curl(address, place, asked, key="wrong")
            assert (status, json.loads(said)["error"]["code"]) == (401, "no_key")
            assert curl(address, place, {**asked, "tools": [1]})[0] == 400
