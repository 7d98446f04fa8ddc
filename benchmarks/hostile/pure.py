"""Rounds without a network: honest members train a real small model, others poison it, and the product averages.

What is played is what a round computes: outer gradients of inner training on real text, the roster with its clip and
weights, the averaging rule piece by piece, the outer step. What others send is known to an attacker before it sends
(`dipaco_swarm/testing/poison.py`). Everything is equal for all rows of a seed, but for the attack and the defence.
"""

import math
import multiprocessing
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from benchmarks.hostile.text import DOMAINS, LENGTH, VOCABULARY, Sequences, Text, read_text
from benchmarks.hostile.trainee import BATCH, INNER_STEPS, LEVELS, MODEL, WARM_UP, Given, Said, States, Trainee
from dipaco_swarm.algorithm.doubts import MAX_DOUBTS
from dipaco_swarm.algorithm.paths import ModuleId, PathIndex, PathTable
from dipaco_swarm.algorithm.state import ModuleState
from dipaco_swarm.outer_step import outer_step
from dipaco_swarm.run.config import InnerConfig, LimitsConfig, OuterConfig
from dipaco_swarm.swarm.encoded_average import Span
from dipaco_swarm.swarm.interface import ModuleGroup
from dipaco_swarm.swarm.round.codecs.codec import codec_of
from dipaco_swarm.swarm.round.reduction import (
    decay_of,
    effective_paths_of,
    is_acceptable,
    length_of,
    piece_average,
    piece_bounds,
)
from dipaco_swarm.swarm.round.roster import Joined, named_in, roster_of
from dipaco_swarm.testing.poison import POISONS, Poison, Seen
from dipaco_swarm.training.evaluation import evaluate
from dipaco_swarm.training.inner import InnerTrainer, TrainingSettings
from dipaco_swarm.training.modules import PathModel, build_network
from dipaco_swarm.training.pieces import EvaluationSet

Found = TypeVar("Found")

OUTER = OuterConfig(learning_rate=0.7, momentum=0.3, ramp_rounds=3)
PREFIX = 16
"""Tokens that are not scored."""


@dataclass(frozen=True)
class Setting:
    """Who is there: honest members first."""

    name: str
    table: tuple[tuple[int, ...], ...]
    domains: Sequence[Sequence[str]]
    """Of each path."""
    honest: Sequence[int]
    """The path of each honest member."""
    hostile: Sequence[int]
    """The path that each hostile one says it trains."""
    steps: Sequence[int] = (INNER_STEPS,)
    """Of the honest members in a round, by turns, and with one more of them in each round."""

    @property
    def share(self) -> float:
        """Of hostile members, of all."""
        return len(self.hostile) / (len(self.hostile) + len(self.honest))


ONE_PATH = ((0, 0),)
FOUR_PATHS = ((0, 0), (0, 1), (1, 0), (1, 1))
FIVE_PATHS = tuple((0, path) for path in range(5))
EVERY = (DOMAINS,)
OWN = tuple((domain,) for domain in DOMAINS)
SETTINGS = {
    setting.name: setting
    for setting in (
        Setting("1 of 2", FOUR_PATHS, OWN[:4], (1, 2, 3), (0,)),
        Setting("1 of 4", FOUR_PATHS, OWN[:4], (0, 0, 1, 1, 2, 2, 3), (3,)),
        Setting("1 of 5 replicas", ONE_PATH, EVERY, (0,) * 4, (0,)),
        Setting("2 of 5 replicas", ONE_PATH, EVERY, (0,) * 3, (0, 0)),
        Setting("1 of 5 paths", FIVE_PATHS, OWN, (0, 1, 2, 3), (4,)),
        Setting("2 of 10", FIVE_PATHS, OWN, (0, 0, 1, 1, 2, 2, 3, 4), (0, 1)),
        Setting("2 of 10, each beside one", FIVE_PATHS, OWN, (0, 0, 1, 1, 2, 2, 3, 4), (3, 4)),
        Setting("3 of 10", FIVE_PATHS, OWN, (0, 0, 1, 1, 2, 2, 3), (0, 1, 2)),
    )
}


@dataclass(frozen=True)
class Defence:
    """The run's rules about contributions; those of run files that say nothing."""

    averaging: str = OuterConfig().averaging
    norm_clip: float = LimitsConfig().norm_clip
    tries: bool = True
    """Whether honest members try what others send, and doubt."""
    codec: str = "fp32"

    def __str__(self) -> str:
        return f"{self.averaging}, clip {self.norm_clip:g}"


