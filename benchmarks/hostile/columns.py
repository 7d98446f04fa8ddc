"""What is measured of a swarm with somebody hostile in it, whoever plays it, and what it should be."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dipaco_swarm.testing.cast import ROLES, STRANGERS

PACE = 0.9
"""Of the versions a minute before, while the attack goes on and after it."""
EARLY = 1.6
"""... and no more than that: rounds that come sooner have less training in them. Who plays the role trains as well, a
third of what the others do in a group of four."""
HELD_SECONDS = 1.0
"""Training may stand still for so much longer than before, at most."""
Three = tuple[float, float, float]
"""Before, during, after."""


@dataclass(frozen=True)
class Columns:
    """One role in a group of one size."""

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
    grain: float = 0.0
    """What one version more or less is in these figures, where that is much: a window of seconds has few."""

    @classmethod
    def mean(cls, several: Sequence["Columns"]) -> "Columns":
        """Of several seeds; what must not be is added up."""
        settled = [columns.settled for columns in several if columns.settled is not None]
        held = [columns.held for columns in several if columns.held is not None]
        return cls(
            versions=_mean([columns.versions for columns in several]),
            trained=_mean([columns.trained for columns in several]),
            counted=statistics.fmean(columns.counted for columns in several),
            adopted=sum(columns.adopted for columns in several),
            ended=sum(columns.ended for columns in several),
            settled=statistics.fmean(settled) if settled else None,
            held=(statistics.fmean(h[0] for h in held), statistics.fmean(h[1] for h in held)) if held else None,
        )

    def missed(self, role: str) -> list[str]:
        """The aims that are not met, in a word each. Who takes part has half of the attack to be found in."""
        before, during, after = self.versions
        is_stranger = kind_of(role)[0] in STRANGERS
        if not is_stranger and self.settled is not None:
            during = self.settled
        found = ["state adopted"] * bool(self.adopted) + ["process ended"] * bool(self.ended)
        if during + self.grain < PACE * before:
            found.append("slower meanwhile")
        if self.settled is not None and during > EARLY * before:
            found.append("rounds come early")
        if after + self.grain < PACE * before:
            found.append("slower afterwards")
        if is_stranger and self.counted:
            found.append("a stranger counts")
        if is_stranger and self.held is not None and self.held[1] > self.held[0] + HELD_SECONDS:
            found.append("training held up")
        return found


def kind_of(role: str) -> tuple[str, int]:
    """A row's role, and how many names play it: `flip*2`."""
    kind, _, names = role.partition("*")
    return kind, int(names or 1)


def is_role(role: str) -> bool:
    """Whether there is such a row."""
    kind, star, names = role.partition("*")
    return kind in ROLES and (not star or (names.isdecimal() and 0 < int(names) <= 64))


def _mean(several: Sequence[Three]) -> Three:
    before, during, after = (statistics.fmean(column) for column in zip(*several, strict=True))
    return before, during, after


HEAD = (
    "| role | members | versions a minute: before, during, its second half, after | training | stood still at most: "
    "before, during | versions with theirs | outsider's states adopted | programs ended | |\n"
    "|---|---|---|---|---|---|---|---|---|"
)


def line(role: str, size: int, columns: Columns) -> str:
    """As Markdown."""
    before, during, after = (f"{each:.1f}" for each in columns.versions)
    settled = "-" if columns.settled is None else f"{columns.settled:.1f}"
    trained = ", ".join(f"{100 * each:.0f} %" for each in columns.trained)
    held = "-" if columns.held is None else ", ".join(f"{each:.1f} s" for each in columns.held)
    verdict = "**missed**: " + ", ".join(missed) if (missed := columns.missed(role)) else "met"
    kind, names = kind_of(role)
    who = f"{names} x {kind}" if names > 1 else kind
    return (
        f"| {who}: {ROLES[kind].about} | {size} | {before}, {during}, {settled}, {after} | {trained} | {held} | "
        f"{100 * columns.counted:.0f} % | {columns.adopted} | {columns.ended} | {verdict} |"
    )


def page(title: str, about: str, found: Mapping[tuple[str, int], Columns]) -> str:
    """The report, as Markdown."""
    rows = [line(role, size, columns) for (role, size), columns in found.items()]
    return "\n".join([f"# {title}", "", about, "", HEAD, *rows]) + "\n"
