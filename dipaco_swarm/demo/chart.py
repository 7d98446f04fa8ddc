"""The demo's chart: training loss over steps, and held-out perplexity by domain."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.figure import Figure

from dipaco_swarm.demo.results import Comparison
from dipaco_swarm.demo.scene import Curve

INK, PALE, PAPER = "#22313f", "#8a97a3", "#ffffff"
DENSE = "#d1495b"
SWARM = "#00798c"
PATHS = ("#5fb3c0", "#8fc9a8", "#e0b354", "#9a8fc7")
WIDTH_IN_POINTS = 5  # smoothing of the curves, in points of ten steps


def draw_chart(
    file: Path, dense: Curve, paths: Sequence[Curve], shares: Sequence[float], comparison: Comparison, about: str
) -> None:
    """Write the chart as PNG. `shares`: of the documents, by path; the weights of the paths' mean."""
    settings: dict[Any, Any] = {
        "font.size": 10,
        "text.color": INK,
        "axes.labelcolor": INK,
        "xtick.color": INK,
        "ytick.color": INK,
    }
    with rc_context({**settings, "axes.spines.top": False, "axes.spines.right": False, "axes.edgecolor": PALE}):
        figure = Figure(figsize=(12.5, 5.4), dpi=150)
        left, right = figure.subplots(1, 2, width_ratios=(1.55, 1))
        _curves(left, dense, paths, shares)
        _domains(right, comparison)
        saving = 100 * (1 - comparison.ratio)
        figure.suptitle(
            f"Perplexity {comparison.routed.total.perplexity:.1f} with four paths of a swarm, "
            f"{comparison.dense_total.perplexity:.1f} with one dense model of a path's size "
            f"({saving:.0f} % {'lower' if saving > 0 else 'higher'})",
            x=0.012,
            ha="left",
            fontsize=13,
            fontweight="bold",
        )
        figure.text(0.012, 0.015, about, fontsize=8.5, color=PALE)
        figure.tight_layout(rect=(0, 0.035, 1, 0.985), w_pad=3)
        figure.savefig(file, facecolor=PAPER)


def _curves(axes: Any, dense: Curve, paths: Sequence[Curve], shares: Sequence[float]) -> None:
    for path, curve in enumerate(paths):
        for stage in sorted(set(curve.stages)):
            points = [i for i, its in enumerate(curve.stages) if its == stage]
            label = f"path {path}, on its own documents" if stage == max(curve.stages) else None
            steps = [curve.steps[i] for i in points]
            colour = PATHS[path % len(PATHS)]
            axes.plot(steps, smooth([curve.losses[i] for i in points]), color=colour, lw=1.2, label=label, alpha=0.9)
    steps, mean = weighted_mean(paths, shares)
    axes.plot(steps, smooth(mean), color=SWARM, lw=2.6, label="mean of the paths, by share of documents")
    axes.plot(dense.steps, smooth(dense.losses), color=DENSE, lw=2.6, label="dense model, on all documents")
    first = paths[0]
    starts = [first.steps[i - 1] for i in range(1, len(first.stages)) if first.stages[i] != first.stages[i - 1]]
    tail = [loss for curve in (dense, *paths) for loss in curve.losses[3:]] or list(dense.losses)
    low, high = min(tail), max(tail)
    axes.set_ylim(low - 0.05 * (high - low), high + 0.12 * (high - low))
    axes.set_xlim(0, max(dense.steps, default=1))
    edges = [0, *starts, max(dense.steps, default=1)]
    names = (
        "stage 0: one model",
        f"stage 1: {len(paths)} paths",
        *(f"stage {i}: routed anew" for i in range(2, len(edges))),
    )
    for i, name in enumerate(names[: len(edges) - 1]):
        if i % 2:
            axes.axvspan(edges[i], edges[i + 1], color=SWARM, alpha=0.05, lw=0)
        axes.annotate(
            name, (edges[i], 0), xycoords=("data", "axes fraction"), xytext=(5, 5), textcoords="offset points",
            va="bottom", fontsize=9, color=PALE,
        )  # fmt: skip
    axes.set_xlabel("inner steps")
    axes.set_ylabel("training loss, nats per token")
    axes.grid(axis="y", color=PALE, alpha=0.2)
    axes.legend(frameon=False, fontsize=9, loc="upper right", bbox_to_anchor=(1, 0.95))


def _domains(axes: Any, comparison: Comparison) -> None:
    names = sorted(comparison.dense, key=lambda name: -comparison.dense[name].perplexity)
    rows = ["all", *names]
    for place, name in enumerate(rows):
        before = comparison.dense_total if name == "all" else comparison.dense[name]
        after = comparison.routed.total if name == "all" else comparison.routed.by_domain[name]
        wide = 3.0 if name == "all" else 1.6
        axes.plot([before.perplexity, after.perplexity], [place, place], color=PALE, lw=wide, alpha=0.6, zorder=1)
        axes.scatter([before.perplexity], [place], color=DENSE, s=26 * wide, zorder=2)
        axes.scatter([after.perplexity], [place], color=SWARM, s=26 * wide, zorder=2)
        for score, other, colour in ((before, after, DENSE), (after, before, SWARM)):
            right = score.perplexity >= other.perplexity
            axes.annotate(
                f"{score.perplexity:.1f}", (score.perplexity, place), xytext=(8 if right else -8, 0),
                textcoords="offset points", ha="left" if right else "right", va="center", fontsize=8.5, color=colour,
                fontweight="bold" if name == "all" else "normal",
            )  # fmt: skip
    axes.set_yticks(range(len(rows)), rows)
    axes.get_yticklabels()[0].set_fontweight("bold")
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.margins(x=0.2)
    axes.minorticks_off()
    axes.set_xticks([])
    axes.spines["bottom"].set_visible(False)
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel("perplexity on held-out documents (log scale), left is better")


def weighted_mean(paths: Sequence[Curve], shares: Sequence[float]) -> tuple[list[int], list[float]]:
    """The paths' mean loss at the steps that all have; by share in the last stage, plain before."""
    known = [dict(zip(curve.steps, zip(curve.losses, curve.stages, strict=True), strict=True)) for curve in paths]
    common = sorted(set.intersection(*(set(curve) for curve in known))) if known else []
    mean = []
    for step in common:
        routed = all(curve[step][1] > 0 for curve in known)
        weights = shares if routed and len(shares) == len(known) else [1 / len(known)] * len(known)
        mean.append(sum(w * curve[step][0] for w, curve in zip(weights, known, strict=True)))
    return common, mean


def smooth(values: Sequence[float]) -> list[float]:
    """A running mean over a few points, of what there is of them at the ends."""
    half = WIDTH_IN_POINTS // 2
    windows = (values[max(0, i - half) : i + half + 1] for i in range(len(values)))
    return [sum(window) / len(window) for window in windows]
