"""The outer step of a module, as the run file has it: from a state and an average to the next state."""

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from dipaco_swarm.algorithm.generations import more_work
from dipaco_swarm.algorithm.outer import OuterStep, nesterov_step, rescale
from dipaco_swarm.algorithm.paths import ModuleId
from dipaco_swarm.algorithm.state import Memory, ModuleState, Room
from dipaco_swarm.algorithm.weight_decay import Places, WeightDecay
from dipaco_swarm.run.config import OuterConfig
from dipaco_swarm.swarm.encoded_average import Averaged, EncodedAverage, Span
from dipaco_swarm.swarm.fetching import Follow

MEMORY = Memory()
RESTING_PARAMETERS = 1 << 22
"""After so many each time, an outer step lets go of what it has read and written."""


def step_at(config: OuterConfig, version: int) -> OuterStep:
    """The step that takes a module from `version` to `version + 1` of its stage."""
    return OuterStep(config.learning_rate_at(version), config.momentum)


def outer_step(
    state: ModuleState, average: Averaged, config: OuterConfig, room: Room = MEMORY, *, places: Places = ()
) -> ModuleState:
    """The next version of a module: weight decay, rescale by sqrt(n_eff), then Nesterov (docs/paper.md#outer-step).

    Piece by piece, which gives the same bytes: every number is computed by itself. `places`: where weights decay.
    """
    step = step_at(config, state.version)
    work = more_work(state.work, average.work)
    after = room.state(state.version + 1, len(state.params), work)
    for start, gradient in average.parts():
        here = slice(start, start + len(gradient))
        gradient = _finished(gradient, state.params[here], start, average.spans, places, rescales=config.rescale)
        params, momentum = nesterov_step(state.params[here], state.momentum[here], gradient, step)
        after.params[here], after.momentum[here] = params, momentum
        if here.stop // RESTING_PARAMETERS > start // RESTING_PARAMETERS:
            room.rest(state, after)
    return after


def _finished(
    part: Tensor, params: Tensor, start: int, spans: Sequence[Span], places: Places, *, rescales: bool
) -> Tensor:
    """A part of an average that begins at `start`, each span of it with its weight decay and by its number of paths."""
    found = []
    for span in spans:
        here = slice(max(start, span.start) - start, min(start + len(part), span.stop) - start)
        if here.start < here.stop:
            gradient = part[here]
            if places and span.decay:
                gradient = WeightDecay(span.decay, places).put_on(gradient, params[here], start + here.start)
            found.append(rescale(gradient, span.effective_paths) if rescales else gradient)
    return torch.cat(found) if len(found) > 1 else found[0]


def follow_of(config: OuterConfig, decays: Sequence[Places], module: ModuleId) -> Follow:
    """`follow_averages` of a module. `decays`: where weights decay, level by level; none: nowhere."""
    return partial(follow_averages, config, places=decays[module.level] if decays else ())


def follow_averages(
    config: OuterConfig,
    state: ModuleState,
    averages: Sequence[EncodedAverage],
    room: Room = MEMORY,
    *,
    places: Places = (),
) -> ModuleState | None:
    """The state that these rounds lead to from this one; None when one of them starts from another state."""
    for average in averages:
        if average.base != state.digest:
            return None
        state = outer_step(state, average, config, room, places=places)
    return state
