"""Numbers and lists as people read them in a line."""

from collections.abc import Sequence
from typing import Literal

NAMED = 4

Admission = Literal["open", "invited"]
"""Who may take part in a run."""


def how_long(seconds: float) -> str:
    """A duration for people: 40 s, 3 min, 2 h."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.0f} h"


def some(modules: Sequence[str]) -> str:
    """The first ones, for a line that must not become long: L0M1, L1M0, L2M5 and 13 more."""
    named = modules if len(modules) <= NAMED else modules[: NAMED - 1]
    more = "" if len(named) == len(modules) else f" and {len(modules) - len(named)} more"
    return ", ".join(named) + more


def company(admission: Admission) -> str:
    """With whom one trains there, and what that means."""
    return "open to all, unchecked" if admission == "open" else "invited peers"


def counted(number: int, word: str) -> str:
    """1 peer, 2 peers."""
    return f"{number:,} {word}{'' if number == 1 else 's'}"


def times(number: float) -> str:
    """once, 2.5 times."""
    text = f"{number:.3g}"
    return "once" if text == "1" else f"{text} times"


def size(num_bytes: int) -> str:
    """Bytes for people: 999 B, 1.2 kB, 3.4 MB; powers of 1000, as links are sold."""
    return f"{num_bytes} B" if num_bytes < 1000 else _in_thousands(num_bytes, ("kB", "MB", "GB", "TB"))


def count(number: int) -> str:
    """A large number for people: 999, 1.2 thousand, 3.4 million."""
    return str(number) if number < 1000 else _in_thousands(number, ("thousand", "million", "billion", "trillion"))


def _in_thousands(number: int, units: Sequence[str]) -> str:
    """In the first unit that makes it shorter than four digits, or in the last one."""
    value = float(number)
    for unit in units[:-1]:
        value /= 1000
        if value < 999.5:
            return f"{value:.1f} {unit}" if value < 99.95 else f"{value:.0f} {unit}"
    return f"{value / 1000:,.1f} {units[-1]}"


def percent(share: float) -> str:
    """A share between 0 and 1: 96 %. Never 100 % of what is not all."""
    return f"{min(99, round(100 * share)) if share < 1 else 100} %"
