"""What poison does to a model: a table of attacks and defences, with `pure.py`."""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from benchmarks.hostile.pure import SETTINGS, Bench, Defence, Outcome, in_processes, play
from benchmarks.hostile.trainee import INNER_STEPS, WARM_UP
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
NOBODY = "nobody"
"""The row that says what the defence costs: all are honest, and harm is above the run with the other defence."""
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
    folder: Path, seeds: int, only: Sequence[str], *, quick: bool, jobs: int, tell: Callable[[str], None]
) -> list[Row]:
    """Play all of it. `only`: these attacks; none: all. `quick`: the strongest ones in the two main settings."""
    plan = [(setting, attack) for setting in MAIN for attack in (NOBODY, *(FEW if quick else POISONS))]
    plan += [] if quick else [(setting, attack) for setting in OTHERS for attack in FEW]
    plan = [(setting, attack) for setting, attack in plan if not only or attack in only]
    rows = []
    for row in in_processes(_row, folder, [(seeds, *of) for of in plan], jobs):
        rows.append(row)
        tell(line(row))
    return rows


def _row(folder: Path, seeds: int, setting: str, attack: str) -> Row:
    alone = [_alone(folder, seed, setting, NOW) for seed in range(seeds)]
    if attack == NOBODY:
        before = [_alone(folder, seed, setting, BEFORE) for seed in range(seeds)]
        return Row(setting, attack, 0.0, _harm(alone, before), 0.0, _share(alone, "honest"))
    before, now = (
        [play(_bench(folder, seed), SETTINGS[setting], defence, attack) for seed in range(seeds)]
        for defence in (BEFORE, NOW)
    )
    shares = _share(now, "hostile"), _share(now, "honest")
    return Row(setting, attack, _harm(before, alone), _harm(now, alone), *shares)


def _harm(played: Sequence[Outcome], other: Sequence[Outcome]) -> float:
    """Perplexity over that of others with the same seeds, minus one; the mean."""
    return statistics.fmean(a.perplexity / b.perplexity - 1 for a, b in zip(played, other, strict=True))


@cache
def _bench(folder: Path, seed: int) -> Bench:
    return Bench(folder, seed, ROUNDS)


@cache
def _alone(folder: Path, seed: int, setting: str, defence: Defence) -> Outcome:
    """Of the run where the hostile members are not there."""
    return play(_bench(folder, seed), SETTINGS[setting], defence, None)


def _share(outcomes: Sequence[Outcome], who: str) -> float:
    """Of their pieces that counted."""
    counts = [outcome.counted[who] for outcome in outcomes]
    return sum(kept for kept, _ in counts) / max(1, sum(every for _, every in counts))


HEAD = f"| hostile | attack | {BEFORE} | {NOW} | of theirs counted | of the honest | |\n|---|---|---|---|---|---|---|"


def line(row: Row) -> str:
    """As Markdown."""
    verdict = "no majority" if row.setting in OF_A_MAJORITY else "**missed**" if row.missed else "met"
    return (
        f"| {row.setting} | {_about(row.attack)} | {percent(row.before)} | {percent(row.now)} | "
        f"{100 * row.hostile:.0f} % | {100 * row.honest:.1f} % | {verdict} |"
    )


def _about(attack: str) -> str:
    if attack == NOBODY:
        return "nobody: all are honest, against the run with the plain mean"
    return f"{attack}: {POISONS[attack].about}"


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
