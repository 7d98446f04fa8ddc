"""The outer step of a module, as the run file has it: from a state and an average to the next state."""

from collections.abc import Sequence

import torch
from torch import Tensor

from dipaco_swarm.algorithm.generations import more_work
from dipaco_swarm.algorithm.outer import OuterStep, nesterov_step, rescale
from dipaco_swarm.algorithm.state import Memory, ModuleState, Room
from dipaco_swarm.run.config import OuterConfig
from dipaco_swarm.swarm.encoded_average import Averaged, EncodedAverage, Span

MEMORY = Memory()
RESTING_PARAMETERS = 1 << 22
"""After so many each time, an outer step lets go of what it has read and written."""


def step_at(config: OuterConfig, version: int) -> OuterStep:
    """The step that takes a module from `version` to `version + 1` of its stage."""
    return OuterStep(config.learning_rate_at(version), config.momentum)


def outer_step(state: ModuleState, average: Averaged, config: OuterConfig, room: Room = MEMORY) -> ModuleState:
    """The next version of a module: rescale by sqrt(n_eff), then Nesterov (docs/paper.md#outer-step).

    Piece by piece, which gives the same bytes: every number is computed by itself.
    """
    step = step_at(config, state.version)
    work = more_work(state.work, average.work)
    after = room.state(state.version + 1, len(state.params), work)
    for start, gradient in average.parts():
        here = slice(start, start + len(gradient))
        if config.rescale:
            gradient = _rescaled(gradient, start, average.spans)
        params, momentum = nesterov_step(state.params[here], state.momentum[here], gradient, step)
        after.params[here], after.momentum[here] = params, momentum
        if here.stop // RESTING_PARAMETERS > start // RESTING_PARAMETERS:
            room.rest(state, after)
    return after


def _rescaled(part: Tensor, start: int, spans: Sequence[Span]) -> Tensor:
    """A part of an average that begins at `start`, each span of it rescaled by its number of paths."""
    stop = start + len(part)
    found = [span for span in spans if span.start < stop and start < span.stop]
    cuts = [(max(start, span.start) - start, min(stop, span.stop) - start, span.effective_paths) for span in found]
    return torch.cat([rescale(part[begin:end], paths) for begin, end, paths in cuts])


def follow_averages(
    config: OuterConfig, state: ModuleState, averages: Sequence[EncodedAverage], room: Room = MEMORY
) -> ModuleState | None:
    """The state that these rounds lead to from this one; None when one of them starts from another state."""
    for average in averages:
        if average.base != state.digest:
            return None
        state = outer_step(state, average, config, room)
    return state
