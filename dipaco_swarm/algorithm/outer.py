"""The outer optimizer: what happens to one module between two rounds of inner training (paper section 2.5-2.7).

    theta(t-1)  the module when the round began        theta(t)  after inner training
    Delta       the outer gradient, theta(t-1) - theta(t)

Every multiplication and every addition is rounded on its own (no fused multiply-add, no `alpha=`), and contributions
are summed in the order given. So two machines that see the same contributions in the same order get the same bytes.
Nothing here knows who computed a gradient or how it travelled.
"""

import math
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from dipaco_swarm.algorithm.weight_decay import NOTHING, WeightDecay

MOST_TOKENS = 4.0
"""A contribution counts by its tokens up to so many times the median of its path's replicas."""


@dataclass(frozen=True)
class OuterStep:
    """Nesterov step of the outer optimizer. DiPaCo and DiLoCo use 0.7 and 0.9 everywhere (paper section 4)."""

    learning_rate: float
    momentum: float


class Vector(Protocol):
    """fp32 (parameters,), of which slices are used: a tensor, or what becomes one slice by slice."""

    def __len__(self) -> int: ...

    def __getitem__(self, place: slice, /) -> Tensor: ...


@dataclass(frozen=True, eq=False)
class OuterGradient:
    """Delta = theta(t-1) - theta(t) of one module without its weight decay, computed where it is looked at.

    All three fp32 (parameters,).
    """

    before: Tensor
    after: Tensor
    decay: WeightDecay = NOTHING
    """What it took between the two."""

    def __len__(self) -> int:
        return len(self.before)

    def __getitem__(self, place: slice, /) -> Tensor:
        before = self.before[place]
        gradient = outer_gradient(before, self.after[place])
        self.decay.take_out(gradient, before, place.indices(len(self.before))[0])
        return gradient


def outer_gradient(before: Tensor, after: Tensor) -> Tensor:
    """Delta = theta(t-1) - theta(t) of one module; all three fp32, shape (parameters,)."""
    return before - after


def trained_weights(
    paths: Sequence[Hashable], tokens: Sequence[float], path_weights: Sequence[float], round_tokens: float
) -> list[float]:
    """Path weights times min(1, tokens / round_tokens): half a round counts half (docs/paper.md#shard-weights).

    A peer that has just come back moves a module by a step or two; at full weight it would halve the others' step.
    Arguments as for `contribution_weights`; `round_tokens`: what a path trains on in a full round; 0: it is not asked.
    """
    trained = _tokens_of_paths(paths, tokens)
    if round_tokens <= 0 or not any(trained.values()):
        return list(path_weights)
    return [weight * min(1.0, trained[path] / round_tokens) for path, weight in zip(paths, path_weights, strict=True)]


def contribution_weights(
    paths: Sequence[Hashable], tokens: Sequence[float], path_weights: Sequence[float]
) -> list[float]:
    """The weight of each contribution to a module, summing to one.

    Peers that train the same path are replicas: they are averaged first, by the tokens they trained on, and the path
    then counts once, by its share of the documents (paper equations 2-3, normalised within the module group).

    `paths[i]`, `tokens[i]` and `path_weights[i]` describe contribution i; the path weight is the path's, so replicas
    repeat it. A path whose replicas report no tokens at all counts as if they had trained equally.
    """
    tokens = at_most(tokens, paths)
    of_path = _tokens_of_paths(paths, tokens)
    replicas = Counter(paths)
    weight_of = dict(zip(paths, path_weights, strict=True))
    total = math.fsum(weight_of.values())
    shares = [
        count / of_path[path] if of_path[path] > 0 else 1.0 / replicas[path]
        for path, count in zip(paths, tokens, strict=True)
    ]
    return [share * weight_of[path] / total for share, path in zip(shares, paths, strict=True)]


def at_most(tokens: Sequence[float], paths: Sequence[Hashable], times: float = MOST_TOKENS) -> list[float]:
    """Tokens that count: of each contribution no more than so many times the median of its path's replicas.

    Tokens are claimed and not proven: who claims 2^60 would have its path to itself. The lower median, as for lengths.
    """
    of_path: dict[Hashable, list[float]] = {}
    for path, count in zip(paths, tokens, strict=True):
        if count > 0:
            of_path.setdefault(path, []).append(count)
    bounds = {path: times * lower_median(counts) for path, counts in of_path.items()}
    return [min(count, bounds.get(path, 0.0)) for path, count in zip(paths, tokens, strict=True)]


def lower_median(numbers: Iterable[float]) -> float:
    """Of two in the middle the lower one: one of two cannot drag it up to itself. At least one number."""
    ordered = sorted(numbers)
    return ordered[(len(ordered) - 1) // 2]


def _tokens_of_paths(paths: Sequence[Hashable], tokens: Sequence[float]) -> dict[Hashable, float]:
    """What each path has trained on, with all its replicas."""
    of_path: dict[Hashable, float] = {}
    for path, count in zip(paths, tokens, strict=True):
        of_path[path] = of_path.get(path, 0.0) + count
    return of_path


def effective_paths(paths: Sequence[Hashable], path_weights: Sequence[float]) -> float:
    """n_eff = (sum w)^2 / sum w^2 over the paths that contributed; equal weights give their number."""
    weights = list({path: weight for path, weight in zip(paths, path_weights, strict=True)}.values())
    return math.fsum(weights) ** 2 / math.fsum(weight * weight for weight in weights)


def clip_factors(norms: Sequence[float], ratio: float) -> list[float]:
    """How much each contribution is scaled down so that none is longer than `ratio` times the median norm.

    The lower median, so that one of two cannot drag the bound up to itself. Factors are 1.0 for ordinary lengths.
    """
    positive = [norm for norm in norms if norm > 0]
    if not positive:
        return [1.0] * len(norms)
    bound = ratio * lower_median(positive)
    return [min(1.0, bound / norm) if norm > 0 else 1.0 for norm in norms]


def rescale(mean: Tensor, n_eff: float) -> Tensor:
    """sqrt(n_eff) * mean: averaging n paths shortens the outer gradient by about sqrt(n) (paper section 2.7)."""
    return mean * math.sqrt(n_eff)


def nesterov_step(params: Tensor, momentum: Tensor, gradient: Tensor, step: OuterStep) -> tuple[Tensor, Tensor]:
    """One outer step; returns new parameters and new momentum, and changes nothing in place.

        v <- mu v + Delta            theta <- theta - lr (Delta + mu v)

    The arithmetic of torch.optim.SGD(nesterov=True) after its first step; the momentum starts at zero, which gives
    the same first step too. All tensors fp32, shape (parameters,).
    """
    momentum = momentum * step.momentum + gradient
    return params - (gradient + momentum * step.momentum) * step.learning_rate, momentum
