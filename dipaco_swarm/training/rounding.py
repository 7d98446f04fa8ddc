"""Whether bf16 activations pay on this machine's CPU: a trial of its largest multiplications, a second or less.

CPUs with avx512_bf16 or amx multiply bf16 about twice as fast as fp32 or more; others several times as slowly. What
counts is measured: of 10 million parameters a step took 0.66 of its time on an AMD EPYC, of 60 million 0.58, of half a
million 0.94 (on a busy machine, by CPU time; `python -m benchmarks.inner` has a row for bf16).
"""

import logging
import time
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from dipaco_swarm.run.config import RunConfig
from dipaco_swarm.training.inner import TrainingSettings

log = logging.getLogger(__name__)

LEAST_WIDTH = 256
"""Narrower paths gain nothing, and keep the bytes that they have in fp32."""
PAYS = 1.3
"""Times as fast: as the rest of a step stays as it is, less is no gain to be sure of."""
HOPELESS = 0.5
"""Times as fast: a CPU without bf16 needs several times as long, and is not kept from training to know it exactly."""
TRIES = 5
FEW_TOKENS, TOKENS = 64, 512


def with_rounding(settings: TrainingSettings, config: RunConfig) -> TrainingSettings:
    """With bf16 chosen, or not, where nobody has and the CPU trains.

    Never in synchronous runs: that their peers end on the bytes of one process is what they are for.
    """
    width = config.model.hidden_size or 0
    open_question = settings.autocast is None and settings.device == "cpu"
    if not open_question or width < LEAST_WIDTH or config.rounds.pacing == "synchronous":
        return settings
    times = bf16_is_faster(width, config.model.intermediate_size or 4 * width)
    if times < PAYS:
        return settings
    log.info("bf16 activations: this CPU multiplies %.1f times as fast with them (--dtype fp32 for none)", times)
    return replace(settings, autocast=True)


def bf16_is_faster(width: int, inner: int) -> float:
    """How many times as fast a block's multiplication is in bf16, with the threads that torch has."""
    weight = torch.ones(inner, width)
    times = _times_as_fast(torch.ones(FEW_TOKENS, width), weight)
    return times if times < HOPELESS else _times_as_fast(torch.ones(TOKENS, width), weight)


def _times_as_fast(states: Tensor, weight: Tensor) -> float:
    def taken(*, rounded: bool) -> float:
        with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16, enabled=rounded, cache_enabled=False):
            began = time.perf_counter()
            F.linear(states, weight)
            return time.perf_counter() - began

    taken(rounded=False), taken(rounded=True)  # makes what the others use
    exact, in_bf16 = (min(taken(rounded=rounded) for _ in range(TRIES)) for rounded in (False, True))
    return exact / in_bf16