@dataclass(frozen=True, eq=False)
class Whole:
    """An average with its spans (`Averaged`)."""

    pieces: Sequence[tuple[int, Tensor]]
    spans: tuple[Span, ...]
    work: int = 0

    def parts(self) -> Iterator[tuple[int, Tensor]]:
        yield from self.pieces


Look = Callable[[Trainee, States, Mapping[ModuleId, Given]], object]
"""What an honest member does after a round, with the modules as they are now, and what was given to its own."""


@dataclass(frozen=True, eq=False)
class Bench:
    """What all rows of a seed have in common."""

    folder: Path
    seed: int
    rounds: int
    longer: int = 1
    """How many times as long as these rounds the schedule of learning rates is."""

    @cached_property
    def text(self) -> Text:
        return read_text(self.folder)

    @property
    def inner(self) -> InnerConfig:
        return InnerConfig(
            learning_rate=3e-3,
            embedding_learning_rate_ratio=30.0,
            head_learning_rate_ratio=6.0,
            beta2=0.99,
            warmup_steps=50,
            schedule_steps=WARM_UP + self.rounds * INNER_STEPS * self.longer,
            batch_sequences=BATCH,
        )

    @cached_property
    def start(self) -> tuple[Tensor, ...]:
        """The modules that everything begins with, by level."""
        model = PathModel(build_network(MODEL, VOCABULARY, self.seed), LEVELS)
        rows = self.rows(DOMAINS)
        trainer = InnerTrainer(model, self.inner, TrainingSettings(threads=1))
        random = np.random.default_rng([self.seed, 1000])

        def batches() -> Iterator[Tensor]:
            while True:
                yield torch.from_numpy(rows[random.integers(len(rows), size=BATCH)])

        trainer.train(batches(), WARM_UP)
        return tuple(model.vector(level) for level in range(model.num_levels))

    @cached_property
    def origin(self) -> tuple[Tensor, ...]:
        """The modules before the first step, by level."""
        model = PathModel(build_network(MODEL, VOCABULARY, self.seed), LEVELS)
        return tuple(model.vector(level) for level in range(model.num_levels))

    def rows(self, domains: Sequence[str]) -> Sequences:
        return np.concatenate([self.text.train[domain] for domain in domains])

    def loss(self, setting: Setting, states: States, model: PathModel) -> float:
        """Nats a token on held-out text of the domains whose paths somebody honest trains, each by its path."""
        table, total, tokens = PathTable(setting.table), 0.0, 0
        for path in sorted(set(setting.honest)):
            for module in table.modules_of(PathIndex(path)):
                model.load(module.level, states[module].params)
            for domain in setting.domains[path]:
                rows = self.text.held_out[domain]
                pieces = EvaluationSet(rows, np.full(len(rows), LENGTH), (domain,) * len(rows))
                score = evaluate(model.network, pieces, PREFIX)[domain]
                total, tokens = total + score.log_likelihood, tokens + score.tokens
        return -total / tokens


@dataclass
class Outcome:
    """What came of it."""

    losses: list[float]
    """Held-out, after each round that was looked at."""
    counted: dict[str, list[int]] = field(default_factory=lambda: {"honest": [0, 0], "hostile": [0, 0]})
    """Pieces of contributions that counted, and all."""
    doubted: set[str] = field(default_factory=set)
    """By somebody honest, at some time."""

    @property
    def perplexity(self) -> float:
        return math.exp(min(700.0, self.losses[-1])) if math.isfinite(self.losses[-1]) else math.inf


