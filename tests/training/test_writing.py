"""Texts that are written side by side are the ones that each would be alone."""

from itertools import islice
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from dipaco_swarm.run.config import ModelConfig
from dipaco_swarm.training import writing
from dipaco_swarm.training.inference import Sampling
from dipaco_swarm.training.modules import build_network
from dipaco_swarm.training.writing import Batch, Text, Written, think, thoughts, write

VOCABULARY, POSITIONS, TOKENS = 60, 32, 40
PROMPTS = ([3], [1, 4, 1, 5, 9], list(range(30)), [2, 7, 1, 8], list(range(50)))
"""One is longer than the positions; all texts get so long that their contexts are cut."""


def network_of(model_type: str = "llama", **extra: Any) -> PreTrainedModel:
    model = ModelConfig(
        model_type=model_type,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=POSITIONS,
        extra=extra,
    )
    network = build_network(model, VOCABULARY, seed=0)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.normal_(0.0, 0.5, generator=generator)
    return network


def rows_of(network: PreTrainedModel) -> list[int]:
    """Grows by the number of texts in each pass."""
    rows: list[int] = []

    def count(module: torch.nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
        rows.append(kwargs["input_ids"].shape[0])

    network.register_forward_pre_hook(count, with_kwargs=True)
    return rows


def side_by_side(network: PreTrainedModel) -> list[list[Written]]:
    """The texts, of which each comes when the ones before have some tokens."""
    batch = Batch(network)
    texts = [Text(network, prompt, Sampling(float(i % 2), None), i) for i, prompt in enumerate(PROMPTS)]
    found: dict[Text, list[Written]] = {text: [] for text in texts}
    new = list(texts)
    while new or len(batch):
        if new:
            word = batch.read(new[0])
            assert word is not None
            found[new.pop(0)].append(word)
        for text, word in batch.go_on():
            assert word is not None
            found[text].append(word)
            if len(found[text]) == TOKENS:
                batch.remove(text)
    return list(found.values())


@pytest.mark.parametrize(
    ("model_type", "extra", "together"),
    [
        ("llama", {}, True),
        ("qwen2", {}, True),
        ("mistral", {"sliding_window": 8}, False),  # its layers keep the last tokens alone: one text a pass
        ("gemma2", {"sliding_window": 8, "head_dim": 8}, False),
    ],
)
def test_texts_side_by_side_are_what_they_are_alone(model_type: str, extra: dict[str, Any], together: bool) -> None:
    network = network_of(model_type, **extra)
    alone = [
        list(islice(write(network, Text(network, prompt, Sampling(float(i % 2), None), i)), TOKENS))
        for i, prompt in enumerate(PROMPTS)
    ]
    rows = rows_of(network)
    assert side_by_side(network) == alone
    assert (max(rows) == len(PROMPTS)) is together


def test_what_ends_leaves_the_others_as_they_are() -> None:
    network = network_of()
    (first,) = islice(write(network, Text(network, PROMPTS[0], Sampling(0.0), 0)), 1)
    batch = Batch(network)
    long, over = Text(network, PROMPTS[1], Sampling(0.0), 0), Text(network, PROMPTS[2], Sampling(0.0), 0)
    assert batch.read(Text(network, PROMPTS[0], Sampling(0.0), 0, end_of_text=first.token)) is None
    words = [batch.read(long)]
    batch.read(over)
    for _ in range(5):
        words += [word for text, word in batch.go_on() if text is long]
    batch.remove(over)
    batch.remove(over)
    assert len(batch) == 1
    words += [word for _ in range(5) for _, word in batch.go_on()]
    assert words == list(islice(write(network, Text(network, PROMPTS[1], Sampling(0.0), 0)), 11))


KINDS: list[tuple[str, dict[str, Any]]] = [
    ("llama", {}),
    ("mistral", {"sliding_window": 8}),
    ("gemma2", {"sliding_window": 8, "head_dim": 8}),  # caps its logits
    ("lfm2", {"layer_types": ["conv", "full_attention"]}),  # a layer keeps something else than keys and values
]


@pytest.mark.parametrize(("model_type", "extra"), KINDS)
@pytest.mark.parametrize("length", [1, 2, 5, 6, 30, POSITIONS, 75])
def test_what_is_thought_of_a_text_part_by_part_is_what_is_thought_of_it_at_once(
    model_type: str, extra: dict[str, Any], length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    network, text = network_of(model_type, **extra), [(7 * i) % VOCABULARY for i in range(length)]
    at_once = think(network, text, 2)
    widths: list[int] = []
    network.get_output_embeddings().register_forward_pre_hook(lambda _, args: widths.append(args[0].shape[1]))
    monkeypatch.setattr(writing, "PART_LOGITS", 5 * VOCABULARY)
    parts = list(thoughts(network, text, 2))
    in_parts = [each for part in parts for each in part]
    assert max([*widths, *map(len, parts)]) <= 5
    assert [each.token for each in in_parts] == text
    for ours, theirs in zip(in_parts[1:], at_once[1:], strict=True):
        assert ours.logprob == pytest.approx(theirs.logprob, abs=1e-4)
        assert [token for token, _ in ours.likeliest] == [token for token, _ in theirs.likeliest]
    if length in (2, POSITIONS):
        with torch.no_grad():
            logprobs = network(input_ids=torch.tensor([text])).logits[0].log_softmax(-1)
        assert [each.logprob for each in in_parts[1:]] == pytest.approx(
            [float(row[token]) for row, token in zip(logprobs, text[1:], strict=False)], abs=1e-4
        )


@pytest.mark.parametrize(("model_type", "extra"), KINDS[:3])
def test_a_text_that_is_read_part_by_part_goes_on_as_ever(
    model_type: str, extra: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    network, prompt = network_of(model_type, **extra), PROMPTS[2]
    whole = list(islice(write(network, Text(network, prompt, Sampling(0.0), 0)), TOKENS))
    monkeypatch.setattr(writing, "PART", 7)
    read: list[int] = []
    network.register_forward_pre_hook(lambda _, args, how: read.append(how["input_ids"].shape[1]), with_kwargs=True)
    batch = Batch(network)
    reading, turns = batch.reading(Text(network, prompt, Sampling(0.0), 0)), 0
    while next(reading, 1) is None:
        turns += 1
        assert not len(batch)
    assert (turns, read) == (4, [7, 7, 7, 7, 2])
    assert len(batch) == 1
    assert list(islice(write(network, Text(network, prompt, Sampling(0.0), 0)), TOKENS)) == whole
    assert max(read) == 7
