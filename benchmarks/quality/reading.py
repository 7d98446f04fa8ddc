"""The rows about how documents are read: shards that are made whole before training, and streams beside it.

Two by two paths from one warm-up. Rows differ in `[data] reading` and `shares` alone: a whole shard has all documents,
cut into pieces of exactly a sequence, and is shuffled whole; a stream begins at another place for each peer, has texts
cut by characters, and is shuffled over a window.
"""

import statistics
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from benchmarks.quality.report import Results, on_common_seeds, perplexities_by_seed
from benchmarks.quality.rows import SMALL, Row, Scale

READING = replace(SMALL, name="reading", steps=3980, seeds=(0, 1))
"""So long that each path goes twice through its shard, and so that both ways train on the same documents; the window of
a stream is small in a shorter run. `half`: a quarter of these steps."""
HALF_STEPS = 1100
CHARACTERS = 512
"""Of a document: about two sequences, as a page of the web has one or two of 1,024 tokens."""
WHOLE = "whole"
WAYS: dict[str, tuple[str, dict[str, Any]]] = {
    WHOLE: ("shards made before the stage begins", {"reading": "whole"}),
    "beside, shared": ("streams, of a corpus that the four route together", {"reading": "beside"}),
    "beside, alone": ("streams, each of which routes for itself", {"reading": "beside", "shares": "nothing"}),
}


def reading_rows(scale: Scale = READING) -> tuple[Row, ...]:
    """All of them."""
    stage = {"router": "product-k-means", "modules": [scale.side, scale.side], "rounds": scale.rounds}
    return tuple(
        Row(name, about, [stage], scale.paths, {"data": data}, repeated=True) for name, (about, data) in WAYS.items()
    )


def half(scale: Scale = READING) -> Scale:
    """A stage that ends when half of each shard was trained on: of a whole shard half of each document, of a stream
    half of the documents."""
    return replace(scale, steps=HALF_STEPS)


def reading_page(title: str, intro: str, scale: Scale, rows: Sequence[Row], results: Results) -> str:
    """All of it as markdown."""
    about = (
        f"Two by two paths of 0.46 million parameters by product k-means; {scale.warmup} steps of one model on a whole "
        f"shard, the same for all rows of a seed, then {scale.rounds} rounds of {scale.inner_steps} steps of 4 x "
        f"{scale.sequence_length} tokens for each path. Against: shards made whole, by seed."
    )
    return "\n\n".join((f"# {title}", intro, about, table(rows, results))) + "\n"


def table(rows: Sequence[Row], results: Results) -> str:
    """Markdown; a row for everything that was measured."""
    by_seed = perplexities_by_seed(rows, results)
    text = [
        "| documents | perplexity | of each seed | against | of each seed | what it is |",
        "|---|---|---|---|---|---|",
    ]
    whole = by_seed.get(WHOLE, {})
    for row in rows:
        if found := by_seed.get(row.name):
            pair = on_common_seeds(found, whole)
            each = ", ".join(
                f"{100 * (found[seed] / whole[seed] - 1):+.1f} %" for seed in sorted(found) if seed in whole
            )
            against = "-" if pair is None else f"{100 * (pair[0] / pair[1] - 1):+.1f} %"
            values = ", ".join(f"{found[seed]:.2f}" for seed in sorted(found))
            mean = statistics.fmean(found.values())
            text.append(f"| {row.name} | **{mean:.2f}** | {values} | {against} | {each} | {row.about} |")
    return "\n".join(text)
