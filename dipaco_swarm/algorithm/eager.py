"""Where a path goes on while a round of its module is made: from where it expects the agreed state to be. Pure.

Its own outer gradient stands for the mean, which is not there yet (Eager updates, arXiv 2502.12996, without the others'
last gradients). What is given and agreed, announced and saved is as without: only the model is elsewhere meanwhile, and
comes back when the round is over, whatever its outcome (docs/decisions/0031-rounds-are-expected.md).
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from dipaco_swarm.algorithm.outer import OuterStep
from dipaco_swarm.algorithm.state import ModuleState

PIECE = 1 << 16
"""Parameters that are computed at once: they fit into the cache, which is several times as fast."""


def go_ahead(local: Tensor, base: ModuleState, given: Tensor, step: OuterStep) -> Tensor:
    """The parameters to train on with: the expected state, and on top of it what was trained since `given`.

    `local`: the parameters now, which are used up. `given`: those that the round was given. Both fp32 (parameters,).
    """
    for here, way in _way(base, given, step):
        local[here].add_(way)
    return local


def come_back(local: Tensor, base: ModuleState, given: Tensor, step: OuterStep) -> Tensor:
    """What was given, and on top of it what was trained since: `go_ahead` taken back, but for the rounding."""
    for here, way in _way(base, given, step):
        local[here].sub_(way)
    return local


def _way(base: ModuleState, given: Tensor, step: OuterStep) -> Iterator[tuple[slice, Tensor]]:
    """From what was given to the outer step with nothing else, piece by piece: `nesterov_step`, multiplied out."""
    of_gradient = 1.0 - step.learning_rate * (1.0 + step.momentum)
    of_momentum = -step.learning_rate * step.momentum**2
    for start in range(0, len(given), PIECE):
        here = slice(start, start + PIECE)
        gradient = torch.sub(base.params[here], given[here])
        yield here, gradient.mul_(of_gradient).add_(base.momentum[here], alpha=of_momentum)
