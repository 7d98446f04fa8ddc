"""The run's tokenizer: published as the bytes of a `tokenizer.json`.

Either an existing tokenizer, or a byte-level BPE that the bootstrap node trains on a sample of the data. Peers fetch
the bytes as a blob, so that all cut text into the same tokens. What its own rules put before and after a text stands
before and after every document.
"""

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from dipaco_swarm.errors import DataError, ManifestError

END_OF_TEXT = "<|endoftext|>"
"""Stands between documents that share a training sequence."""

END_OF_TEXT_NAMES = (END_OF_TEXT, "</s>", "<|end_of_text|>", "<eos>", "[SEP]")
"""What the tokenizers of GPT, Llama 2, Llama 3, Gemma and BERT call it."""

A_TEXT = "a"
"""To see what a tokenizer puts around it."""

GROWING = ("normalizer", "pre_tokenizer", "decoder")
GROWTH = {"ByteLevel": 2.0, "NFD": 3.0, "NFKD": 3.0, "NFKC": 3.0, "Precompiled": 8.0, "BertNormalizer": 3.0}
"""Steps of a tokenizer that make a text longer than it was, and how many times at most, roughly; the others do not."""
MOST_GROWTH = 128
"""Of all steps together, as a product. Those in use have some dozens."""
LARGEST_VOCABULARY = 1 << 20
"""Ids above that would make an embedding of as many rows, of one line in a file; four times what is in use."""
SMALLEST_VOCABULARY = 257  # 256 bytes and the end of text


def train_tokenizer(texts: Iterable[str], vocab_size: int) -> bytes:
    """Train a byte-level BPE of at most `vocab_size` tokens; the same texts give the same bytes.

    Any text can be encoded, and decoding gives it back exactly. Raises DataError when there is no text or the
    vocabulary is smaller than an alphabet of bytes.
    """
    if vocab_size < SMALLEST_VOCABULARY:
        raise DataError(f"tokenizer.vocab_size={vocab_size} is too small; give {SMALLEST_VOCABULARY} or more")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    sample = [text for text in texts if text]
    if not sample:
        raise DataError("there is no text to train a tokenizer on; check data.source and data.path")
    tokenizer.train_from_iterator(sample, trainer)
    return tokenizer.to_str().encode()


def load_tokenizer(data: bytes) -> Tokenizer:
    """Read a published tokenizer, and switch off any truncation and padding that was saved with it.

    Raises ManifestError when the bytes are not a tokenizer, its ids are too large, or it has no end-of-text token.
    """
    if (growth := _most_growth(data)) > MOST_GROWTH:
        raise ManifestError(
            f"the published tokenizer may make a text {growth:,.0f} times as long before it is cut into tokens; "
            f"{MOST_GROWTH} is the most that is taken"
        )
    with without_panics():
        try:
            tokenizer = Tokenizer.from_str(data.decode("utf-8"))
        except Exception as error:  # noqa: BLE001 - the library raises bare Exception for anything it cannot read
            raise ManifestError(
                f"the published tokenizer cannot be read ({str(error)[:200]}); it must be a tokenizer.json of the "
                "tokenizers library"
            ) from None
    if (tokens := vocabulary_size(tokenizer)) > LARGEST_VOCABULARY:
        raise ManifestError(
            f"the tokenizer has ids up to {tokens - 1:,}; at most {LARGEST_VOCABULARY:,} tokens can be used"
        )
    tokenizer.no_truncation()
    tokenizer.no_padding()
    end_of_text_id(tokenizer)
    return tokenizer


def _most_growth(data: bytes) -> float:
    """How many times as long a text may become by the steps before and after the tokens; 1 for what is no tokenizer.

    The library does them all at once in memory, and ends the process where there is none left.
    """
    try:
        said = json.loads(data)
    except (ValueError, RecursionError):
        return 1.0
    growth, left = 1.0, [said.get(part) for part in GROWING] if isinstance(said, dict) else []
    while left:
        step = left.pop()
        if isinstance(step, list):
            left += step
        elif isinstance(step, dict):
            growth = min(growth * _growth(step), MOST_GROWTH**2)
            left += [inner for inner in step.values() if isinstance(inner, list)]
    return growth


