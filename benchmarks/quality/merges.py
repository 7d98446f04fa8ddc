"""Other ways to merge a round's result that comes late, for comparison: none of them is in the product.

    rebase   the product's: agreed state + what was trained since the snapshot
    alpha    half-way between that and where the path is (Streaming DiLoCo mixes late results, arXiv 2501.18512)
    eager    after its snapshot a path goes on from where it expects the agreed state to be: an outer step with its own
             outer gradient in place of the mean (Eager updates, arXiv 2502.12996, without the others' last gradients)

They replace functions of `dipaco_swarm.outer_round` for the length of a run, and know no failed rounds: a simulation
without faults has none.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Literal
from unittest.mock import patch
from weakref import WeakKeyDictionary

from torch import Tensor

from dipaco_swarm import outer_round
from dipaco_swarm.algorithm.outer import OuterStep, nesterov_step, outer_gradient
from dipaco_swarm.algorithm.paths import ModuleId
from dipaco_swarm.algorithm.progress import ModuleProgress, Part, merged
from dipaco_swarm.algorithm.state import ModuleState
from dipaco_swarm.path_in_training import PathInTraining

Merge = Literal["rebase", "alpha", "eager"]
ALPHA = 0.5
Merged = Callable[[ModuleProgress, ModuleState, Part, Tensor], tuple[ModuleProgress, Tensor]]


@contextmanager
def merging(merge: Merge) -> Iterator[None]:
    """Within the block all paths of this process merge so."""
    with ExitStack() as replaced:
        for name, function in _functions(merge).items():
            replaced.enter_context(patch.object(outer_round, name, function))
        yield


def _functions(merge: Merge) -> dict[str, Callable[..., object]]:
    """What takes the place of which function of the product."""
    if merge == "alpha":
        return {"merged": _alpha}
    if merge == "eager":
        give, merged_eagerly = _eager(outer_round._give)
        return {"_give": give, "merged": merged_eagerly}
    return {}


def _alpha(progress: ModuleProgress, state: ModuleState, part: Part, local: Tensor) -> tuple[ModuleProgress, Tensor]:
    after, on_top = merged(progress, state, part, local.clone())
    return after, on_top if not after.tokens else on_top + (local - on_top) * ALPHA


def _eager(give: Callable[[PathInTraining, Mapping[ModuleId, Part]], None]) -> tuple[Callable[..., None], Merged]:
    starts: WeakKeyDictionary[Part, Tensor] = WeakKeyDictionary()

    def give_and_go_ahead(peer: PathInTraining, parts: Mapping[ModuleId, Part]) -> None:
        give(peer, parts)
        for module, part in parts.items():
            base, config = peer.progress[module].base, peer.rules.outer
            step = OuterStep(config.learning_rate_at(base.version), config.momentum)
            own = outer_gradient(base.params, part.params)
            starts[part], _ = nesterov_step(base.params, base.momentum, own, step)
            peer.model.load(module.level, starts[part])

    def merged_eagerly(
        progress: ModuleProgress, state: ModuleState, part: Part, local: Tensor
    ) -> tuple[ModuleProgress, Tensor]:
        return merged(progress, state, Part(part.tokens, starts[part]), local)

    return give_and_go_ahead, merged_eagerly
