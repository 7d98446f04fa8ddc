"""What a path writes after a text, so that somebody else can go on in the middle; and what it thinks of a text.

Who writes a token has the text so far, how tokens are drawn, a seed, and how many tokens were drawn with it. That is
all there is: whoever has the same parameters writes the same token, whoever wrote the ones before.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from dipaco_swarm.training.dipaco_model import tokens_after
from dipaco_swarm.training.inference import Sampling


@dataclass(frozen=True)
class Written:
    """A token, and what its path thought of it."""

    token: int
    logprob: float | None
    """log p of it before temperature, top_k and top_p. None: nothing comes before it."""
    likeliest: tuple[tuple[int, float], ...] = ()
    """The likeliest tokens there, with their log p, as many as were asked for."""


class _Watch:
    """Draws, and keeps what was thought of the last token."""

    def __init__(self, sampling: Sampling, seed: int, vocabulary: int, drawn: int, alternatives: int | None) -> None:
        generator = torch.Generator().manual_seed(seed)
        self._draw = sampling.drawing(generator)
        self._alternatives = alternatives
        self.logprob: float | None = None
        self.likeliest: tuple[tuple[int, float], ...] = ()
        nothing = torch.zeros(vocabulary)
        for _ in range(drawn if sampling.temperature else 0):
            self._draw(nothing)  # a draw takes as much chance whatever the logits are

    def __call__(self, logits: Tensor) -> int:
        token = self._draw(logits)
        if self._alternatives is not None:
            logprobs = logits.log_softmax(0)
            self.logprob, self.likeliest = float(logprobs[token]), _likeliest(logprobs, self._alternatives)
        return token


def write(
    network: PreTrainedModel,
    text: Sequence[int],
    sampling: Sampling,
    seed: int,
    *,
    written: int = 0,
    drawn: int | None = None,
    alternatives: int | None = None,
    end_of_text: int | None = None,
) -> Iterator[Written]:
    """The tokens that follow a text, one by one, without end unless `end_of_text` comes (it is not given out).

    `text`: at least one token. `written`: so many of its last tokens were written by this path like this; `drawn`: so
    many were drawn with this seed, by this path or others (by default the same). `alternatives`: how many of the
    likeliest tokens to name; None: say nothing of what was thought.
    """
    drawn = written if drawn is None else drawn
    watch = _Watch(sampling, seed, network.config.vocab_size, drawn, alternatives)
    for token in tokens_after(network, text, watch, end_of_text, written):
        yield Written(token, watch.logprob, watch.likeliest)


@torch.inference_mode()
def think(network: PreTrainedModel, text: Sequence[int], alternatives: int = 0) -> list[Written]:
    """What a path thinks of each token of a text; of one longer than its positions, half of them at a time."""
    network.eval()
    positions: int = network.config.max_position_embeddings
    found = [Written(text[0], None)]
    while len(found) < len(text):
        start = 0 if len(found) == 1 else max(0, len(found) - positions // 2)
        piece = text[start : start + positions]
        logits = network(input_ids=torch.tensor([list(piece)], device=network.device), use_cache=False).logits[0]
        logprobs = logits.float().cpu().log_softmax(-1)
        for place in range(len(found) - start, len(piece)):
            row, token = logprobs[place - 1], piece[place]
            found.append(Written(token, float(row[token]), _likeliest(row, alternatives)))
    return found


@torch.inference_mode()
def differences(
    network: PreTrainedModel,
    text: Sequence[int],
    written: int,
    sampling: Sampling,
    seed: int,
    drawn: int,
) -> int | None:
    """How many of the last `written` tokens of a text this path would have drawn otherwise; None: it is too long.

    `drawn`: tokens that were drawn with the seed before these. One pass over the text, however many there are.
    """
    network.eval()
    if len(text) > network.config.max_position_embeddings:
        return None  # its context was cut on the way
    watch = _Watch(sampling, seed, network.config.vocab_size, drawn, None)
    inputs = torch.tensor([list(text[:-1])], device=network.device)
    logits = network(input_ids=inputs, use_cache=False, logits_to_keep=written).logits[0].float().cpu()
    return sum(watch(row) != token for row, token in zip(logits, text[-written:], strict=True))


def _likeliest(logprobs: Tensor, count: int) -> tuple[tuple[int, float], ...]:
    if not count:
        return ()
    top = logprobs.topk(min(count, len(logprobs)))
    return tuple(zip(top.indices.tolist(), top.values.tolist(), strict=True))
