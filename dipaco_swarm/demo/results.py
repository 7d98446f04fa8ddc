"""What came out: the swarm's model against the dense one, on the same pieces and the same tokens of each."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import torch

from dipaco_swarm.algorithm.paths import PathIndex
from dipaco_swarm.client.sources import open_run
from dipaco_swarm.client.visits import generate, held_out
from dipaco_swarm.demo.dense import fill_dense
from dipaco_swarm.training.card import Card
from dipaco_swarm.training.evaluation import RoutedScore, Score, sequence_log_likelihoods
from dipaco_swarm.training.export import difference_of_logits, export_path
from dipaco_swarm.training.modules import PathModel
from dipaco_swarm.training.pieces import EvaluationSet

Name = TypeVar("Name", str, PathIndex)

PROMPTS = (
    "Permission is hereby granted, free of charge, to any person",
    "from __future__ import annotations\n\nimport os\nimport sys\n",
)
SAMPLE_TOKENS = 80
CHECKED_PIECES = 4
SAME_LOGITS = 1e-4
"""Same weights, same code: differences are rounding, as another batch size may choose another kernel."""


@dataclass(frozen=True)
class Comparison:
    """Scores of the same targets under three ways to use what was trained."""

    dense: Mapping[str, Score]
    """The dense baseline, by domain."""
    routed: RoutedScore
    """The swarm's model: each piece under the path it is routed to."""
    paths: Mapping[PathIndex, Score]
    """Each path alone on all pieces, whatever the router says."""
    pieces: Mapping[PathIndex, int]
    """How many pieces the router gives to each path."""
    parameters_of_path: int
    parameters_in_all: int

    @property
    def dense_total(self) -> Score:
        return sum(self.dense.values(), Score())

    @property
    def ratio(self) -> float:
        """Perplexity of the swarm's model in units of the dense one's; below 1 it is ahead."""
        return self.routed.total.perplexity / self.dense_total.perplexity

    @property
    def ahead(self) -> bool:
        return self.ratio < 1

    @property
    def best_path(self) -> PathIndex:
        return min(self.paths, key=lambda path: self.paths[path].loss)


@dataclass(frozen=True)
class Exported:
    """An ordinary transformers folder, and how far its logits are from the path's own."""

    path: PathIndex
    folder: Path
    largest_difference: float

    @property
    def same(self) -> bool:
        return math.isfinite(self.largest_difference) and self.largest_difference <= SAME_LOGITS


@dataclass(frozen=True)
class Sample:
    prompt: str
    text: str


def compare(bootstrap: Path, dense: Path) -> tuple[Comparison, EvaluationSet]:
    """Score the swarm's model and the dense one on the run's held-out pieces, behind the prefix."""
    with open_run(bootstrap) as run:
        prefix = run.manifest.rules.router.prefix_tokens
        pieces, model, table = held_out(run), run.model(), run.table
        chosen = run.routing().paths(pieces.tokens[:, :prefix]).tolist()
        alone = {}
        for path in map(PathIndex, range(table.num_paths)):
            run.load(model, path)
            alone[path] = _scores(model, pieces, prefix)
        fill_dense(model, dense)
        baseline = _scores(model, pieces, prefix)
        sizes = [model.size(level) for level in range(model.num_levels)]
    routed = [alone[PathIndex(path)][piece] for piece, path in enumerate(chosen)]
    found = Comparison(
        dense=_sums(pieces.domains, baseline),
        routed=RoutedScore(sum(routed, Score()), _sums(map(PathIndex, chosen), routed), _sums(pieces.domains, routed)),
        paths={path: sum(scores, Score()) for path, scores in alone.items()},
        pieces=Counter(map(PathIndex, chosen)),
        parameters_of_path=sum(sizes),
        parameters_in_all=sum(sizes[module.level] for module in table.modules),
    )
    assert found.dense_total.tokens == found.routed.total.tokens, "both are scored on the same tokens"
    return found, pieces


def _scores(model: PathModel, pieces: EvaluationSet, prefix: int) -> list[Score]:
    """The score of each piece under one path."""
    tokens, lengths = torch.from_numpy(pieces.tokens), torch.from_numpy(pieces.lengths)
    sums, counts = sequence_log_likelihoods(model.network, tokens, lengths, prefix)
    return [Score(total, count) for total, count in zip(sums.tolist(), counts.tolist(), strict=True)]


def _sums(names: Iterable[Name], scores: Sequence[Score]) -> dict[Name, Score]:
    """The score of each name, sorted by name."""
    sums: dict[Name, Score] = {}
    for name, score in zip(names, scores, strict=True):
        sums[name] = sums.get(name, Score()) + score
    return dict(sorted(sums.items()))


def export_and_check(bootstrap: Path, path: PathIndex, pieces: EvaluationSet, out: Path) -> Exported:
    """Write a path as a transformers folder, load it as anybody would, and compare the logits."""
    with open_run(bootstrap) as run:
        model = run.model()
        run.load(model, path)
        config = run.manifest.config
        what = f"Path {path} of {run.table.num_paths} of the DiPaCo run `{config.name}`, trained by its demo."
        export_path(model, run.routing().tokenizer_json, out, Card(config.about, None, what))
        tokens = pieces.tokens[:CHECKED_PIECES]
        return Exported(path, out, difference_of_logits(model, out, tokens))


def write_samples(bootstrap: Path) -> tuple[Sample, ...]:
    """A few lines of text from the swarm's model."""
    return tuple(
        Sample(
            prompt,
            "".join(generate(bootstrap, prompt, tokens=SAMPLE_TOKENS, temperature=0.6, top_k=20, seed=1)),
        )
        for prompt in PROMPTS
    )
