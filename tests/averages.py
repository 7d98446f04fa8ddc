"""Averages of rounds that nobody has made, for tests of what is done with them."""

from collections.abc import Sequence

import torch
from torch import Tensor

from dipaco_swarm.algorithm.state import ModuleState
from dipaco_swarm.outer_step import outer_step
from dipaco_swarm.run.config import OuterConfig
from dipaco_swarm.swarm.encoded_average import EncodedAverage, Span
from dipaco_swarm.swarm.round.codecs.codec import codec_of
from dipaco_swarm.swarm.round.reduction import piece_bounds, piece_parameters

OUTER = OuterConfig(learning_rate=0.7, momentum=0.6, ramp_rounds=2)
PARAMETERS = 150_000


def state_of(seed: int, parameters: int = PARAMETERS) -> ModuleState:
    return ModuleState(4, noise(seed, parameters), noise(seed + 1, parameters), work=100)


def noise(seed: int, parameters: int = PARAMETERS) -> Tensor:
    return torch.randn(parameters, generator=torch.Generator().manual_seed(seed))


def average_of(base: ModuleState, seed: int, codec: str = "int8", spans: Sequence[Span] = ()) -> EncodedAverage:
    """What a round from this state may have agreed on."""
    mean, parameters = noise(seed, len(base.params)), len(base.params)
    size, encode = piece_parameters(parameters, 2), codec_of(codec).encode
    bounds = [piece_bounds(piece, size, parameters) for piece in range(-(-parameters // size))]
    return EncodedAverage(
        base=base.digest,
        work=7,
        spans=tuple(spans) or (Span(0, parameters, 2.0),),
        codec=codec,
        parameters=parameters,
        piece_parameters=size,
        pieces=[encode(mean[start:stop]) for start, stop in bounds],
    )


def chain_from(base: ModuleState, length: int, codec: str = "int8") -> list[tuple[EncodedAverage, ModuleState]]:
    """So many averages, each with the state that it leads to."""
    found = []
    for seed in range(length):
        average = average_of(base, 100 + seed, codec)
        base = outer_step(base, average, OUTER)
        found.append((average, base))
    return found