def _growth(step: dict[str, object]) -> float:
    match step:
        case {"type": "Replace", "pattern": {"String": str(pattern)}, "content": str(content)} if pattern:
            return max(1.0, len(content.encode()) / len(pattern.encode()))
        case {"type": "Replace", "content": str(content)}:
            return 1.0 + len(content.encode())  # a pattern may be found between all letters
        case {"type": str(kind)}:
            return GROWTH.get(kind, 1.0)
    return 1.0


@contextmanager
def without_panics() -> Iterator[None]:
    """A tokenizer that breaks off in the middle is the fault of who made it: raises ManifestError.

    The library ends so with a pattern that takes for ever on some text, by what is no `Exception`.
    """
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise ManifestError(
            f"the run's tokenizer fails on a text ({str(error)[:200]}); tell the operator to choose another one"
        ) from None


def tokenizer_from_path(path: str | Path) -> bytes:
    """The bytes of an existing tokenizer: a tokenizer.json, or a folder that has one.

    Raises DataError when there is none, ManifestError when it cannot be used.
    """
    file = Path(path).expanduser()
    file = file / "tokenizer.json" if file.is_dir() else file
    try:
        data = file.read_bytes()
    except OSError as error:
        raise DataError(
            f'tokenizer.path="{path}" cannot be read ({error.strerror}); give a folder with a tokenizer.json, or leave '
            "it out and a tokenizer is trained on the data"
        ) from None
    load_tokenizer(data)
    return data


def end_of_text_id(tokenizer: Tokenizer) -> int:
    """The id of the token that ends a document. Raises ManifestError when the tokenizer has none."""
    _, after = _marks(tokenizer)
    if after:
        return after[-1]
    for name in END_OF_TEXT_NAMES:
        token = tokenizer.token_to_id(name)
        if token is not None:
            return token
    raise ManifestError(
        f"the tokenizer has no end-of-text token; add one of {', '.join(END_OF_TEXT_NAMES)} to it or choose another"
    )


def begin_of_text_ids(tokenizer: Tokenizer) -> list[int]:
    """What stands before every text, as the tokenizer's own rules say: one token of Llama, Gemma, Mistral; or none."""
    return _marks(tokenizer)[0]


def prompt_ids(tokenizer: Tokenizer, text: str) -> list[int]:
    """A text that is to be gone on from, as documents begin. Empty when there is no text."""
    with without_panics():
        ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
    return [*begin_of_text_ids(tokenizer), *ids] if ids else []


def with_marks(tokenizer: Tokenizer, begin: Iterable[str], end: str | None) -> bytes:
    """The tokenizer as bytes, whose own rules put these tokens around a text, and no others."""
    marked = Tokenizer.from_str(tokenizer.to_str())
    before, after = list(begin), [] if end is None else [end]
    ids = [(name, marked.token_to_id(name)) for name in {*before, *after}]
    around = [*(f"{name}:0" for name in before), "$A:0", *(f"{name}:0" for name in after)]
    marked.post_processor = processors.TemplateProcessing(single=around, special_tokens=ids)
    return marked.to_str().encode()


def _marks(tokenizer: Tokenizer) -> tuple[list[int], list[int]]:
    """The tokens that the tokenizer's own rules put before a text, and after it."""
    with without_panics():
        bare: list[int] = tokenizer.encode(A_TEXT, add_special_tokens=False).ids
        full: list[int] = tokenizer.encode(A_TEXT, add_special_tokens=True).ids
    places = (i for i in range(len(full) - len(bare) + 1) if full[i : i + len(bare)] == bare)
    start = next(places, 0)
    return full[:start], full[start + len(bare) :]


def vocabulary_size(tokenizer: Tokenizer) -> int:
    """Rows that an embedding needs: one more than the highest token id, as ids may have gaps."""
    return max(tokenizer.get_vocab(with_added_tokens=True).values()) + 1


def stored_as(vocabulary: int) -> np.dtype[np.generic]:
    """How token ids of such a vocabulary are kept on the disk, and sent: little-endian, in two bytes where they fit."""
    return np.dtype("<u2" if vocabulary <= 1 << 16 else "<u4")
