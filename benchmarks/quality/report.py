"""Results as a markdown table and a chart."""

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.quality.measure import Result
from benchmarks.quality.rows import Row, Scale
from dipaco_swarm.training.evaluation import Score

Results = Mapping[str, Sequence[Result]]
"""Row -> a result for each seed that there is."""
Aim = tuple[str, str, tuple[str, ...], float]
"""What is aimed at, in words; a row; the rows that it is compared with, the best of which counts; at most so many times
their perplexity."""


def page(title: str, intro: str, scale: Scale, rows: Sequence[Row], results: Results) -> str:
    """All of it as markdown."""
    parts = (
        f"# {title}",
        intro,
        about(scale),
        table(rows, results),
        verdicts(rows, results, scale),
        by_domain(rows, results),
    )
    return "\n\n".join(part for part in parts if part) + "\n"


def about(scale: Scale) -> str:
    """What was done, in words."""
    return (
        f"Paths of 0.46 million parameters, {scale.steps} steps each of 4 x {scale.sequence_length} tokens. The first "
        f"{scale.warmup} are one model's, trained once for all rows of paths with the same seed and data; then "
        f"{scale.rounds} outer rounds of {scale.inner_steps} steps. Tokens count all paths, the warm-up once. Sent is "
        "computed: per round and module of k members, 2 (k - 1) encoded modules, as in a butterfly all-reduce. Seconds "
        "are those of training and routing with one thread, beside another row; they include the warm-up. Spread is "
        "half the distance between the extremes of the seeds."
    )


def perplexities(results: Sequence[Result], window: str | None = None) -> list[float]:
    """Of each seed; with a window, of re-routing by it."""
    if window is None:
        return [result.total.perplexity for result in results]
    return [Score(*result.rerouted[window]).perplexity for result in results if window in result.rerouted]


def lines_of(rows: Sequence[Row], results: Results) -> list[tuple[str, str, list[float], Sequence[Result]]]:
    """What the table has: name, about, perplexity by seed, results. Re-routed and early-stopped scores have lines."""
    lines = []
    for row in rows:
        found = results.get(row.name, ())
        if found:
            lines.append((row.name, row.about, perplexities(found), found))
            for window in row.windows:
                values = perplexities(found, str(window))
                if values:
                    lines.append((f"{row.name}, W {window}", f"re-routed every {window} tokens", values, found))
            best = [Score(*result.best).perplexity for result in found if result.best is not None]
            if best:
                lines.append((f"{row.name}, best", "the best snapshot of each path", best, found))
    return lines


