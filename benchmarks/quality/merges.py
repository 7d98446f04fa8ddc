"""Other ways to go on while a round is made and to merge its result, for comparison with the product's.

    eager    the product's: a path goes on from where it expects the agreed state (`dipaco_swarm/algorithm/eager.py`)
    rebase   it goes on from where it is; agreed state + what was trained since the snapshot
    alpha    as that, and half-way between the result and where the path is (Streaming DiLoCo mixes late results,
             arXiv 2501.18512)

They replace functions of the product for the length of a run.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Literal
from unittest.mock import patch

from torch import Tensor

from dipaco_swarm import outer_round
from dipaco_swarm.algorithm.paths import ModuleId
from dipaco_swarm.algorithm.progress import ModuleProgress, Part, merged
from dipaco_swarm.algorithm.state import ModuleState
from dipaco_swarm.path_in_training import PathInTraining

Merge = Literal["rebase", "alpha", "eager"]
ALPHA = 0.5


@contextmanager
def merging(merge: Merge) -> Iterator[None]:
    """Within the block all paths of this process merge so."""
    with ExitStack() as replaced:
        if merge != "eager":
            replaced.enter_context(patch.object(outer_round, "_go_ahead", _stay))
            replaced.enter_context(patch.object(PathInTraining, "local", _where_it_is))
        if merge == "alpha":
            replaced.enter_context(patch.object(outer_round, "merged", _alpha))
        yield


def _stay(peer: PathInTraining, module: ModuleId) -> None:
    """The path goes on from where it is."""


def _where_it_is(peer: PathInTraining, module: ModuleId) -> Tensor:
    return peer.model.vector(module.level)


def _alpha(progress: ModuleProgress, state: ModuleState, part: Part, local: Tensor) -> tuple[ModuleProgress, Tensor]:
    after, on_top = merged(progress, state, part, local.clone())
    return after, on_top if not after.tokens else on_top + (local - on_top) * ALPHA
