"""The gradient of a batch's mean loss, on one device, in as many forward passes as its memory wants.

`together.py` has several devices make it.
"""

import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from dipaco_swarm.errors import TrainingError
from dipaco_swarm.training.modules import PathModel

log = logging.getLogger(__name__)

IGNORED = -100
"""Target of a position that has none; what cross_entropy leaves out."""


class GradientMaker(Protocol):
    """What the inner optimizer asks for before a step."""

    def make(self, batch: Tensor, stop: Callable[[], bool]) -> Tensor | None:
        """Leave the gradient of the batch's mean loss in the parameters, which have none yet.

        `batch`: int64 (sequences, sequence_length). Returns that loss, fp32 (), in nats per token; None when `stop`
        said so between two forward passes: what is in the parameters then is of no use. Raises TrainingError when the
        device cannot hold one sequence.
        """
        ...

    def close(self) -> None:
        """End what works for it."""
        ...


class Gradients:
    """`GradientMaker` of one device."""

    def __init__(self, model: PathModel, micro_batch: int, *, autocast: bool) -> None:
        """`micro_batch`: sequences in one forward pass, at most. `autocast`: activations are bf16."""
        self._model = model
        self._micro_batch = micro_batch
        self._autocast = autocast
        self._recomputes_activations = False

    def make(self, batch: Tensor, stop: Callable[[], bool]) -> Tensor | None:
        return self.part(batch, len(batch), stop)

    def part(self, rows: Tensor, sequences: int, stop: Callable[[], bool]) -> Tensor | None:
        """The same of `rows` of a batch of so many sequences: parts of a batch add up, in gradients and loss."""
        while True:
            # The retry is outside of the handler: as long as the exception lives, so do the activations it reports.
            with suppress(torch.cuda.OutOfMemoryError):
                return self._accumulate(rows, sequences, stop)
            self._save_memory(len(rows))

    def close(self) -> None:
        """Nothing works for it."""

    def _accumulate(self, rows: Tensor, sequences: int, stop: Callable[[], bool]) -> Tensor | None:
        tokens = rows.to(self._model.device)
        targets = F.pad(tokens[:, 1:], (0, 1), value=IGNORED)  # (sequences, sequence_length)
        total = torch.zeros((), device=tokens.device)
        for start in range(0, len(tokens), self._micro_batch):
            if start and stop():
                return None
            some = slice(start, start + self._micro_batch)
            share = torch.tensor(len(tokens[some]) / sequences, device=tokens.device)
            loss = self._loss(tokens[some], targets[some])
            loss.backward(share)  # type: ignore[no-untyped-call]
            total += loss.detach() * share
        return total

    def _loss(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Mean cross-entropy of a micro-batch, in nats per token."""
        with torch.autocast(tokens.device.type, dtype=torch.bfloat16, enabled=self._autocast):
            logits = self._model.network(input_ids=tokens, use_cache=False).logits  # (sequences, length, vocabulary)
            return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED)

    def _save_memory(self, rows: int) -> None:
        """After the device ran out of memory: half the micro-batch; at one, recompute activations in the backward."""
        network, device = self._model.network, self._model.device
        network.zero_grad()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        if self._micro_batch > 1:
            self._micro_batch = (min(self._micro_batch, rows) + 1) // 2
            log.warning("%s is out of memory: %d sequences at a time from now on", device, self._micro_batch)
        elif not self._recomputes_activations:
            self._recomputes_activations = True
            network.gradient_checkpointing_enable({"use_reentrant": False})
            log.warning("%s is out of memory: recomputing activations, about a third slower", device)
        else:
            raise TrainingError(
                f"{device} has too little memory for one sequence of this run's model; close other "
                "programs that use it, or train on another device (--device cpu)"
            )
