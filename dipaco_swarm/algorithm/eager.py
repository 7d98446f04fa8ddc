"""Where a path goes on while a round of its module is made: from where it expects the agreed state to be. Pure.

Its own outer gradient stands for the mean, which is not there yet (Eager updates, arXiv 2502.12996, without the others'
last gradients). What is given and agreed, announced and saved is as without: only the model is elsewhere meanwhile, and
comes back when the round is over, whatever its outcome (docs/decisions/0031-rounds-are-expected.md).
"""

from collections.abc import Iterator

from torch import Tensor

from dipaco_swarm.algorithm.outer import OuterStep, nesterov_step, outer_gradient
from dipaco_swarm.algorithm.state import ModuleState

PIECE = 1 << 20
"""Parameters that are computed at once: what is expected is never whole in memory."""


def gone_ahead(local: Tensor, base: ModuleState, given: Tensor, step: OuterStep) -> Tensor:
    """The parameters to train on with: the expected state, and on top of it what was trained since `given`.

    `local`: the parameters now, which are used up. `given`: those that the round was given. Both fp32 (parameters,).
    """
    for here, expected in _expected(base, given, step):
        local[here].sub_(given[here]).add_(expected)
    return local


def come_back(local: Tensor, base: ModuleState, given: Tensor, step: OuterStep) -> Tensor:
    """The other way: what was given, and on top of it what was trained since. Arguments as of `gone_ahead`."""
    for here, expected in _expected(base, given, step):
        local[here].sub_(expected).add_(given[here])
    return local


def _expected(base: ModuleState, given: Tensor, step: OuterStep) -> Iterator[tuple[slice, Tensor]]:
    """The outer step from `base` with our own outer gradient alone, piece by piece."""
    for start in range(0, len(given), PIECE):
        here = slice(start, start + PIECE)
        gradient = outer_gradient(base.params[here], given[here])
        yield here, nesterov_step(base.params[here], base.momentum[here], gradient, step)[0]