def table(rows: Sequence[Row], results: Results) -> str:
    """Markdown; a row for everything that was measured."""
    text = [
        "| row | perplexity | spread | parameters: all / per token | tokens "
        "| unique tokens of a path: smallest / median | sent | CPU s | s | seeds | what it is |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for name, about, values, found in lines_of(rows, results):
        first = found[0]
        mean = statistics.fmean
        text.append(
            f"| {name} | **{mean(values):.2f}** | {spread(values)} | "
            f"{first.parameters / 1e6:.2f} M / {first.parameters_per_token / 1e6:.2f} M | {first.tokens / 1e6:.2f} M | "
            f"{mean(r.unique_tokens[0] for r in found) / 1e3:,.0f} k / "
            f"{mean(r.unique_tokens[1] for r in found) / 1e3:,.0f} k | "
            f"{size(first.bytes_sent)} | {mean(r.cpu_seconds for r in found):.0f} | "
            f"{mean(r.seconds for r in found):.0f} | {len(values)} | {about} |"
        )
    return "\n".join(text)


def spread(values: Sequence[float]) -> str:
    """Half the distance of the extremes; of one value nothing is known."""
    return f"±{(max(values) - min(values)) / 2:.2f}" if len(values) > 1 else "-"


def size(count: int) -> str:
    return f"{count / 1e6:,.0f} MB" if count else "0"


def by_domain(rows: Sequence[Row], results: Results) -> str:
    """Perplexity of each domain under the rows of plentiful data, without variants of their wiring, as markdown."""
    variants = (", lr", "int8", "scarce")
    named = [row.name for row in rows if results.get(row.name) and not any(word in row.name for word in variants)]
    domains = sorted({domain for name in named for result in results[name] for domain in result.domains})
    text = ["| domain | " + " | ".join(named) + " |", "|---|" + "---|" * len(named)]
    for domain in domains:
        cells = []
        for name in named:
            values = [Score(*r.domains[domain]).perplexity for r in results[name] if domain in r.domains]
            cells.append(f"{statistics.fmean(values):.1f}" if values else "-")
        text.append(f"| {domain} | " + " | ".join(cells) + " |")
    return "\n".join(text)


def verdicts(rows: Sequence[Row], results: Results, scale: Scale) -> str:
    """The aims of a scale, and whether they were met."""
    grid, paths = f"{scale.side}x{scale.side}", scale.paths
    by_seed = perplexities_by_seed(rows, results)
    larger = tuple(name for name in by_seed if name.startswith("larger"))
    aims = (
        (
            "product k-means is at most dense at equal steps (best lr)",
            f"{grid} product",
            ("dense", "dense, lr 5e-3"),
            1.0,
        ),
        ("discriminative is at most product k-means", f"{grid} discriminative", (f"{grid} product",), 1.0),
        (
            "discriminative, re-routed every 64 tokens, is 15 % below the larger dense (best lr)",
            f"{grid} discriminative, W 64",
            larger,
            0.85,
        ),
        ("path-specific ends are no worse than flat", f"{grid} ends", (f"flat {paths}",), 1.0),
        (
            "path-specific ends are better than flat where data is scarce",
            f"scarce: {grid} ends",
            (f"scarce: flat {paths}",),
            1.0,
        ),
        ("int8 is within 0.5 % of fp32", f"{grid} int8", (f"{grid} k-means",), 1.005),
    )
    return judged(aims, by_seed)


def perplexities_by_seed(rows: Sequence[Row], results: Results) -> dict[str, dict[int, float]]:
    """Line of the table -> seed -> perplexity."""
    return {
        name: {result.seed: value for result, value in zip(found, values, strict=False)}
        for name, _, values, found in lines_of(rows, results)
    }


def judged(aims: Sequence[Aim], by_seed: Mapping[str, Mapping[int, float]]) -> str:
    """Whether aims were met, on the seeds that both sides have, as markdown; without its rows an aim is left out."""
    lines = []
    for words, name, others, factor in aims:
        ours = by_seed.get(name, {})
        compared = [pair for other in others if (pair := on_common_seeds(ours, by_seed.get(other, {})))]
        if not compared:
            continue
        mine, best = min(compared, key=lambda pair: pair[1] / pair[0])
        met = "**yes**" if mine <= factor * best else "**no**"
        lines.append(f"- {words}: {met}, {mine:.2f} against {best:.2f} ({100 * (mine / best - 1):+.1f} %)")
    return "\n".join(lines)


def on_common_seeds(ours: Mapping[int, float], theirs: Mapping[int, float]) -> tuple[float, float] | None:
    """The means of both, over the seeds that both have; None where there is none."""
    common = sorted(ours.keys() & theirs.keys())
    if not common:
        return None
    return statistics.fmean(ours[seed] for seed in common), statistics.fmean(theirs[seed] for seed in common)


def draw(file: Path, rows: Sequence[Row], results: Results, title: str) -> None:
    """Perplexity of every row as PNG: a dot for each seed, a stroke for the mean; scarce data on an axis of its own."""
    from matplotlib.figure import Figure

    lines = lines_of(rows, results)
    scarce = [line for line in lines if line[0].startswith("scarce")]
    plenty = [line for line in lines if line not in scarce]
    parts = [part for part in (plenty, scarce) if part]
    figure = Figure(figsize=(9, 0.34 * len(lines) + 1.4 * len(parts)), dpi=150)
    heights = [len(part) for part in parts]
    for axes, part in zip(figure.subplots(len(parts), squeeze=False, height_ratios=heights)[:, 0], parts, strict=True):
        _bars(axes, part[::-1])
    figure.suptitle(title, fontsize=11, x=0.02, ha="left")
    figure.tight_layout()
    figure.savefig(file)


def _bars(axes: Any, lines: Sequence[tuple[str, str, list[float], Sequence[Result]]]) -> None:
    for place, (name, _, values, _) in enumerate(lines):
        colour = "#d1495b" if name.startswith(("dense", "larger")) else "#00798c"
        axes.axhline(place, color="#8a97a3", lw=0.5, alpha=0.4, zorder=1)
        axes.scatter([statistics.fmean(values)], [place], color=colour, marker="|", s=180, lw=2, zorder=2)
        axes.scatter(values, [place] * len(values), color=colour, s=14, zorder=3)
        label = f"{statistics.fmean(values):.1f}"
        axes.annotate(label, (max(values), place), xytext=(6, -3), textcoords="offset points", fontsize=8)
    axes.set_yticks(range(len(lines)), [name for name, *_ in lines], fontsize=8)
    axes.set_ylim(-0.6, len(lines) - 0.4)
    axes.set_xlim(0.85 * min(min(values) for _, _, values, _ in lines), None)
    axes.set_xlabel("perplexity on held-out documents, the first 32 tokens not scored; less is better", fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)
