"""How much a contribution bends the loss: half of the rise to both sides of where a model is, on a few sequences.

To first order a step that helps one path's documents may harm another's, and says nothing about who is honest. What
bends says more: steps of training go where the loss is flat for their length, and random numbers go everywhere. Half of
loss(w + x) + loss(w - x) less loss(w) is x'Hx / 2, with the first order gone
(docs/decisions/0049-contributions-are-tried-on-documents.md).
"""

import math
from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

from dipaco_swarm.algorithm.doubts import Place, Trial
from dipaco_swarm.training.evaluation import sequence_log_likelihoods
from dipaco_swarm.training.modules import PathModel

TRIED = 4
"""Sequences: of a thousand tokens, four tell noise from training by many standard errors."""


def bends(
    model: PathModel, level: int, ways: Sequence[Iterable[Place]], sequences: Tensor, stop: Callable[[], bool]
) -> list[Trial]:
    """Of each way, on these sequences, int64 (n, T). Afterwards the model has the bytes that it had.

    A way: places of the level's vector, and how far these go, fp32. `stop` is asked before every pass over the
    sequences, seconds on a laptop: none where it says so.
    """
    local = model.vector(level).to(model.device)  # there, for a pass takes a GPU less than its parameters the way to it
    moved = torch.empty_like(local)
    lengths = torch.full((len(sequences),), sequences.shape[1])

    def losses() -> Tensor:
        """Nats a token of each sequence: float64 (n,)."""
        sums, counts = sequence_log_likelihoods(model.network, sequences, lengths, skip=0, batch=1)
        return -sums / counts

    def put(way: Iterable[Place]) -> float:
        """On where the model is; returns how far that is. Asked for once: a contribution is decoded each time."""
        moved.copy_(local)
        parts = []
        for here, part in way:
            on_device = part.to(moved.device)
            moved[here].add_(on_device)
            parts.append(float(torch.linalg.vector_norm(on_device)))
        return math.hypot(*parts)

    found = []
    try:
        plain = losses()
        for way in ways:
            if stop():
                return []
            length = put(way)
            model.load(level, moved)
            there = losses()
            if stop():
                return []
            model.load(level, moved.neg_().add_(local, alpha=2.0))  # as far to the other side
            bend = (there + losses()) / 2 - plain
            error = float(bend.std()) / len(bend) ** 0.5 if len(bend) > 1 else float("inf")
            found.append(Trial(float(bend.mean()), error, length))
    finally:
        model.load(level, local)
    return found
