"""What is measured of a swarm with somebody hostile in it, whoever plays it, and what it should be."""

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from dipaco_swarm.testing.cast import ROLES, STRANGERS

PACE = 0.9
"""Of the versions a minute before, while the attack goes on and after it."""
PACE_OF_DEAD = 0.95
"""... where all that there is are names with nobody behind them."""
EARLY = 1.6
"""... and no more than that: rounds that come sooner have less training in them. Who plays the role trains as well, a
third of what the others do in a group of four."""
HELD_SECONDS = 1.0
"""Training may stand still for so much longer than before, at most."""
NO_MAJORITY = 0.5
"""Where hostile members are so many of a group, nothing is promised of its pace; nor when they are gone: who is alone
where others were makes versions no faster than all of them did (`algorithm/pacing/paced.py`)."""
SILENT_WITHIN, FOUND_WITHIN = 2, 5
"""Rounds in which somebody does so until most of the honest go on without it: who is silent, and who lies."""
OUT_WITHIN: Mapping[str, int] = {
    "mute": SILENT_WITHIN,
    "mute-reducer": SILENT_WITHIN,
    "equivocator": FOUND_WITHIN,
    "wrong-scaled": FOUND_WITHIN,
    "wrong-flipped": FOUND_WITHIN,
    "wrong-partly": FOUND_WITHIN,
    "wrong-hidden": FOUND_WITHIN,
    "staller": FOUND_WITHIN,
    "freezer": FOUND_WITHIN,
    "refuser": FOUND_WITHIN,
}
"""Roles against which there is a list of names."""
SELDOM = 0.05
"""Of the seeds, at most, in which it takes longer."""
TWINS_OF_HONEST = 0.02
"""Versions with a twin, at most, a seed: members that begin in one moment make some, 3 in 341 plays with nobody hostile
(`docs/decisions/0050-newcomers-come-with-the-others-round.md`)."""
AWAY = "@away"
"""At the end of a row's role: all members go without a word while it is played, and come back."""
Three = tuple[float, float, float]
"""Before, during, after."""


@dataclass(frozen=True)
class Columns:
    """One role in a group of one size; by one seed, or of several together."""

    versions: Three
    """A minute, of the shared module."""
    trained: Three
    """Share of the time that the honest trained; of real processes their tokens, of those a second before."""
    counted: float
    """Share of the versions made meanwhile that have something of the hostile in them."""
    adopted: int
    """States of an outsider that somebody has, or went on from."""
    ended: int
    """Honest programs that ended by themselves."""
    settled: float | None = None
    """Versions a minute in the second half of the attack, when a culprit should be out; None: not measured."""
    held: tuple[float, float] | None = None
    """The longest that somebody honest stood still, in seconds, before and during; None: not measured."""
    out: tuple[int, ...] = ()
    """Of each seed, in how many rounds the hostile did what they do until most of the honest went on without them; in
    all of the attack, where these did not."""
    not_out: int = 0
    """Seeds in which they did not."""
    grain: float = 0.0
    """What one version more or less in a window is in these figures: nothing smaller is missed."""
    forks: int | None = None
    """Versions with a twin, where honest peers made both of the same state; None: not measured."""
    worst: Three | None = None
    """Of several seeds, the lowest of the versions a minute, as shares of those before: during, its second half, after.
    """
    seeds: int = 1
    processors: float = 1.0
    """Of what the honest had of real ones before, what they have while the hostile process uses them as well."""

    @classmethod
    def of(cls, several: Sequence["Columns"]) -> "Columns":
        """Several seeds as one: the means of what is counted, the medians of the rest; what must not be is added up.

        A window has a handful of versions, and a median of so few is a whole one off. A version more or less is chance
        in each seed, so the grain is that of one divided by the root of their number.
        """
        if len(several) == 1:
            return several[0]
        shares = [columns.shares for columns in several]
        settled = [columns.settled for columns in several if columns.settled is not None]
        held = [columns.held for columns in several if columns.held is not None]
        forks = [columns.forks for columns in several if columns.forks is not None]
        return cls(
            versions=_of_each(statistics.fmean, [columns.versions for columns in several]),
            trained=_of_each(statistics.median, [columns.trained for columns in several]),
            counted=statistics.median(columns.counted for columns in several),
            adopted=sum(columns.adopted for columns in several),
            ended=sum(columns.ended for columns in several),
            settled=statistics.fmean(settled) if settled else None,
            out=tuple(versions for columns in several for versions in columns.out),
            not_out=sum(columns.not_out for columns in several),
            held=(statistics.median(h[0] for h in held), statistics.median(h[1] for h in held)) if held else None,
            grain=several[0].grain / math.sqrt(len(several)),
            forks=sum(forks) if forks else None,
            worst=_of_each(min, shares),
            seeds=len(several),
        )

    @property
    def shares(self) -> Three:
        """Of the versions a minute before: during the attack, in its second half, after it."""
        before, during, after = self.versions
        most = max(before, 1e-9)
        return during / most, (during if self.settled is None else self.settled) / most, after / most

    def missed(self, role: str, size: int) -> list[str]:
        """The aims that are not met, in a word each. Who takes part has half of the attack to be found in."""
        before, during, after = self.versions
        kind, names = kind_of(role)
        is_stranger = kind in STRANGERS
        pace = PACE_OF_DEAD if kind == "dead" else PACE
        if not is_stranger and self.settled is not None:
            during = self.settled
        found = ["state adopted"] * bool(self.adopted) + ["process ended"] * bool(self.ended)
        found += ["two states of a version"] * ((self.forks or 0) > TWINS_OF_HONEST * self.seeds)
        if is_stranger or names < NO_MAJORITY * size:
            if during + self.grain < pace * self.processors * before:
                found.append("slower meanwhile")
            if during - self.grain > EARLY * before:
                found.append("rounds come early")
            if after + self.grain < PACE * before:
                found.append("slower afterwards")
        if kind in OUT_WITHIN and names < NO_MAJORITY * size and self._is_late(OUT_WITHIN[kind]):
            found.append("out late")
        if is_stranger and self.counted:
            found.append("a stranger counts")
        if is_stranger and self.held is not None and self.held[1] > self.held[0] + HELD_SECONDS:
            found.append("training held up")
        return found

    def _is_late(self, within: int) -> bool:
        """Whether it was out later than that in more than SELDOM of the seeds."""
        return sum(rounds > within for rounds in self.out) > SELDOM * self.seeds


