"""The demo's report: all figures, and what they do and do not mean. As Markdown, as JSON, and as a table."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from rich import box
from rich.table import Table
from rich.text import Text

from dipaco_swarm.algorithm.paths import PathIndex
from dipaco_swarm.dashboard.shapes import BOLD, GOOD, QUIET, WARN
from dipaco_swarm.dashboard.views import duration
from dipaco_swarm.demo.results import Comparison, Exported, Sample
from dipaco_swarm.demo.scene import Agreement
from dipaco_swarm.run.config import RunConfig
from dipaco_swarm.training.evaluation import Score


@dataclass(frozen=True)
class Story:
    """Everything the demo found out."""

    config: RunConfig
    shares: tuple[float, ...]
    """Of the documents, by path."""
    homes: tuple[Path, ...]
    """Of the peers."""
    comparison: Comparison
    agreement: Agreement
    samples: tuple[Sample, ...]
    exported: Exported
    dense_tokens: int
    swarm_tokens: int

    @property
    def peers(self) -> int:
        return len(self.homes)

    @property
    def caption(self) -> str:
        """What the chart should not be shown without."""
        return (
            f"Same steps ({self.dense_tokens:,} tokens a path), not same compute: {self.peers} peers train at once, "
            f"{self.swarm_tokens:,} tokens in all. {self.comparison.parameters_of_path:,} parameters a path."
        )

    @property
    def ok(self) -> bool:
        return not self.problems

    @property
    def problems(self) -> tuple[str, ...]:
        """What keeps the demo from being a success; none if it is one."""
        found = []
        if not self.comparison.ahead:
            found.append(f"the swarm's model is not ahead: {100 * (self.comparison.ratio - 1):.1f} % more perplexity")
        if self.agreement.same < self.agreement.shared:
            found.append(f"peers differ about {self.agreement.shared - self.agreement.same} module versions")
        if not self.exported.same:
            found.append(f"the exported logits differ by {self.exported.largest_difference:.2g}")
        return tuple(found)

    @property
    def verdict(self) -> str:
        """The outcome in a sentence."""
        dense, routed = self.comparison.dense_total.perplexity, self.comparison.routed.total.perplexity
        if self.ok:
            return f"perplexity {routed:.1f} against {dense:.1f}: {100 * (1 - self.comparison.ratio):.1f} % below dense"
        return "; ".join(self.problems)


def comparison_table(comparison: Comparison) -> Table:
    """Per domain and in all, for the screen."""
    table = Table(box=box.SIMPLE_HEAD, header_style=QUIET, border_style=QUIET, show_edge=False, padding=(0, 2, 0, 0))
    for column in ("held-out domain", "tokens", "dense", "swarm, routed", "difference"):
        table.add_column(column, justify="left" if column.startswith("held") else "right")
    for name, dense, routed in _rows(comparison):
        change = 100 * (routed.perplexity / dense.perplexity - 1)
        if name == "all":
            table.add_section()
        table.add_row(
            Text(name),
            f"{dense.tokens:,}",
            f"{dense.perplexity:.2f}",
            f"{routed.perplexity:.2f}",
            Text(f"{change:+.1f} %", GOOD if change < 0 else WARN),
            style=BOLD if name == "all" else None,
        )
    return table


def write_report(folder: Path, story: Story, phases: Mapping[str, float]) -> None:
    """report.md for people, report.json for programs."""
    (folder / "report.md").write_text(_markdown(story, phases), encoding="utf-8")
    (folder / "report.json").write_text(json.dumps(_figures(story, phases), indent=2) + "\n", encoding="utf-8")


def _rows(comparison: Comparison) -> list[tuple[str, Score, Score]]:
    rows = [(name, dense, comparison.routed.by_domain[name]) for name, dense in comparison.dense.items()]
    return [*rows, ("all", comparison.dense_total, comparison.routed.total)]


def _markdown(story: Story, phases: Mapping[str, float]) -> str:
    found, config = story.comparison, story.config
    steps = config.steps_of(config.stages)
    best = found.best_path
    rows = "\n".join(
        f"| {'**all**' if name == 'all' else name} | {d.tokens:,} | {d.perplexity:.2f} | {r.perplexity:.2f} "
        f"| {100 * (r.perplexity / d.perplexity - 1):+.1f} % |"
        for name, d, r in _rows(found)
    )
    paths = "\n".join(
        f"| {path} | {100 * share:.0f} % | {found.pieces.get(PathIndex(path), 0)} | {_own(found, PathIndex(path))} "
        f"| {found.paths[PathIndex(path)].perplexity:.2f} |"
        for path, share in enumerate(story.shares)
    )
    samples = "\n\n".join(f"```text\n{sample.prompt}{sample.text}\n```" for sample in story.samples)
    seconds = "\n".join(
        f"| {name} | {duration(value)} |" for name, value in [*phases.items(), ("all", sum(phases.values()))]
    )
    warm = config.steps_of(config.stages[:1])
    agreed = story.agreement
    return f"""# dipaco-swarm demo: {story.verdict}

