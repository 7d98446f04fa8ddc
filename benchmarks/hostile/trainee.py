"""Somebody who trains a path of a small model on real text, and looks at what others send; `pure.py` has the rounds."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from benchmarks.hostile.text import LENGTH, VOCABULARY, Sequences
from dipaco_swarm.algorithm.doubts import FEWEST, Place, Trial
from dipaco_swarm.algorithm.outer import OuterGradient
from dipaco_swarm.algorithm.paths import ModuleId
from dipaco_swarm.algorithm.state import ModuleState
from dipaco_swarm.algorithm.weight_decay import WeightDecay
from dipaco_swarm.events.training import Doubted
from dipaco_swarm.peer.trying import Judge
from dipaco_swarm.run.config import InnerConfig, LevelConfig, LimitsConfig, ModelConfig
from dipaco_swarm.swarm.reduced import Reduced, ReducedPiece
from dipaco_swarm.swarm.round.codecs.codec import codec_of
from dipaco_swarm.swarm.round.reduction import length_of
from dipaco_swarm.swarm.round.roster import roster_of
from dipaco_swarm.training.bending import TRIED, bends
from dipaco_swarm.training.inner import InnerTrainer, TrainingSettings, learning_rate_ratios
from dipaco_swarm.training.modules import PathModel, build_network

MODEL = ModelConfig(
    hidden_size=48, intermediate_size=96, num_hidden_layers=2, num_attention_heads=2, max_position_embeddings=LENGTH
)
LEVELS = (LevelConfig(blocks=(0,), embedding=True), LevelConfig(blocks=(1,), head=True))
BATCH = 4
WARM_UP = 120
"""Inner steps of one model on all domains, before the first round."""
INNER_STEPS = 10


@dataclass(frozen=True)
class Said:
    """What a member says of itself in a roster (`Joined`)."""

    path: int
    tokens: int
    norm: float
    decay: float
    doubts: tuple[str, ...] = ()
    reduces: bool = True
    nonce: bytes = bytes(16)


Given = Mapping[str, tuple[Said, Tensor]]
"""To a round of one module: by whom, what it says, and its outer gradient."""
States = Mapping[ModuleId, ModuleState]


class Trainee:
    """Somebody who trains a path."""

    def __init__(self, name: str, path: int, rows: Sequences, inner: InnerConfig, seed: int) -> None:
        self.name, self.path = name, path
        self.model = PathModel(build_network(MODEL, VOCABULARY, 0), LEVELS)
        self._trainer = InnerTrainer(self.model, inner, TrainingSettings(threads=1))
        self._trainer.skip_to(WARM_UP)
        ratios = learning_rate_ratios(inner)
        self.places = [self.model.decay_places(level, ratios) for level in range(self.model.num_levels)]
        self._judge = Judge(name, torch.Generator().manual_seed(seed))
        self._rows = rows
        self._random = np.random.default_rng([seed, path])
        self._looks = np.random.default_rng([seed, path, 1])

    def train(self, states: States, modules: Sequence[ModuleId], steps: int) -> list[Tensor]:
        """From these states; returns the outer gradient of each module without weight decay."""
        self.load(states, modules)
        self._trainer.train(self._batches(), steps)
        amount, found = self._trainer.decay_of_step * steps, []
        for module in modules:
            decay = WeightDecay(amount, self.places[module.level])
            found.append(OuterGradient(states[module].params, self.model.vector(module.level), decay)[:])
        return found

    def look(self, states: States, given: Mapping[ModuleId, Given]) -> None:
        """Try what was given to one of our modules, all of it; in larger models a piece has as many numbers."""
        self.load(states, given)
        chances = sorted(module for module, members in given.items() if len(members) >= FEWEST)
        if not chances:
            return
        module = chances[self._looks.integers(len(chances))]
        self.judge(self._judge, module, len(states[module].params), given[module])

    def judge(self, judge: Judge, module: ModuleId, count: int, members: Given) -> tuple[list[Doubted], list[Trial]]:
        """What a judge says of contributions to a module of so many parameters, and from which trials: of each member
        by name, and of noise. The states that they were made from are on the model."""
        roster = roster_of({name: said for name, (said, _) in members.items()}, LimitsConfig().norm_clip)
        codec = codec_of("fp32")
        data = {name: codec.encode(vector) for name, (_, vector) in members.items()}
        reduced = Reduced(
            codec.name,
            scales={entry.peer: entry.scale for entry in roster},
            tokens={entry.peer: entry.tokens for entry in roster},
            pieces=[ReducedPiece(0, count, data)],
        )
        rows = torch.from_numpy(self._rows[self._looks.integers(len(self._rows), size=TRIED)])
        trials: list[Trial] = []

        def bends_here(ways: Sequence[Iterable[Place]]) -> list[Trial]:
            trials.extend(bends(self.model, module.level, ways, rows, stop=lambda: False))
            return trials

        return judge.judge(module, count, reduced, members.keys(), bends_here), trials

    def load(self, states: States, modules: Iterable[ModuleId]) -> None:
        for module in modules:
            self.model.load(module.level, states[module].params)

    @property
    def doubts(self) -> tuple[str, ...]:
        return self._judge.doubts.peers

    def said(self, steps: int, gradient: Tensor) -> Said:
        """What it says of so many steps, honestly."""
        tokens, decay = steps * BATCH * LENGTH, self._trainer.decay_of_step * steps
        return Said(self.path, tokens, float(length_of(gradient)), decay, self.doubts)

    def _batches(self) -> Iterator[Tensor]:
        while True:
            yield torch.from_numpy(self._rows[self._random.integers(len(self._rows), size=BATCH)])
