"""Requests: what is taken, and what is refused by name."""

import json
import time
from typing import Any

import pytest

from dipaco_swarm.gateway.dialect import (
    MOST_LISTS,
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
        ("tools", [1]),
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
    assert not hasattr(asked, "metadata")


def test_a_request_has_so_many_lists_and_a_text_as_many_brackets_as_it_likes() -> None:
    with pytest.raises(RefusedError, match="lists and objects"):
        completion(user=[[]] * (MOST_LISTS + 1))
    with pytest.raises(RefusedError, match="JSON"):
        parsed(CompletionRequest, b'{"model": "' + b'\\"[' * (MOST_LISTS + 1))
    code = '[{"a": "\\\\"}, "' * MOST_LISTS
    assert completion(prompt=code).prompt == [code]


def test_a_message_of_millions_of_wrong_parts_is_not_read_to_the_end() -> None:
    began = time.process_time()
    with pytest.raises(RefusedError, match="content"):
        parsed(ChatRequest, json.dumps({**CHAT, "messages": [{"role": "user", "content": [0] * 1_000_000}]}).encode())
    assert time.process_time() - began < 3


def test_each_answer_has_a_seed_that_peers_take() -> None:
    assert completion(seed=2**63 - 1).seed == 2**63 - 1
    assert completion(seed=2**63 - 2, n=2).n == 2
    with pytest.raises(RefusedError, match="seed is too large"):
        completion(seed=2**63 - 1, n=2)


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
    for wrong in (
        "run:path-4",
        "run:path-",
        "run:path--1",
        "run:path-" + "1" * 5000,
        "run:path-\u0663",
        "other",
        "",
        "run:3",
    ):
        with pytest.raises(RefusedError, match="does not exist") as refused:
            path_in(wrong, "run", 4)
        assert refused.value.status == 404