One bootstrap node and {story.peers} peers, each a process of its own, trained {len(story.shares)} paths over libp2p on
this machine. Beside them one process trained a dense model of the same size as one path.

![Loss curves and perplexity by domain](curves.png)

## Held-out perplexity

Documents that nobody trained on. Both models are scored on the same tokens; the first {config.router.prefix_tokens} of
each piece, which the router reads, are left out for both.

| domain | tokens | dense | swarm, routed | difference |
|---|---:|---:|---:|---:|
{rows}

| path | share of documents | held-out pieces | perplexity on its own | on everything |
|---|---:|---:|---:|---:|
{paths}

The best single path (path {best}) reaches {found.paths[best].perplexity:.2f} on everything; routing brings it to
{found.routed.total.perplexity:.2f}. The difference is what the paths have specialised in.

## What the comparison means, and what it does not

- **Equal:** model size at use ({found.parameters_of_path:,} parameters), first parameters, batch
  ({config.inner.batch_sequences} x {config.data.sequence_length} tokens), schedule, and {steps:,} steps in a row. It is
  the claim of the DiPaCo paper, small: a path costs no more to train for its volunteer, nor to run, than the dense
  model.
- **Not equal: compute.** {story.peers} peers work at once: {story.swarm_tokens:,} tokens against
  {story.dense_tokens:,} of the dense model, {found.parameters_in_all:,} parameters in all against
  {found.parameters_of_path:,}. That is the point of a swarm, but no evidence that DiPaCo uses compute better. At this
  size much of the gain is the additional tokens.
- The first {warm} steps are one model that all {story.peers} peers train together (DiLoCo). It has seen
  {story.peers} times the tokens that the dense model has seen at that step.
- One seed, minutes of training, tiny models, far from converged. Differences of a few percent mean nothing.

## Agreement

{agreed.same} of {agreed.shared} module versions that more than one peer made are the same bytes on all of them (SHA-256
of parameters and outer momentum). Outer gradients travelled as {config.wire.codec}.

## Sample

{samples}

Written by the routed path after some minutes on two CPU cores: look for the shape of the text, not for sense.

## Export

`{story.exported.folder.name}/` is path {story.exported.path} as an ordinary transformers folder. Loaded with
`AutoModelForCausalLM.from_pretrained`, its logits are {_closeness(story.exported.largest_difference)}.

## Time

| part | |
|---|---:|
{seconds}
"""


def _closeness(difference: float) -> str:
    return "exactly the path's own" if difference == 0 else f"the path's own to within {difference:.1g}"


def _own(comparison: Comparison, path: PathIndex) -> str:
    score = comparison.routed.by_path.get(path)
    return f"{score.perplexity:.2f}" if score else "-"


def _figures(story: Story, phases: Mapping[str, float]) -> dict[str, object]:
    found = story.comparison
    return {
        "ok": story.ok,
        "verdict": story.verdict,
        "dense": {name: _score(dense) for name, dense, _ in _rows(found)},
        "swarm": {name: _score(routed) for name, _, routed in _rows(found)},
        "ratio": found.ratio,
        "paths": [
            {
                "path": path,
                "share": share,
                "pieces": found.pieces.get(PathIndex(path), 0),
                "own": _score(found.routed.by_path.get(PathIndex(path), Score())),
                "everything": _score(found.paths[PathIndex(path)]),
            }
            for path, share in enumerate(story.shares)
        ],
        "parameters": {"path": found.parameters_of_path, "in_all": found.parameters_in_all},
        "tokens": {"dense": story.dense_tokens, "swarm": story.swarm_tokens},
        "agreement": asdict(story.agreement),
        "samples": [asdict(sample) for sample in story.samples],
        "export": {"path": story.exported.path, "largest_difference_of_logits": story.exported.largest_difference},
        "seconds": dict(phases),
        "run": story.config.model_dump(mode="json"),
    }


def _score(score: Score) -> dict[str, float | int | None]:
    if not score.tokens:
        return {"tokens": 0, "loss": None, "perplexity": None}
    return {"tokens": score.tokens, "loss": score.loss, "perplexity": score.perplexity}
