"""The window router: which path should write the next W tokens of a text (docs/paper.md#routing-again).

    text so far --transformer--> hidden state of its last token --linear--> a path for what comes next

A causal transformer that starts from the run's frozen dense model and is fine-tuned to say, at every token, which path
predicts the next tokens best. Being causal, one forward pass gives the choice after each prefix of a text.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor, nn
from transformers import PreTrainedModel

from dipaco_swarm.algorithm.paths import PathIndex
from dipaco_swarm.errors import ManifestError, TrainingError
from dipaco_swarm.run.config import RunConfig
from dipaco_swarm.training.evaluation import SEQUENCES_PER_BATCH, token_log_likelihoods
from dipaco_swarm.training.gradients import IGNORED
from dipaco_swarm.training.inner import learning_rate_at
from dipaco_swarm.training.modules import build_network
from dipaco_swarm.training.pieces import EvaluationSet

TOKENS_AT_ONCE = 1024
"""In one pass, between two calls of `on_progress`: few, so that a bootstrap node can be stopped at any time."""
CHECKS = 20
"""Validations during training; the best weights are kept. A bound on over-fitting and no more
(docs/decisions/0019-window-router-stops-early.md)."""


class WindowRouter(nn.Module):
    """A dense model whose output head has paths in the place of words."""

    def __init__(self, dense: PreTrainedModel, num_paths: int) -> None:
        """`dense`: a network of the run's shape; the router takes it over. The new head is zero: no path is liked."""
        super().__init__()
        self.body: Any = dense.base_model.eval()  # no dropout: the same sample and seed give the same router
        size: int = self.body.config.hidden_size
        self.head = nn.utils.skip_init(nn.Linear, size, num_paths)  # type: ignore[no-untyped-call]
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    @property
    def num_paths(self) -> int:
        return len(self.head.bias)

    @property
    def device(self) -> torch.device:
        bias: Tensor = self.head.bias
        return bias.device

    def forward(self, tokens: Tensor) -> Tensor:
        """Tokens int64 (n, T) -> logits (n, T, paths): at position t, of the path for what follows token t."""
        logits: Tensor = self.head(self.body(input_ids=tokens, use_cache=False).last_hidden_state)
        return logits

    @torch.inference_mode()
    def choices(self, tokens: Tensor) -> Tensor:
        """The path for what follows each token, having read up to and with it: int64 (n, T) on the CPU, for tokens
        (n, T)."""
        at_once = torch.split(tokens, SEQUENCES_PER_BATCH)
        return torch.cat([self(rows.to(self.device)).argmax(-1).cpu() for rows in at_once])

    def choose(self, ids: Sequence[int]) -> PathIndex:
        """The path for what follows a text; of one longer than the model's positions, for what follows its end."""
        positions: int = self.body.config.max_position_embeddings
        return PathIndex(int(self.choices(torch.tensor([ids[-positions:]]))[0, -1]))


# ------------------------------------------------------------------------------------------------------------- targets


def window_targets(scores: Iterable[Tensor], lengths: Tensor, prefix_tokens: int, window: int) -> Tensor:
    """The path that predicts the next tokens best, at each position: int64 (n, T); IGNORED where there is none.

        T[i, j] = argmax_p  sum of S[i, j', p] over j' = j + 1 .. min(j + window, length - 1)

    This is the paper's target of token j + 1, placed at j, the last token that the router has read. Targets begin at
    the last token of the router's prefix and end before a text's last token. `scores`: for each path in turn, log p of
    each token, fp32 (n, T), 0 after a text's end. `lengths`: int64 (n,). Ties go to the lowest path.
    """
    best, targets = torch.empty(0), torch.empty(0)
    for path, of_path in enumerate(scores):
        if path == 0:
            best = torch.full(of_path.shape, -torch.inf, dtype=torch.float64)
            targets = torch.full(of_path.shape, IGNORED)
        sums = _sums_of_next(of_path, window)
        better = sums > best
        best[better] = sums[better]
        targets[better] = path
    positions = torch.arange(targets.shape[1])
    asked = (positions >= prefix_tokens - 1) & (positions < lengths[:, None] - 1)
    return targets.where(asked, IGNORED)


def _sums_of_next(scores: Tensor, window: int) -> Tensor:
    """out[i, j] = sum of scores[i, j + 1 .. j + window], as far as they go: float64 (n, T) for (n, T)."""
    until = scores.cumsum(dim=1, dtype=torch.float64)
    last = (torch.arange(scores.shape[1]) + window).clamp(max=scores.shape[1] - 1)
    return until[:, last] - until


# ------------------------------------------------------------------------------------------------------------ training


def train_window_router(
    router: WindowRouter,
    sample: EvaluationSet,
    load_path: Callable[[PathIndex], PreTrainedModel],
    config: RunConfig,
    on_progress: Callable[[float], None] = lambda share: None,
) -> float:
    """Score the sample under every path, then fine-tune the router on nine tenths of it, in place.

    Returns the share of its choices that are right on the last tenth. Each network works on its own device. `load_path`
    is called once for each path, in order; its network is not used after the next call. `on_progress` sees the share of
    the work that is done, every few sequences, and may raise to interrupt. Raises TrainingError when the loss is no
    longer finite.
    """
    rules = config.rerouting
    assert rules is not None, "a run without [rerouting] has no window router"
    tokens = torch.from_numpy(sample.tokens[: rules.max_documents])
    lengths = torch.from_numpy(sample.lengths[: rules.max_documents])
    done, all_work = 0, router.num_paths * len(tokens) + 3 * rules.steps * rules.batch_sequences

    def worked(sequences: int) -> None:
        nonlocal done
        done += sequences
        on_progress(done / all_work)

    prefix = config.router.prefix_tokens
    paths = map(PathIndex, range(router.num_paths))
    scores = (_scores(load_path(path), tokens, lengths, prefix, worked) for path in paths)
    targets = window_targets(scores, lengths, prefix, rules.window)
    # the forward pass, and twice that for the backward pass
    return _fit(router, tokens, targets, config, lambda sequences: worked(3 * sequences))


