"""Tokens as text, and words that end it."""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from tokenizers.pre_tokenizers import ByteLevel

from dipaco_swarm.gateway import words
from dipaco_swarm.gateway.words import Words


def bytes_tokenizer() -> Tokenizer:
    """One token a byte."""
    alphabet = sorted(ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: i for i, letter in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


TOKENIZER = bytes_tokenizer()


def told(text: str, stop: Sequence[str]) -> tuple[list[str], bool]:
    """What comes out, token by token, and whether a stop word came."""
    words, parts = Words(TOKENIZER, [], tuple(stop)), []
    for token in TOKENIZER.encode(text).ids:
        parts.append(words.take(token))
        if words.stopped:
            break
    return [*parts, words.rest()], words.stopped


TEXTS = st.text("abäß \n", max_size=30)


@given(TEXTS, st.lists(st.text("abä\n", min_size=1, max_size=4), max_size=3))
@settings(max_examples=300, deadline=None)
def test_all_that_comes_before_the_first_stop_word_is_told_and_nothing_else(text: str, stop: list[str]) -> None:
    parts, stopped = told(text, stop)
    ends = [(text.find(word) + len(word), text.find(word)) for word in stop if word in text]
    assert stopped == bool(ends)
    if not ends:
        assert "".join(parts) == text
    else:  # the word that is whole first; of two that are whole at once the one that began first
        first = min(end for end, _ in ends)
        assert "".join(parts) == text[: min(begin for end, begin in ends if end == first)]


def test_only_what_may_be_a_stop_word_is_held_back() -> None:
    parts, stopped = told("one\ntwo\n\nthree", ["\n\n"])
    assert parts[:5] == ["o", "n", "e", "", "\nt"]
    assert "".join(parts) == "one\ntwo"
    assert stopped


def test_what_was_held_back_in_vain_comes_at_the_end() -> None:
    assert told("a stop", ["stop!"]) == (["a", " ", "", "", "", "", "stop"], False)


def test_what_comes_before_an_answer_is_not_decoded_again_with_each_token() -> None:
    decoded: list[int] = []

    class Stream:
        def __init__(self, ids: Sequence[int], skip_special_tokens: bool) -> None:
            decoded.append(len(ids))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(words, "DecodeStream", Stream)
        Words(TOKENIZER, [60] * 200_000, ())
    assert decoded == [words.TAIL]


@given(st.text("abäß漢 \n", min_size=80, max_size=120), TEXTS)
@settings(max_examples=100, deadline=None)
def test_an_answer_to_a_long_text_is_what_it_is_to_a_short_one(before: str, text: str) -> None:
    answer = Words(TOKENIZER, TOKENIZER.encode(before).ids, ())
    assert "".join(map(answer.take, TOKENIZER.encode(text).ids)) == text
