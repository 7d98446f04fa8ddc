"""The rows about outer rounds: how late their result is merged, in how many bits it travels, with which outer step.

All of them are two by two paths from one warm-up, and differ in `[rounds]`, `[outer]` and `[wire]` alone: the same
documents in the same order, so that what two rows differ by is not the luck of a seed. A row of 60 rounds has a longer
schedule of the inner learning rate, and a warm-up of its own with it.
"""

import statistics
from collections.abc import Sequence
from typing import Any

from benchmarks.quality.merges import Merge
from benchmarks.quality.report import Aim, Results, judged, on_common_seeds, perplexities_by_seed
from benchmarks.quality.rows import OVERLAP, Row, Scale

LONG_ROUNDS = 60
LONG = f"{LONG_ROUNDS}: "
"""How names of rows of so many rounds begin."""
DELAYS = {"5 %": 1, "25 %": 5, "50 %": 10, "95 %": 19}
"""Inner steps of the 20 between two rounds. A whole round is not allowed: the next one must find this one merged."""
BLOCKING = "blocking"
LATE = "merged late, what was trained since on top"
LESS = "outer momentum 0.3"
EAGER = "meanwhile trained from a guess of it"


def overlap_rows(scale: Scale = OVERLAP) -> tuple[Row, ...]:
    """All of them, what matters most first; those of another number of rounds in the end."""

    def row(
        name: str,
        about: str,
        delay: str | None = None,
        *,
        codec: str = "int8",
        rounds: int = scale.rounds,
        merge: Merge = "rebase",
        **outer: Any,
    ) -> Row:
        changes: dict[str, Any] = {"wire": {"codec": codec}}
        if delay is not None:
            changes["rounds"] = {"overlap_steps": DELAYS[delay]}
        if outer:
            changes["outer"] = outer
        if rounds != scale.rounds:
            changes["inner"] = {"schedule_steps": scale.warmup + rounds * scale.inner_steps}
            name = f"{rounds}: {name}"
        stages = [{"router": "k-means", "modules": [scale.side, scale.side], "rounds": rounds}]
        return Row(name, about, stages, scale.paths, changes, repeated=True, merge=merge)

    long = LONG_ROUNDS
    return (
        row("blocking", "int8, outer momentum 0.6, learning rate 0.7"),
        row("25 %", LATE, "25 %"),
        row("95 %", LATE, "95 %"),
        row("blocking, momentum 0.3", LESS, momentum=0.3),
        row("5 %, momentum 0.3", LESS, "5 %", momentum=0.3),
        row("25 %, momentum 0.3", LESS, "25 %", momentum=0.3),
        row("95 %, momentum 0.3", LESS, "95 %", momentum=0.3),
        row("blocking, momentum 0", "no outer momentum", momentum=0.0),
        row("95 %, momentum 0", "no outer momentum", "95 %", momentum=0.0),
        row("25 %, eager, momentum 0.3", EAGER, "25 %", merge="eager", momentum=0.3),
        row("95 %, eager, momentum 0.3", EAGER, "95 %", merge="eager", momentum=0.3),
        row("25 %, alpha, momentum 0.3", "only half of the way to it", "25 %", merge="alpha", momentum=0.3),
        row("fp32", "blocking, fp32 on the wire", codec="fp32"),
        row("int4", "blocking, int4 on the wire", codec="int4"),
        row("e3m0", "blocking, e3m0 on the wire", codec="e3m0"),
        row("blocking", f"{long} rounds", rounds=long),
        row("blocking, momentum 0.3", LESS, rounds=long, momentum=0.3),
        row("25 %, momentum 0.3", LESS, "25 %", rounds=long, momentum=0.3),
        row("95 %, momentum 0.3", LESS, "95 %", rounds=long, momentum=0.3),
        row("25 %, eager, momentum 0.3", EAGER, "25 %", rounds=long, merge="eager", momentum=0.3),
        row("95 %, eager, momentum 0.3", EAGER, "95 %", rounds=long, merge="eager", momentum=0.3),
        row("blocking, momentum 0.3", "rounds in the time of 20 at 25 %, waited for", rounds=16, momentum=0.3),
        row("blocking, momentum 0.3", "rounds in the time of 20 at 95 %, waited for", rounds=10, momentum=0.3),
    )