def _scores(
    network: PreTrainedModel, tokens: Tensor, lengths: Tensor, prefix: int, worked: Callable[[int], None]
) -> Tensor:
    """`token_log_likelihoods`, a few sequences at a time."""
    scores = torch.zeros(tokens.shape)
    for rows in torch.split(lengths.argsort(stable=True), _at_once(tokens)):
        scores[rows] = token_log_likelihoods(network, tokens[rows], lengths[rows], prefix)
        worked(len(rows))
    return scores


def _fit(
    router: WindowRouter, tokens: Tensor, targets: Tensor, config: RunConfig, worked: Callable[[int], None]
) -> float:
    """Cross-entropy of the targets, on batches drawn with the run's seed; the run's AdamW.

    The weights with the best accuracy on the validation rows are kept; returns that accuracy.
    """
    rules = config.rerouting
    assert rules is not None
    known, unseen = _split(len(tokens))
    best, kept = -1.0, router.state_dict()
    inner = config.inner.model_copy(
        update={"learning_rate": rules.learning_rate, "warmup_steps": 0, "schedule_steps": rules.steps}
    )
    groups = [
        {"params": [p for p in router.parameters() if p.ndim >= 2], "weight_decay": inner.weight_decay},
        {"params": [p for p in router.parameters() if p.ndim < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, betas=(inner.beta1, inner.beta2))
    generator = torch.Generator().manual_seed(config.seed)
    for step in range(rules.steps):
        batch = known[torch.randint(len(known), (rules.batch_sequences,), generator=generator)]
        asked = (targets[batch] != IGNORED).sum()
        for rows in torch.split(batch, _at_once(tokens)):
            logits = router(tokens[rows].to(router.device)).flatten(0, 1)
            wanted = targets[rows].flatten().to(router.device)
            loss = F.cross_entropy(logits, wanted, ignore_index=IGNORED, reduction="sum") / asked
            loss.backward()  # type: ignore[no-untyped-call]
            worked(len(rows))
        norm = float(nn.utils.clip_grad_norm_(router.parameters(), inner.gradient_clip))
        if not math.isfinite(norm):
            raise TrainingError(
                f"step {step} of the window router has the gradient norm {norm}, which is not finite; the "
                f"learning rate of [rerouting], {rules.learning_rate}, is too large for this model"
            )
        for group in optimizer.param_groups:
            group["lr"] = learning_rate_at(inner, step)
        optimizer.step()
        optimizer.zero_grad()
        if step + 1 == rules.steps or (step + 1) % max(1, rules.steps // CHECKS) == 0:
            right = _right(router, tokens[unseen], targets[unseen], worked)
            if right > best:
                best, kept = right, {name: tensor.clone() for name, tensor in router.state_dict().items()}
    router.load_state_dict(kept)
    return best


def _split(pieces: int) -> tuple[Tensor, Tensor]:
    """Training rows, and a tenth for validation: ten stretches of rows, so that few documents are in both."""
    rows = torch.arange(pieces)
    judged = rows // max(1, pieces // 100) % 10 == 9
    return (rows[~judged], rows[judged]) if judged.any() else (rows, rows)  # fewer than ten pieces: no choice


def _right(router: WindowRouter, tokens: Tensor, targets: Tensor, worked: Callable[[int], None]) -> float:
    """The router's accuracy: the share of its choices that equal the targets."""
    right = 0
    for rows in torch.split(torch.arange(len(tokens)), _at_once(tokens)):
        right += int((router.choices(tokens[rows]) == targets[rows]).sum())  # no choice is IGNORED
        worked(0)
    return right / max(1, int((targets != IGNORED).sum()))


def _at_once(tokens: Tensor) -> int:
    """How many of these sequences, (n, T), go through a network in one pass."""
    return max(1, TOKENS_AT_ONCE // tokens.shape[1])


# --------------------------------------------------------------------------------------------------------- as a blob


def window_router_to_bytes(router: WindowRouter) -> bytes:
    """The router as safetensors: what the run publishes. The same router gives the same bytes."""
    return save({name: tensor.contiguous().cpu() for name, tensor in router.state_dict().items()})


def window_router_from_bytes(data: bytes, config: RunConfig, vocabulary: int, num_paths: int) -> WindowRouter:
    """Read and check what `window_router_to_bytes` wrote.

    Raises ManifestError when it is not a window router of this run's model and `num_paths` paths.
    """
    router = WindowRouter(build_network(config.model, vocabulary, config.seed), num_paths)
    expected = {name: (tensor.shape, tensor.dtype) for name, tensor in router.state_dict().items()}
    try:
        tensors = load(data)
    except SafetensorError as error:
        raise ManifestError(
            f"the published window router is not a safetensors file ({error}); fetch it again"
        ) from None
    found = {name: (tensor.shape, tensor.dtype) for name, tensor in tensors.items()}
    if found != expected:
        name = sorted(name for name in found | expected if found.get(name) != expected.get(name))[0]
        raise ManifestError(
            f"the published window router has {name} as {found.get(name)} where {expected.get(name)} was expected; it "
            "belongs to another model or another stage"
        )
    if not all(bool(tensor.isfinite().all()) for tensor in tensors.values()):
        raise ManifestError("the published window router has a number that is not finite; it must be trained again")
    router.load_state_dict(tensors)
    return router
