"""The rows about bounds on contributions: what they cost where everybody is honest.

Groups of four whose members have the same documents (one path, four workers) or each its own (a level that four paths
share), and groups of two. All rows of a kind differ in `[outer] averaging` and `[limits] norm_clip` alone.
"""

import statistics
from collections.abc import Sequence
from typing import Any

from benchmarks.quality.report import Results, on_common_seeds, perplexities_by_seed
from benchmarks.quality.rows import SMALL, Row, Scale

KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "shared": ("a level that four paths share", {"router": "k-means", "modules": [1, 4]}),
    "replicas": ("one path, four workers", {"router": "single"}),
    "grid": ("two by two paths, groups of two", {"router": "k-means", "modules": [2, 2]}),
}
RULES = (("mean", 4.0), ("robust", 1.25), ("robust", 2.0))


def robust_rows(scale: Scale = SMALL) -> tuple[Row, ...]:
    """All of them, by rule."""
    return tuple(
        Row(
            f"{kind}, {rule}, clip {clip:g}",
            about,
            [{**stage, "rounds": scale.rounds}],
            4,
            {"outer": {"averaging": rule}, "limits": {"norm_clip": clip}},
            repeated=True,
        )
        for rule, clip in RULES
        for kind, (about, stage) in KINDS.items()
    )


def robust_page(title: str, intro: str, scale: Scale, rows: Sequence[Row], results: Results) -> str:
    """All of it as markdown."""
    about = (
        f"Four paths, or workers, of 0.46 million parameters; {scale.warmup} steps of one model, then {scale.rounds} "
        f"rounds of {scale.inner_steps} steps each; everybody is honest. Against: the plain mean with a clip of 4, "
        "as rows of that name have it."
    )
    return "\n\n".join((f"# {title}", intro, about, table(rows, results))) + "\n"


def reference_of(name: str) -> str:
    """The row that a row is compared with."""
    return f"{name.split(',')[0]}, mean, clip 4"


def table(rows: Sequence[Row], results: Results) -> str:
    """Markdown; a row for everything that was measured."""
    by_seed = perplexities_by_seed(rows, results)
    text = ["| row | perplexity | against | seeds | what it is |", "|---|---|---|---|---|"]
    for row in rows:
        if found := by_seed.get(row.name):
            pair = on_common_seeds(found, by_seed.get(reference_of(row.name), {}))
            against = "-" if pair is None else f"{100 * (pair[0] / pair[1] - 1):+.2f} %"
            mean = statistics.fmean(found.values())
            text.append(f"| {row.name} | **{mean:.2f}** | {against} | {len(found)} | {row.about} |")
    return "\n".join(text)