def kind_of(role: str) -> tuple[str, int]:
    """A row's role, and how many names play it: `flip*2`, `takeover@away`."""
    kind, _, names = role.removesuffix(AWAY).partition("*")
    return kind, int(names or 1)


def is_role(role: str) -> bool:
    """Whether there is such a row."""
    kind, star, names = role.removesuffix(AWAY).partition("*")
    return kind in ROLES and (not star or (names.isdecimal() and 0 < int(names) <= 64))


def _of_each(measure: Callable[[Sequence[float]], float], several: Sequence[Three]) -> Three:
    """One number of each of the three, over all seeds."""
    before, during, after = (measure(column) for column in zip(*several, strict=True))
    return before, during, after


HEAD = (
    "| role | members | versions a minute: before, during, its second half, after | of before, the worst seed "
    "| training | stood still at most: before, during | versions with theirs | out after so many rounds of it "
    "| outsider's states adopted | programs ended | twins | |\n|---|---|---|---|---|---|---|---|---|---|---|---|"
)


def line(role: str, size: int, columns: Columns) -> str:
    """As Markdown."""
    before, during, after = (f"{each:.1f}" for each in columns.versions)
    settled = "-" if columns.settled is None else f"{columns.settled:.1f}"
    trained = ", ".join(f"{100 * each:.0f} %" for each in columns.trained)
    worst = ", ".join(f"{100 * each:.0f} %" for each in columns.worst or columns.shares)
    held = "-" if columns.held is None else ", ".join(f"{each:.1f} s" for each in columns.held)
    verdict = "**missed**: " + ", ".join(missed) if (missed := columns.missed(role, size)) else "met"
    kind, names = kind_of(role)
    if kind not in STRANGERS and names >= NO_MAJORITY * size:
        verdict += " (no majority)"
    who = f"{names} x {kind}" if names > 1 else kind
    about = f"{ROLES[kind].about}{', and all members are away for a minute' if role.endswith(AWAY) else ''}"
    return (
        f"| {who}: {about} | {size} | {before}, {during}, {settled}, {after} | {worst} | {trained} "
        f"| {held} | {100 * columns.counted:.0f} % | {_out(columns)} | {columns.adopted} | {columns.ended} | "
        f"{'-' if columns.forks is None else columns.forks} | {verdict} |"
    )


def _out(columns: Columns) -> str:
    if not columns.out:
        return "-"
    found = f"{statistics.median(columns.out):.0f}, at most {max(columns.out)}"
    return f"{found}; not met often enough in {columns.not_out} of {len(columns.out)}" if columns.not_out else found


def page(title: str, about: str, found: Mapping[tuple[str, int], Columns]) -> str:
    """The report, as Markdown."""
    rows = [line(role, size, columns) for (role, size), columns in found.items()]
    return "\n".join([f"# {title}", "", about, "", HEAD, *rows]) + "\n"
