"""Requests: what is taken, and what is refused by name."""

import json
from typing import Any

import pytest

from dipaco_swarm.gateway.dialect import (
    MOST_PROMPTS,
    ChatRequest,
    CompletionRequest,
    RefusedError,
    parsed,
    path_in,
)

BARE = {"model": "run", "prompt": "a"}
CHAT = {"model": "run", "messages": [{"role": "user", "content": "a"}]}


def completion(**changed: Any) -> CompletionRequest:
    asked: CompletionRequest = parsed(CompletionRequest, json.dumps({**BARE, **changed}).encode())
    return asked


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [
        ("a", ["a"]),
        (["a", "b"], ["a", "b"]),
        ([1, 2], [(1, 2)]),
        ([[1], [2, 3]], [(1,), (2, 3)]),
        ([], None),
        ([1, -2], None),
        ([True], None),
        ([["a"]], None),
        (7, None),
        ({"text": "a"}, None),
        (["a"] * (MOST_PROMPTS + 1), None),
        ("a" * ((1 << 20) + 1), None),
        (None, None),
    ],
)
def test_a_prompt_is_a_text_or_tokens_or_several(prompt: object, prompts: list[object] | None) -> None:
    if prompts is not None:
        assert completion(prompt=prompt).prompt == prompts
        return
    with pytest.raises(RefusedError, match="prompt: ") as refused:
        completion(prompt=prompt)
    assert refused.value.param == "prompt"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("temperature", -1),
        ("temperature", 1e9),
        ("top_p", 0),
        ("top_p", 1.5),
        ("top_k", -1),
        ("n", 0),
        ("n", 1000),
        ("seed", 2**70),
        ("seed", "x"),
        ("stop", ""),
        ("stop", ["a"] * 17),
        ("max_tokens", -1),
        ("max_tokens", 10**9),
        ("logprobs", 21),
        ("best_of", 3),
        ("reroute", 0),
        ("presence_penalty", 0.5),
        ("frequency_penalty", -1),
        ("logit_bias", {"5": 1}),
        ("suffix", "end"),
        ("model", 7),
        ("stream", "perhaps"),
    ],
)
def test_what_cannot_be_given_is_refused_by_name(key: str, value: object) -> None:
    with pytest.raises(RefusedError, match=key):
        completion(**{key: value})


def test_keys_that_ask_for_nothing_are_passed_over() -> None:
    asked = completion(
        user="me", presence_penalty=0, frequency_penalty=0.0, logit_bias=None, suffix=None, best_of=1, metadata={"a": 1}
    )
    assert asked.most_tokens == 16
    assert asked.sampling.temperature == 1.0
    assert asked.sampling.top_k is None


@pytest.mark.parametrize(
    "changed",
    [
        {"messages": []},
        {"messages": [{"role": "tool", "content": "a"}]},
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
        {"tools": [{"type": "function"}]},
        {"response_format": {"type": "json_object"}},
        {"top_logprobs": 50},
        {"max_completion_tokens": 0},
    ],
)
def test_a_conversation_is_texts(changed: dict[str, Any]) -> None:
    assert parsed(ChatRequest, json.dumps(CHAT).encode()).messages[0].text == "a"
    with pytest.raises(RefusedError, match=next(iter(changed))):
        parsed(ChatRequest, json.dumps({**CHAT, **changed}).encode())


def test_a_path_has_a_name_of_its_own() -> None:
    assert path_in("run", "run", 4) is None
    assert path_in("run:path-3", "run", 4) == 3
    for wrong in ("run:path-4", "run:path-", "run:path--1", "run:path-\u0663", "other", "", "run:3"):
        with pytest.raises(RefusedError, match="does not exist") as refused:
            path_in(wrong, "run", 4)
        assert refused.value.status == 404