def overlap_page(title: str, intro: str, scale: Scale, rows: Sequence[Row], results: Results) -> str:
    """All of it as markdown."""
    return "\n\n".join((f"# {title}", intro, about(scale), table(rows, results), verdicts(rows, results))) + "\n"


def about(scale: Scale) -> str:
    """What was done, in words."""
    return (
        f"Four paths of 0.46 million parameters, two modules at each of two levels; text of sixteen domains. "
        f"{scale.warmup} steps of one model, then {scale.rounds} outer rounds of {scale.inner_steps} steps of "
        f"4 x {scale.sequence_length} tokens for each path; {LONG_ROUNDS} rounds and others where a name begins so. "
        f"Delay: the share of a round's steps after which its result is merged. Outer momentum 0.6, learning rate 0.7, "
        "int8, unless a row says otherwise. All rows of a seed have the same warm-up, the same documents in the same "
        "order, and are scored on the same held-out tokens. Against: the difference to `blocking` of as many rounds "
        "(of 20, for rows of fewer), over the seeds that both have. Same momentum: to blocking rounds with the outer "
        "momentum of the row; then that of each seed."
    )


def references_of(name: str) -> tuple[str, str]:
    """Rows of blocking rounds that a row is compared with: as run files have them, and with the momentum of the row."""
    plain = f"{LONG}{BLOCKING}" if name.startswith(LONG) else BLOCKING
    momentum = next((part for part in name.split(", ") if part.startswith("momentum")), None)
    return plain, f"{plain}, {momentum}" if momentum else plain


def table(rows: Sequence[Row], results: Results) -> str:
    """Markdown; a row for everything that was measured."""
    by_seed = perplexities_by_seed(rows, results)
    text = [
        "| row | perplexity | against | same momentum | of each seed | CPU s | seeds | what it is |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        found = by_seed.get(row.name)
        if not found:
            continue
        plain, alike = (by_seed.get(name, {}) for name in references_of(row.name))
        each = [_percent((found[seed], alike[seed])) for seed in sorted(found) if seed in alike]
        seconds = statistics.fmean(result.cpu_seconds for result in results[row.name])
        text.append(
            f"| {row.name} | **{statistics.fmean(found.values()):.2f}** | {_percent(on_common_seeds(found, plain))} | "
            f"{_percent(on_common_seeds(found, alike))} | {', '.join(each) or '-'} | "
            f"{seconds:.0f} | {len(found)} | {row.about} |"
        )
    return "\n".join(text)


def _percent(pair: tuple[float, float] | None) -> str:
    return "-" if pair is None else f"{100 * (pair[0] / pair[1] - 1):+.2f} %"


def verdicts(rows: Sequence[Row], results: Results) -> str:
    """The aims, and whether they were met, against the best blocking rounds that there are."""
    aims: list[Aim] = [("int4 is within 0.5 % of fp32", "int4", ("fp32",), 1.005)]
    blocking = [row.name for row in rows if row.name.removeprefix(LONG).startswith(BLOCKING)]
    for row in rows:
        long = LONG if row.name.startswith(LONG) else ""
        others = tuple(name for name in blocking if name.startswith(f"{long}{BLOCKING}"))
        for delay, factor in (("25 %", 1.01), ("95 %", 1.03)):
            if row.name.startswith(f"{long}{delay}"):
                words = f"{row.name} is within {100 * (factor - 1):.0f} % of the best blocking"
                aims.append((words, row.name, others, factor))
    return judged(aims, perplexities_by_seed(rows, results))
