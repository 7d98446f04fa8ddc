"""What poison does to a model: a table of attacks and defences, with `pure.py`."""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.hostile.pure import INNER_STEPS, SETTINGS, WARM_UP, Bench, Defence, Outcome, play
from benchmarks.reduce import hardware
from dipaco_swarm.testing.poison import POISONS

ROUNDS = 16
AIM = 0.02
"""Perplexity above that of the run where the hostile members are not there."""
BEFORE = Defence("mean", 4.0, tries=False)
"""The plain mean, bounded as it was at first."""
NOW = Defence()
"""What runs have unless their run file says otherwise."""
MAIN = ("1 of 5 replicas", "1 of 5 paths")
"""20 per cent, with every attack."""
FEW = ("flip", "noise", "drift", "mixed", "cover")
"""In the other settings."""
OTHERS = ("1 of 2", "1 of 4", "2 of 5 replicas", "2 of 10", "2 of 10, each beside one", "3 of 10")
OF_A_MAJORITY = ("1 of 2", "2 of 10, each beside one")
"""Where there are groups of two, in which nothing can be decided: no aim."""


@dataclass(frozen=True)
class Row:
    """One attack in one setting, with both defences, over seeds."""

    setting: str
    attack: str
    before: float
    now: float
    """Perplexity over that of the run without the hostile members, minus one; the mean of the seeds."""
    hostile: float
    honest: float
    """Share of their pieces that counted, now."""

    @property
    def missed(self) -> bool:
        """Whether it has an aim that is not met."""
        return self.setting not in OF_A_MAJORITY and self.now > AIM


def table_rows(
    folder: Path, seeds: Sequence[int], only: Sequence[str], *, quick: bool, tell: Callable[[str], None]
) -> list[Row]:
    """Play all of it. `only`: these attacks; none: all. `quick`: the strongest ones in the two main settings."""
    benches = [Bench(folder, seed, ROUNDS) for seed in seeds]
    plan = [(setting, attack) for setting in MAIN for attack in (FEW if quick else POISONS)]
    plan += [] if quick else [(setting, attack) for setting in OTHERS for attack in FEW]
    plan = [(setting, attack) for setting, attack in plan if not only or attack in only]
    alone: dict[tuple[str, int], Outcome] = {}
    rows = []
    for setting, attack in plan:
        found: dict[Defence, list[tuple[float, Outcome]]] = {BEFORE: [], NOW: []}
        for bench in benches:
            key = setting, bench.seed
            if key not in alone:
                alone[key] = play(bench, SETTINGS[setting], NOW, None)
            for defence, outcomes in found.items():
                outcome = play(bench, SETTINGS[setting], defence, attack)
                outcomes.append((outcome.perplexity / alone[key].perplexity - 1, outcome))
        harm = {defence: statistics.fmean(h for h, _ in outcomes) for defence, outcomes in found.items()}
        shares = {who: _share([outcome.counted[who] for _, outcome in found[NOW]]) for who in ("hostile", "honest")}
        rows.append(Row(setting, attack, harm[BEFORE], harm[NOW], shares["hostile"], shares["honest"]))
        tell(line(rows[-1]))
    return rows


def _share(counts: Sequence[Sequence[int]]) -> float:
    return sum(kept for kept, _ in counts) / max(1, sum(every for _, every in counts))


HEAD = f"| hostile | attack | {BEFORE} | {NOW} | of theirs counted | of the honest | |\n|---|---|---|---|---|---|---|"


def line(row: Row) -> str:
    """As Markdown."""
    verdict = "no majority" if row.setting in OF_A_MAJORITY else "**missed**" if row.missed else "met"
    return (
        f"| {row.setting} | {row.attack}: {POISONS[row.attack].about} | {percent(row.before)} | {percent(row.now)} | "
        f"{100 * row.hostile:.0f} % | {100 * row.honest:.1f} % | {verdict} |"
    )


def percent(harm: float) -> str:
    """A ruined model is just that."""
    return "ruined" if not harm < 9 else f"{100 * harm:+.1f} %"


def page(rows: Sequence[Row], seeds: int, seconds: float) -> str:
    """The report, as Markdown."""
    model = f"{WARM_UP} inner steps of one model, then {ROUNDS} rounds of {INNER_STEPS} steps for each member"
    return (
        "\n".join(
            (
                f"# What poison does to a model: {hardware()}",
                "",
                f"`python -m benchmarks.hostile --poison --seeds {seeds}`, {seconds:.0f} s. {model}, of 0.15 million "
                "parameters on real text of five domains; a path has a domain of its own, replicas have all. Harm: the "
                "perplexity on held-out text above that of the same run where the hostile members are not: the "
                "same honest members, steps and batches. Attackers know what all others send. Aim: within 2 %.",
                "",
                HEAD,
                *(line(row) for row in rows),
            )
        )
        + "\n"
    )
