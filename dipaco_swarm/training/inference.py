"""Text from one path, or from a path that changes with the text: token by token, with a key-value cache.

`generate_tokens` is an iterator and the list of ids is the only state that matters, so re-routing every W tokens (paper
section 2.4.4) is: take W tokens, route the text so far, go on. A new cache is made only when the path changes.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from dipaco_swarm.algorithm.paths import PathIndex
from dipaco_swarm.errors import UsageError


@dataclass(frozen=True)
class Sampling:
    """How the next token is drawn."""

    temperature: float = 0.8
    """0 takes the likeliest token."""
    top_k: int | None = 50
    """Draw among the k likeliest tokens only; None draws among all."""

    def __post_init__(self) -> None:
        if self.temperature < 0:
            raise UsageError(
                f"temperature {self.temperature} is negative; 0 takes the likeliest token, 1 is the model's own"
            )
        if self.top_k is not None and self.top_k < 1:
            raise UsageError(f"top_k {self.top_k} leaves no token to draw; give at least 1")


def generate_tokens(
    network: PreTrainedModel,
    prompt_ids: Sequence[int],
    sampling: Sampling,
    generator: torch.Generator,
    stop_token: int | None = None,
) -> Iterator[int]:
    """The tokens that follow the prompt, one by one, without end unless `stop_token` comes (it is not given out).

    `generator` lives on the CPU. A context longer than the model's positions is cut to its last half, now and then, so
    that the text can go on. Raises UsageError, at the first token, when the prompt is empty.
    """
    ids = list(prompt_ids)
    if not ids:
        raise UsageError("the prompt is empty; give at least one token to go on from")
    network.eval()
    positions: int = network.config.max_position_embeddings
    cache: Any = None
    fresh = ids[-positions:]  # the tokens that the cache does not hold yet
    seen = 0
    while True:
        if seen + len(fresh) > positions:
            fresh, cache, seen = ids[-(positions // 2) :], None, 0
        logits, cache = _next_logits(network, fresh, cache)
        seen += len(fresh)
        token = _draw(logits, sampling, generator)
        if token == stop_token:
            return
        ids.append(token)
        fresh = [token]
        yield token


def generate_rerouted(
    first: PathIndex,
    choose: Callable[[Sequence[int]], PathIndex],
    load_path: Callable[[PathIndex], PreTrainedModel],
    window: int,
    prompt_ids: Sequence[int],
    sampling: Sampling,
    generator: torch.Generator,
    stop_token: int | None = None,
) -> Iterator[int]:
    """`generate_tokens` with the path chosen anew after every `window` new tokens; `first` writes the first ones.

    `choose` reads all tokens there are. While it stays with a path, that path's cache is kept; when it changes, the new
    path reads the text anew. `load_path` is called when the path changes; its network is not used after the next call.
    """
    ids, path = list(prompt_ids), first
    tokens = generate_tokens(load_path(path), ids, sampling, generator, stop_token)
    while True:
        before = len(ids)
        for token in islice(tokens, window):
            ids.append(token)
            yield token
        if len(ids) < before + window:  # the stop token
            return
        if (chosen := choose(ids)) != path:
            path = chosen
            tokens = generate_tokens(load_path(path), ids, sampling, generator, stop_token)


def generate(
    network: PreTrainedModel,
    prompt_ids: Sequence[int],
    max_new_tokens: int,
    sampling: Sampling,
    generator: torch.Generator,
    *,
    stop_token: int | None = None,
    on_token: Callable[[int], None] = lambda token: None,
) -> list[int]:
    """Up to `max_new_tokens` tokens that follow the prompt; `on_token` sees each as it is drawn."""
    new = []
    for token in islice(generate_tokens(network, prompt_ids, sampling, generator, stop_token), max_new_tokens):
        on_token(token)
        new.append(token)
    return new


@torch.inference_mode()
def _next_logits(network: PreTrainedModel, fresh: list[int], cache: Any) -> tuple[Tensor, Any]:
    """Logits of the next token, fp32 (vocabulary,) on the CPU, and the cache that now holds `fresh` too."""
    inputs = torch.tensor([fresh], device=network.device)
    output = network(input_ids=inputs, past_key_values=cache, use_cache=True, logits_to_keep=1)
    return output.logits[0, -1].float().cpu(), output.past_key_values


def _draw(logits: Tensor, sampling: Sampling, generator: torch.Generator) -> int:
    """A token from logits of shape (vocabulary,)."""
    if sampling.temperature == 0:
        return int(logits.argmax())
    logits = logits / sampling.temperature
    if sampling.top_k is not None and sampling.top_k < len(logits):
        likeliest = logits.topk(sampling.top_k)
        return int(likeliest.indices[torch.multinomial(likeliest.values.softmax(0), 1, generator=generator)])
    return int(torch.multinomial(logits.softmax(0), 1, generator=generator))
