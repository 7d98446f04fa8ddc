"""How well paths predict held-out documents: log-likelihoods, and perplexity by path and by domain.

Every method is scored on the same targets: those after the prefix that the router has read, dense models included
(paper section 2.4). Sums are in float64, so a score does not depend on how sequences were batched beyond fp32 rounding.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedModel

from dipaco_swarm.algorithm.paths import PathIndex
from dipaco_swarm.training.pieces import EvaluationSet

SEQUENCES_PER_BATCH = 16
"""Sequences in one forward pass: logits of 16 x 1024 tokens and a vocabulary of 32k take 2 GB."""


@dataclass(frozen=True)
class Score:
    """How likely some targets were. Scores of different targets add up."""

    log_likelihood: float = 0.0
    """Sum of log p over the targets, in nats."""
    tokens: int = 0
    """Number of targets."""

    def __add__(self, other: "Score") -> "Score":
        return Score(self.log_likelihood + other.log_likelihood, self.tokens + other.tokens)

    @property
    def loss(self) -> float:
        """Mean cross-entropy in nats per token; nan without tokens."""
        return -self.log_likelihood / self.tokens if self.tokens else math.nan

    @property
    def perplexity(self) -> float:
        """exp(loss); nan without tokens, inf beyond what a float holds."""
        return math.exp(self.loss) if not self.loss > 700 else math.inf


@dataclass(frozen=True)
class RoutedScore:
    """The score of all paths together, each on the pieces that were routed to it."""

    total: Score
    by_path: Mapping[PathIndex, Score]
    by_domain: Mapping[str, Score]


def token_log_likelihoods(
    network: PreTrainedModel, tokens: Tensor, lengths: Tensor, skip: int, batch: int = SEQUENCES_PER_BATCH
) -> Tensor:
    """log p(token t | tokens before t) in nats: fp32 on the CPU, shape (n, T), 0 where nothing is scored.

    Scored are positions t with max(skip, 1) <= t < length: `skip` is the length of the router's prefix, and nothing
    predicts position 0. `tokens`: int64 (n, T); `lengths`: int64 (n,); `batch`: sequences in one forward pass.
    """
    scores = torch.zeros(tokens.shape, dtype=torch.float32)
    first = max(skip, 1)
    # sequences of similar length together, so that short ones are not computed at the length of long ones
    order = torch.argsort(lengths, stable=True)
    with _evaluating(network):
        for rows in torch.split(order, batch):
            longest = int(lengths[rows].max())
            if longest > first:
                scores[rows, first:longest] = _log_probs(network, tokens[rows, :longest], lengths[rows], first)
    return scores


def _log_probs(network: PreTrainedModel, tokens: Tensor, lengths: Tensor, first: int) -> Tensor:
    """log p of the targets from position `first` on, 0 behind a sequence's length: fp32 (n, T - first) on the CPU."""
    inside = torch.arange(tokens.shape[1]) < lengths[:, None]  # (n, T)
    tokens = tokens.where(inside, 0).to(network.device)  # padding may not be a token at all
    # position t is predicted at t - 1, so the head runs on the last T - first + 1 positions only
    kept = tokens.shape[1] - first + 1
    logits = network(input_ids=tokens, use_cache=False, logits_to_keep=kept).logits[:, :-1].float()
    losses = F.cross_entropy(logits.flatten(0, 1), tokens[:, first:].flatten(), reduction="none")
    return -losses.view(len(tokens), -1).cpu() * inside[:, first:]


def sequence_log_likelihoods(
    network: PreTrainedModel, tokens: Tensor, lengths: Tensor, skip: int, batch: int = SEQUENCES_PER_BATCH
) -> tuple[Tensor, Tensor]:
    """Sum of log p of each sequence's scored targets, float64 (n,), and their number, int64 (n,).

    Arguments as for `token_log_likelihoods`.
    """
    sums = token_log_likelihoods(network, tokens, lengths, skip, batch).sum(dim=1, dtype=torch.float64)
    return sums, (lengths - max(skip, 1)).clamp(min=0)


