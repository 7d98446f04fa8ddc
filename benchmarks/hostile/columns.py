"""What is measured of a swarm with somebody hostile in it, whoever plays it, and what it should be."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dipaco_swarm.testing.cast import ROLES, STRANGERS

PACE = 0.9
"""Of the versions a minute before, while the attack goes on and after it."""
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

    @classmethod
    def mean(cls, several: Sequence["Columns"]) -> "Columns":
        """Of several seeds; what must not be is added up."""
        return cls(
            versions=_mean([columns.versions for columns in several]),
            trained=_mean([columns.trained for columns in several]),
            counted=statistics.fmean(columns.counted for columns in several),
            adopted=sum(columns.adopted for columns in several),
            ended=sum(columns.ended for columns in several),
        )

    def missed(self, role: str) -> list[str]:
        """The aims that are not met, in a word each."""
        before, during, after = self.versions
        found = ["state adopted"] * bool(self.adopted) + ["process ended"] * bool(self.ended)
        if during < PACE * before:
            found.append("slower meanwhile")
        if after < PACE * before:
            found.append("slower afterwards")
        if role in STRANGERS and self.counted:
            found.append("a stranger counts")
        return found


def _mean(several: Sequence[Three]) -> Three:
    before, during, after = (statistics.fmean(column) for column in zip(*several, strict=True))
    return before, during, after


HEAD = (
    "| role | members | versions a minute: before, during, after | training | versions with theirs | "
    "outsider's states adopted | programs ended | |\n|---|---|---|---|---|---|---|---|"
)


def line(role: str, size: int, columns: Columns) -> str:
    """As Markdown."""
    versions = ", ".join(f"{each:.1f}" for each in columns.versions)
    trained = ", ".join(f"{100 * each:.0f} %" for each in columns.trained)
    verdict = "**missed**: " + ", ".join(missed) if (missed := columns.missed(role)) else "met"
    return (
        f"| {role}: {ROLES[role].about} | {size} | {versions} | {trained} | {100 * columns.counted:.0f} % | "
        f"{columns.adopted} | {columns.ended} | {verdict} |"
    )


def page(title: str, about: str, found: Mapping[tuple[str, int], Columns]) -> str:
    """The report, as Markdown."""
    rows = [line(role, size, columns) for (role, size), columns in found.items()]
    return "\n".join([f"# {title}", "", about, "", HEAD, *rows]) + "\n"
