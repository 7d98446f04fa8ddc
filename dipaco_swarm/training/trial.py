"""How fast a machine trains a path of a run, before it takes part: fresh parameters, and tokens that are none."""

import time
from dataclasses import dataclass

import torch

from dipaco_swarm.run.config import RunConfig
from dipaco_swarm.training.inner import InnerTrainer, TrainingSettings
from dipaco_swarm.training.modules import PathModel, build_network
from dipaco_swarm.training.rounding import with_rounding

WARM_UP_STEPS = 1
"""The first step allocates what the others use."""


@dataclass(frozen=True)
class Trial:
    """What is trained."""

    config: RunConfig
    vocabulary: int

    @property
    def round_tokens(self) -> int:
        """What a path is meant to train for a round."""
        return self.config.round_tokens

    def tokens_per_second(self, device: str, seconds: float) -> float:
        """In inner steps, for so long, and one step at least. Raises SwarmError where the device cannot train it."""
        config = self.config
        model = PathModel(build_network(config.model, self.vocabulary, config.seed), config.levels)
        trainer = InnerTrainer(model, config.inner, with_rounding(TrainingSettings(device), config))
        shape = (config.inner.batch_sequences, config.data.sequence_length)
        batch = torch.randint(self.vocabulary, shape, generator=torch.Generator().manual_seed(config.seed))
        trainer.train(iter([batch] * WARM_UP_STEPS), WARM_UP_STEPS)
        began, tokens = time.monotonic(), 0
        while not tokens or time.monotonic() - began < seconds:
            tokens += trainer.train(iter([batch]), 1).tokens
        return tokens / (time.monotonic() - began)