def evaluate(
    network: PreTrainedModel, pieces: EvaluationSet, skip: int, batch: int = SEQUENCES_PER_BATCH
) -> dict[str, Score]:
    """One network's score on each domain of `pieces`, sorted by domain. `skip`, `batch`: see token_log_likelihoods."""
    tokens, lengths = torch.from_numpy(pieces.tokens), torch.from_numpy(pieces.lengths)
    sums, counts = sequence_log_likelihoods(network, tokens, lengths, skip, batch)
    scores: dict[str, Score] = {}
    for domain, total, count in zip(pieces.domains, sums.tolist(), counts.tolist(), strict=True):
        scores[domain] = scores.get(domain, Score()) + Score(total, count)
    return dict(sorted(scores.items()))


def evaluate_routed(
    pieces: EvaluationSet,
    paths: NDArray[np.int64],
    load_path: Callable[[PathIndex], PreTrainedModel],
    skip: int,
    batch: int = SEQUENCES_PER_BATCH,
) -> RoutedScore:
    """Score each path on the pieces that were routed to it (paper section 2.4).

    `paths`: the path of each piece, int64 (n,). `load_path` is called once for each path that has pieces, in ascending
    order; its network is not used after the next call, so it may be one network that is filled anew each time.
    """
    return evaluate_rerouted(pieces, np.broadcast_to(paths[:, None], pieces.tokens.shape), load_path, skip, batch)


def window_paths(first: NDArray[np.int64], choices: NDArray[np.int64], skip: int, window: int) -> NDArray[np.int64]:
    """The path of each token when routing is done anew every `window` tokens (paper section 2.4.4): int64 (n, T).

    `first`: the path of each piece's first window after the prefix of `skip` tokens, (n,). `choices`: (n, T); a later
    window that begins at position t takes the choice at t - 1, the last token before it.
    """
    windows = np.maximum(np.arange(choices.shape[1]) - skip, 0) // window  # (T,)
    paths: NDArray[np.int64] = choices[:, np.maximum(skip + windows * window - 1, 0)]
    paths[:, windows == 0] = first[:, None]
    return paths


def evaluate_rerouted(
    pieces: EvaluationSet,
    paths: NDArray[np.int64],
    load_path: Callable[[PathIndex], PreTrainedModel],
    skip: int,
    batch: int = SEQUENCES_PER_BATCH,
) -> RoutedScore:
    """Score each path on the tokens that it was chosen for; it reads the whole text before them.

    `paths`: the path of each token, int64 (n, T), see `window_paths`. Targets and `load_path` as in `evaluate_routed`,
    which this is when no path ever changes.
    """
    positions = np.arange(pieces.tokens.shape[1])
    scored = (positions >= max(skip, 1)) & (positions < pieces.lengths[:, None])  # (n, T)
    path_scores: dict[PathIndex, Score] = {}
    domain_scores = dict.fromkeys(sorted(set(pieces.domains)), Score())
    for path in map(PathIndex, np.unique(paths[scored]).tolist()):
        mine = scored & (paths == path)
        rows = np.flatnonzero(mine.any(axis=1))
        mine = mine[rows]
        needed = mine.shape[1] - mine[:, ::-1].argmax(axis=1)  # up to its last token: (rows,)
        tokens, lengths = torch.from_numpy(pieces.tokens[rows]), torch.from_numpy(needed)
        found = token_log_likelihoods(load_path(path), tokens, lengths, skip, batch)
        sums = found.where(torch.from_numpy(mine), 0).sum(dim=1, dtype=torch.float64)
        scores = [Score(*both) for both in zip(sums.tolist(), mine.sum(axis=1).tolist(), strict=True)]
        path_scores[path] = sum(scores, Score())
        for row, score in zip(rows.tolist(), scores, strict=True):
            domain_scores[pieces.domains[row]] += score
    return RoutedScore(sum(path_scores.values(), Score()), path_scores, domain_scores)


@contextmanager
def _evaluating(network: PreTrainedModel) -> Iterator[None]:
    """No gradients, no dropout; afterwards the network is in the mode it was in."""
    was_training = network.training
    network.eval()
    try:
        with torch.inference_mode():
            yield
    finally:
        network.train(was_training)