def play(
    bench: Bench, setting: Setting, defence: Defence, attack: str | None, look_every: int = 0, look: Look = Trainee.look
) -> Outcome:
    """All rounds. `attack`: a name of `POISONS`; None: the hostile members are not there."""
    torch.set_num_threads(1)
    table = PathTable(setting.table)
    modules = {path: tuple(table.modules_of(PathIndex(path))) for path in range(len(setting.table))}
    states = {module: ModuleState.seed(bench.start[module.level].clone()) for module in table.modules}
    poison = None if attack is None else POISONS[attack]
    names = [f"honest-{number}" for number in range(len(setting.honest))]
    honest = [
        Trainee(names[number], path, bench.rows(setting.domains[path]), bench.inner, 100 * bench.seed + number)
        for number, path in enumerate(setting.honest)
    ]
    hostile = [] if poison is None else [
        Trainee("", path, _rows_of(poison, bench, setting, path), bench.inner, 100 * bench.seed + 50 + number)
        for number, path in enumerate(setting.hostile)
    ]  # fmt: skip
    slander = tuple(names[:MAX_DOUBTS])
    """Whom hostile members say that they doubt: everybody."""
    memories: dict[tuple[int, ModuleId], dict[str, Tensor]] = {}
    random = torch.Generator().manual_seed(bench.seed + 10**6)  # the model's first parameters have smaller seeds
    outcome = Outcome([])
    for number in range(bench.rounds):
        given: dict[ModuleId, dict[str, tuple[Said, Tensor]]] = {module: {} for module in table.modules}
        for index, trainee in enumerate(honest):
            steps = setting.steps[(number + index) % len(setting.steps)]
            found = trainee.train(states, modules[trainee.path], steps)
            for module, gradient in zip(modules[trainee.path], found, strict=True):
                given[module][trainee.name] = trainee.said(steps, gradient), gradient
        true = {module: [gradient for _, gradient in members.values()] for module, members in given.items()}
        for index, trainee in enumerate(hostile):
            assert poison is not None
            steps = max(1, round(poison.steps * INNER_STEPS))
            owns = trainee.train(states, modules[trainee.path], steps if _trains(attack) else 1)
            for module, own in zip(modules[trainee.path], owns, strict=True):
                others = true[module] or [own]
                norms = sorted(float(length_of(other)) for other in others)
                longest = defence.norm_clip * norms[(len(norms) - 1) // 2]
                memory = memories.setdefault((index, module), {})
                origin = bench.origin[module.level]
                seen = Seen(own, others, states[module].params, longest, random, origin, memory)
                made = poison.made(seen)
                said = trainee.said(INNER_STEPS, made)
                said = replace(said, tokens=poison.claims or said.tokens, doubts=slander)
                given[module][f"hostile-{index}"] = said, made
        for module, members in given.items():
            if members:
                average = _round(states[module], module, members, setting, defence, outcome)
                states[module] = outer_step(states[module], average, OUTER, places=honest[0].places[module.level])
        for trainee in honest:
            if defence.tries:
                look(trainee, states, {module: given[module] for module in modules[trainee.path]})
                outcome.doubted.update(trainee.doubts)
        if number == bench.rounds - 1 or (look_every and number % look_every == 0):
            outcome.losses.append(bench.loss(setting, states, honest[0].model))
    return outcome


def in_processes(
    found: Callable[..., Found], folder: Path, plan: Sequence[Sequence[Any]], jobs: int
) -> Iterator[Found]:
    """What is found of each line of a plan, in order; `found` is called with the folder and what is in the line."""
    read_text(folder)  # once for all processes
    with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        yield from pool.map(found, *zip(*((folder, *of) for of in plan), strict=True))


def _trains(attack: str | None) -> bool:
    return attack in ("mixed", "scale", "stale", "tenth", "garbage")


def _rows_of(poison: Poison, bench: Bench, setting: Setting, path: int) -> Sequences:
    rows = bench.rows(setting.domains[path])
    return np.random.default_rng(0).integers(1, VOCABULARY, size=rows.shape) if poison.garbage else rows


def _round(
    state: ModuleState,
    module: ModuleId,
    members: Given,
    setting: Setting,
    defence: Defence,
    outcome: Outcome,
) -> Whole:
    """The average of one round of one module, as the product computes it."""
    table = PathTable(setting.table)
    group = ModuleGroup(
        0,
        module,
        {path: 1.0 for path in table.paths_through(module)},
        defence.averaging,
        round_tokens=INNER_STEPS * BATCH * LENGTH,
    )
    joins: dict[str, Joined] = {name: said for name, (said, _) in members.items()}
    roster = roster_of(joins, defence.norm_clip)
    vectors = [members[entry.peer][1] for entry in roster]
    is_honest = [entry.peer.startswith("honest") for entry in roster]
    count = len(state.params)
    size = count  # one piece, which is as long as those of larger modules are
    average = piece_average(roster, named_in([members[entry.peer][0].doubts for entry in roster]), group)
    codec = codec_of(defence.codec)
    pieces = []
    spans = []
    for piece in range(-(-count // size)):
        start, stop = piece_bounds(piece, size, count)
        accepted = {}
        for i, (entry, vector) in enumerate(zip(roster, vectors, strict=True)):
            part = vector[start:stop].contiguous()
            if codec.exact is False:
                part = codec.decode(bytearray(codec.encode(part)), stop - start)
            if is_acceptable(float(length_of(part)), entry):
                accepted[i] = part
        counted = average(accepted)
        pieces.append((start, counted.average))
        who = counted.members, roster, group
        spans.append(Span(start, stop, effective_paths_of(*who), decay_of(*who)))
        for i in range(len(roster)):
            if any(is_honest):  # else hostile members are among themselves
                kept = outcome.counted["honest" if is_honest[i] else "hostile"]
                kept[0] += i in counted.members
                kept[1] += 1
    return Whole(pieces, tuple(spans))
