"""Where a path goes on while a round of its module is made: from where it expects the agreed state to be. Pure.

Its own outer gradient stands for the mean, which is not there yet (Eager updates, arXiv 2502.12996, without the others'
last gradients). What is given and agreed, announced and saved is as without: only the model is elsewhere meanwhile, and
comes back when the round is over, whatever its outcome (docs/decisions/0031-rounds-are-expected.md).
"""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from dipaco_swarm.algorithm.outer import OuterStep
from dipaco_swarm.algorithm.state import ModuleState

PIECE = 1 << 16
"""Parameters that are computed at once: they fit into the cache, which is several times as fast."""

Way = Callable[[slice], Tensor]
"""Places of a module's parameters -> how far these go, fp32; the caller's own. Ask for `pieces_of` them."""


def way_ahead(base: ModuleState, given: Tensor, step: OuterStep) -> Way:
    """From what a round was given to the outer step with nothing else: `nesterov_step`, multiplied out.

    With this on top, the parameters to train on with are the expected state and what was trained since `given`.
    `given`: the parameters that the round was given, fp32 (parameters,).
    """
    of_gradient = 1.0 - step.learning_rate * (1.0 + step.momentum)
    of_momentum = -step.learning_rate * step.momentum**2

    def way(here: slice) -> Tensor:
        gradient = torch.sub(base.params[here], given[here])
        return gradient.mul_(of_gradient).add_(base.momentum[here], alpha=of_momentum)

    return way


def come_back(local: Tensor, way: Way) -> Tensor:
    """Parameters without the way that they have gone ahead, but for the rounding: what was given and trained since.

    `local`: fp32 (parameters,), which is used up.
    """
    for here in pieces_of(slice(0, len(local))):
        local[here].sub_(way(here))
    return local


def pieces_of(place: slice) -> Iterator[slice]:
    """Places of `PIECE` parameters or fewer, one after the other."""
    for start in range(place.start, place.stop, PIECE):
        yield slice(start, min(start + PIECE, place.stop))
