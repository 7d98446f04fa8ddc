"""How often members who try each other's contributions find harm: in honest ones, and in noise; with `pure.py`.

Every honest member looks at every contribution to every module that it trains, each time with other documents; nobody
is left out for it, so that all rounds are looked at alike.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path

import numpy as np
import torch

from benchmarks.hostile.pure import EVERY, FOUR_PATHS, OWN, SETTINGS, Bench, Defence, Setting, in_processes, play
from benchmarks.hostile.text import DOMAINS
from benchmarks.hostile.trainee import INNER_STEPS, Given, States, Trainee
from benchmarks.reduce import hardware
from dipaco_swarm.algorithm.doubts import FEWEST
from dipaco_swarm.algorithm.paths import ModuleId
from dipaco_swarm.peer.trying import Judge
from dipaco_swarm.testing.poison import POISONS

ROUNDS = 20
AIM = 1e-3
"""Of the looks at honest members."""
PACES = {"alike": (10,), "unlike": (4, 10, 27, 2, 16, 60, 7, 1, 12, 35, 5), "few": (1, 2, 4, 40, 20, 10, 5)}
"""Inner steps that they take between rounds."""
GROUPS = (
    SETTINGS["1 of 5 replicas"],
    SETTINGS["1 of 5 paths"],
    Setting("pairs of four domains", FOUR_PATHS, OWN[:4], (0, 0, 1, 1, 2, 2, 3, 3), (3,)),
    Setting("three of four domains", FOUR_PATHS, OWN[:4], (0, 0, 1, 1, 2, 3), (2,)),
    Setting("three of all domains", FOUR_PATHS, EVERY * 4, (0, 0, 1, 1, 2, 3), (2,)),
)
ATTACKS = ("mixed", "cover", "noise")
NAMES = {0: "first", len(FOUR_PATHS[0]) - 1: "head"}
"""Of a level."""


@dataclass(frozen=True)
class Looked:
    """At the contribution of one member to one module, by another one."""

    level: int
    honest: bool
    of_noise: float
    """How much it bends the loss, over what noise of a usual length does."""
    found: bool
    """Whether it is harm."""


@dataclass(eq=False)
class Witness:
    """What the honest members of one play see in all that is given to them."""

    random: torch.Generator
    seen: list[Looked] = field(default_factory=list)

    def __call__(self, who: Trainee, states: States, given: Mapping[ModuleId, Given]) -> None:
        who.load(states, given)
        for module, members in given.items():
            if len(members) < FEWEST:
                continue
            fresh = Judge(who.name, self.random)  # which doubts nobody yet
            said, trials = who.judge(fresh, module, len(states[module].params), members)
            *of_members, noise = trials
            harm = {doubted.peer for doubted in said}
            self.seen += (
                Looked(module.level, name.startswith("honest"), trial.bend / noise.bend, name in harm)
                for name, trial in zip(sorted(members), of_members, strict=True)  # so few are all tried
                if name != who.name
            )


@dataclass(frozen=True)
class Row:
    """Of one kind of group at one pace, one level."""

    group: str
    pace: str
    level: int
    honest: tuple[float, float]
    """Half of them bend by less than that, and 99 of 100 by less than this, in times of noise."""
    looks: int
    alarms: int
    """Of these, about somebody honest."""
    hostile: Mapping[str, tuple[int, int]]
    """By attack: looks at who is hostile, and in how many harm was found."""

    @property
    def line(self) -> str:
        """As Markdown."""
        found = " | ".join(f"{100 * harm / max(1, looks):.0f} %" for looks, harm in self.hostile.values())
        half, most = self.honest
        of = f"| {self.group} | {self.pace} | {NAMES[self.level]} "
        return f"{of}| {half:.2f}, {most:.1f} | {self.alarms} of {self.looks} | {found} |"


def table_rows(folder: Path, seeds: int, jobs: int, tell: Callable[[str], None]) -> list[Row]:
    """Play all of it; rows as they come."""
    rows = []
    for found in in_processes(_rows, folder, [(seeds, group, pace) for group in GROUPS for pace in PACES], jobs):
        rows += found
        for row in found:
            tell(row.line)
    return rows


def _rows(folder: Path, seeds: int, group: Setting, pace: str) -> list[Row]:
    setting = replace(group, steps=PACES[pace])
    longer = max(1, max(setting.steps) // INNER_STEPS)
    benches = [Bench(folder, seed, ROUNDS, longer) for seed in range(seeds)]
    alone = list(_looks(benches, setting, None))
    attacked = {attack: list(_looks(benches, setting, attack)) for attack in ATTACKS}
    return [
        _row(
            (group.name, pace, level),
            [look for look in alone if look.level == level],
            {attack: [look for look in seen if look.level == level] for attack, seen in attacked.items()},
        )
        for level in sorted({look.level for look in alone})
    ]


def _row(of: tuple[str, str, int], alone: Sequence[Looked], attacked: Mapping[str, Sequence[Looked]]) -> Row:
    half, most = np.quantile([look.of_noise for look in alone], (0.5, 0.99)).tolist()
    alarms = [look.found for look in chain(alone, *attacked.values()) if look.honest]
    found = {attack: [look.found for look in seen if not look.honest] for attack, seen in attacked.items()}
    hostile = {attack: (len(looks), sum(looks)) for attack, looks in found.items()}
    return Row(*of, (half, most), len(alarms), sum(alarms), hostile)


def _looks(benches: Iterable[Bench], setting: Setting, attack: str | None) -> Iterable[Looked]:
    for bench in benches:
        witness = Witness(torch.Generator().manual_seed(bench.seed))
        play(bench, setting, Defence(), attack, look=witness)
        yield from witness.seen


HEAD = (
    "| group | steps | level | honest, in times of noise: half, 99 of 100 below | harm found in honest ones | "
    + " | ".join(ATTACKS)
    + " |\n|---|---|---|---|---|"
    + "---|" * len(ATTACKS)
)


def missed(rows: Sequence[Row]) -> bool:
    """Whether honest members are found to do harm too often."""
    looks, alarms = _total(rows)
    return alarms > AIM * looks


def _total(rows: Sequence[Row]) -> tuple[int, int]:
    """Looks at honest members, and those of them that found harm."""
    return sum(row.looks for row in rows), sum(row.alarms for row in rows)


def page(rows: Sequence[Row], seeds: int, seconds: float) -> str:
    """The report, as Markdown."""
    looks, alarms = _total(rows)
    paces = "; ".join(f"{name}: {', '.join(map(str, steps))}" for name, steps in PACES.items())
    attacks = "; ".join(f"{attack}: {POISONS[attack].about}" for attack in ATTACKS)
    return (
        "\n".join(
            (
                f"# Who finds harm in whom: {hardware()}",
                "",
                f"`python -m benchmarks.hostile --alarms --seeds {seeds}`, {seconds:.0f} s. Rounds of honest members "
                f"with a model of 0.15 million parameters on real text of {len(DOMAINS)} domains, {ROUNDS} rounds; "
                "each looks at what every other one has contributed, on four sequences of its own. Inner steps "
                f"between rounds, by turns: {paces}. Attacks, of one member: {attacks}; of the looks at it those that "
                f"found harm. **{alarms} of {looks:,} looks at honest members found any**; the aim is one of "
                f"{1 / AIM:,.0f}.",
                "",
                HEAD,
                *(row.line for row in rows),
            )
        )
        + "\n"
    )
