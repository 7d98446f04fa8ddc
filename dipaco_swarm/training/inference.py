"""Text from one path, or from a path that changes with the text: token by token, with a key-value cache.

`generate_tokens` is an iterator and the list of ids is the only state that matters, so re-routing every W tokens (paper
section 2.4.4) is: take W tokens, route the text so far, go on. The loops are those of `dipaco_model.py`, which exported
models have in their folder: both write the same text.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import torch
from transformers import PreTrainedModel

from dipaco_swarm.algorithm.paths import PathIndex
from dipaco_swarm.errors import UsageError
from dipaco_swarm.training.dipaco_model import Draw, drawing, rerouted_tokens, tokens_after


@dataclass(frozen=True)
class Sampling:
    """How the next token is drawn."""

    temperature: float = 0.8
    """0 takes the likeliest token."""
    top_k: int | None = 50
    """Draw among the k likeliest tokens only; None draws among all."""
    top_p: float = 1.0
    """Of these only the likeliest that have this probability together."""

    def drawing(self, generator: torch.Generator) -> Draw:
        """How tokens are drawn from logits."""
        return drawing(self.temperature, self.top_k, generator, self.top_p)

    def __post_init__(self) -> None:
        if self.temperature < 0:
            raise UsageError(
                f"temperature {self.temperature} is negative; 0 takes the likeliest token, 1 is the model's own"
            )
        if self.top_k is not None and self.top_k < 1:
            raise UsageError(f"top_k {self.top_k} leaves no token to draw; give at least 1")
        if not 0 < self.top_p <= 1:
            raise UsageError(f"top_p {self.top_p} is no probability; give more than 0, and at most 1")


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
    _check(prompt_ids)
    yield from tokens_after(network, prompt_ids, sampling.drawing(generator), stop_token)


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
    """`generate_tokens` with the path chosen anew after every `window` new tokens: `dipaco_model.rerouted_tokens`."""
    _check(prompt_ids)
    load = lambda path: load_path(PathIndex(path))  # noqa: E731
    yield from rerouted_tokens(first, choose, load, window, prompt_ids, sampling.drawing(generator), stop_token)


def _check(prompt_ids: Sequence[int]) -> None:
    if not prompt_ids:
        raise UsageError("the prompt is empty; give at least one token to go on from")


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
