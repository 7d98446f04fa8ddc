import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models

from dipaco_swarm.errors import DataError, ManifestError
from dipaco_swarm.training.encoding import encoder
from dipaco_swarm.training.tokenizer import (
    END_OF_TEXT,
    end_of_text_id,
    load_tokenizer,
    prompt_ids,
    tokenizer_from_path,
    train_tokenizer,
    vocabulary_size,
)

TEXTS = ["def walk(tree):\n    return tree\n" * 20, "the quick brown fox jumps over the lazy dog " * 20]


def test_any_text_comes_back_exactly() -> None:
    tokenizer = load_tokenizer(train_tokenizer(TEXTS, 300))
    text = "  Grüße, 世界 🙂\t\0 def\r\n"
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    assert tokenizer.decode(ids) == text
    assert max(ids) < vocabulary_size(tokenizer) == 300


def test_the_same_texts_give_the_same_bytes() -> None:
    assert train_tokenizer(iter(TEXTS), 320) == train_tokenizer(TEXTS, 320)


def test_the_end_of_text_is_one_token_of_its_own() -> None:
    tokenizer = load_tokenizer(train_tokenizer(TEXTS, 300))
    assert tokenizer.encode(END_OF_TEXT).ids == [end_of_text_id(tokenizer)]


def test_a_vocabulary_below_the_bytes_is_refused() -> None:
    with pytest.raises(DataError, match="vocab_size=256 is too small; give 257"):
        train_tokenizer(TEXTS, 256)
    assert vocabulary_size(load_tokenizer(train_tokenizer(TEXTS, 257))) == 257


def test_no_text_trains_no_tokenizer() -> None:
    with pytest.raises(DataError, match="no text to train"):
        train_tokenizer(["", ""], 300)


@pytest.mark.parametrize("data", [b"", b"\xff\xff", b"{}", b'{"model": 3}'])
def test_foreign_bytes_are_not_a_tokenizer(data: bytes) -> None:
    with pytest.raises(ManifestError, match="cannot be read"):
        load_tokenizer(data)


def test_a_tokenizer_without_an_end_of_text_is_refused() -> None:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.add_tokens(["a"])
    with pytest.raises(ManifestError, match="no end-of-text token"):
        load_tokenizer(tokenizer.to_str().encode())


def test_a_saved_truncation_is_switched_off() -> None:
    tokenizer = Tokenizer.from_str(train_tokenizer(TEXTS, 300).decode())
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=4)
    loaded = load_tokenizer(tokenizer.to_str().encode())
    assert len(loaded.encode(TEXTS[0]).ids) > 4
    assert len(loaded.encode("a").ids) == 1


def test_an_existing_tokenizer_is_found_in_its_folder(tmp_path: Path) -> None:
    data = train_tokenizer(TEXTS, 300)
    (tmp_path / "tokenizer.json").write_bytes(data)
    assert tokenizer_from_path(tmp_path) == data
    assert tokenizer_from_path(str(tmp_path / "tokenizer.json")) == data
    with pytest.raises(DataError, match=r"elsewhere.*cannot be read"):
        tokenizer_from_path(tmp_path / "elsewhere")
    (tmp_path / "tokenizer.json").write_bytes(b"{")
    with pytest.raises(ManifestError):
        tokenizer_from_path(tmp_path)


def test_ids_that_would_make_a_huge_embedding_are_refused() -> None:
    huge = json.loads(train_tokenizer(["some text"], 300))
    huge["model"]["vocab"]["far"] = 2_000_000_000
    with pytest.raises(ManifestError, match="ids up to 2,000,000,000"):
        load_tokenizer(json.dumps(huge).encode())


def test_a_tokenizer_that_breaks_off_is_its_makers_fault(capfd: pytest.CaptureFixture[str]) -> None:
    slow = json.loads(train_tokenizer(["some text"], 300))
    forever = {"type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Isolated", "invert": False}
    slow["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [forever, slow["pre_tokenizer"]]}
    tokenizer = load_tokenizer(json.dumps(slow).encode())
    text = "a" * 40 + "b"  # the pattern tries each way to divide the letters
    for encode in (lambda: prompt_ids(tokenizer, text), lambda: encoder(tokenizer)([text])):
        with pytest.raises(ManifestError, match="fails on a text"):
            encode()
    assert "panicked" in capfd.readouterr().err  # the library says so itself
