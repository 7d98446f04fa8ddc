"""The gradient of a batch's mean loss, on one device, in as many forward passes as its memory wants.

`together.py` has several devices make it.

Logits are the largest tensor of a small path: 4 x 1,024 tokens of a vocabulary of 32,000 take 0.5 GB, as much again
for their gradient, and again for the softmax. Where they would be large, head and loss go through the tokens in pieces,
each with its backward pass before the next one begins: the same sums, and one piece of logits at a time. A process with
a path of 8.6 million parameters took 0.9 GB at most instead of 2.0, and 2.7 s of a core for that batch instead of 2.9.
"""

import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedModel

from dipaco_swarm.errors import TrainingError
from dipaco_swarm.training.modules import PathModel

log = logging.getLogger(__name__)

IGNORED = -100
"""Target of a position that has none; what cross_entropy leaves out."""
PIECE_LOGITS = 1 << 24
"""Logits of one piece: 64 MB. Below that whole, as ever."""
PIECE_SHARE = 1 / 32
"""Of a GPU's memory, for one piece: it is through with a small one sooner than Python has told it of the next."""
LOGIT_BYTES = 12
"""In 16 bits and in 32, and a gradient."""


@dataclass(frozen=True)
class Passes:
    """How forward and backward passes are computed; never what."""

    micro_batch: int
    """Sequences in one forward pass, at most."""
    autocast: bool = False
    """Activations are bf16; parameters, gradients and the loss stay fp32."""
    recompute: bool = False
    """Activations are computed again in the backward pass, from the start; else when memory is short."""
    compiled: bool = False
    """By torch.compile: a minute or more before the first step."""


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

    def __init__(self, model: PathModel, passes: Passes) -> None:
        self._model = model
        self._micro_batch = passes.micro_batch
        self._autocast = passes.autocast
        self._recomputes_activations = False
        compiled: Callable[[Any], Any] = torch.compile if passes.compiled else lambda module: module
        self._whole, self._body = compiled(model.network), compiled(model.network.base_model)
        self._head_is_separate: bool | None = None
        if passes.recompute:
            self._recompute()

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
            logits = tokens[some].numel() * self._model.network.config.vocab_size
            if logits > piece_logits(tokens.device) and self._can_be_cut():
                total += self._in_pieces(tokens[some], targets[some], share)
                continue
            loss = self._loss(tokens[some], targets[some])
            loss.backward(share)  # type: ignore[no-untyped-call]
            total += loss.detach() * share
        return total

    def _loss(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """Mean cross-entropy of a micro-batch, in nats per token."""
        with self._rounding(tokens):
            logits = self._whole(input_ids=tokens, use_cache=False).logits  # (sequences, length, vocabulary)
        return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(), ignore_index=IGNORED)

    def _in_pieces(self, tokens: Tensor, targets: Tensor, share: Tensor) -> Tensor:
        """The same times `share`, with its backward pass; logits are made a piece at a time."""
        network = self._model.network
        head = network.get_output_embeddings()
        with self._rounding(tokens):
            hidden = self._body(input_ids=tokens, use_cache=False).last_hidden_state  # (sequences, length, width)
        states = hidden.detach().flatten(0, 1).requires_grad_()
        wanted = targets.flatten()
        weight = share / (wanted != IGNORED).sum()
        total = torch.zeros((), device=tokens.device)
        piece = max(1, piece_logits(tokens.device) // network.config.vocab_size)
        for some, theirs in zip(torch.split(states, piece), torch.split(wanted, piece), strict=True):
            with self._rounding(tokens):
                logits = head(some)  # (tokens, vocabulary)
            loss = F.cross_entropy(logits.float(), theirs, ignore_index=IGNORED, reduction="sum") * weight
            loss.backward()  # type: ignore[no-untyped-call]
            total += loss.detach()
        hidden.backward(states.grad.view_as(hidden))
        return total

    def _can_be_cut(self) -> bool:
        """Whether logits are what the head makes of the last states, and nothing else (as a scale, or a cap)."""
        if self._head_is_separate is None:
            self._head_is_separate = head_is_separate(self._model.network)
        return self._head_is_separate

    def _rounding(self, tokens: Tensor) -> torch.autocast:
        return torch.autocast(tokens.device.type, dtype=torch.bfloat16, enabled=self._autocast)

    def _recompute(self) -> None:
        self._recomputes_activations = True
        network = self._model.network
        newer = getattr(network, "activation_checkpointing_enable", None)  # as newer transformers call it
        (newer or network.gradient_checkpointing_enable)({"use_reentrant": False})

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
            self._recompute()
            log.warning("%s is out of memory: recomputing activations, about a third slower", device)
        else:
            raise TrainingError(
                f"{device} has too little memory for one sequence of this run's model; close other "
                "programs that use it, or train on another device (--device cpu)"
            )


def piece_logits(device: torch.device) -> int:
    """Of how many logits a piece is on a device, at most."""
    if device.type != "cuda":
        return PIECE_LOGITS
    total: int = torch.cuda.get_device_properties(device).total_memory
    return max(PIECE_LOGITS, int(PIECE_SHARE * total) // LOGIT_BYTES)


def head_is_separate(network: PreTrainedModel) -> bool:
    """Whether the network's logits are its head over its body's last states; some scale or cap them as well."""
    was_training = network.training
    network.eval()  # without dropout, and so without a draw
    tokens = torch.zeros((1, 2), dtype=torch.int64, device=network.device)
    with torch.no_grad():
        logits = network(input_ids=tokens, use_cache=False).logits
        apart = network.get_output_embeddings()(network.base_model(input_ids=tokens, use_cache=False).last_hidden_state)
    network.train(was_training)
    return torch.allclose(logits, apart, rtol=1e-4, atol=1e-5)
