"""Numbers and lists as people read them in a line."""

from collections.abc import Sequence

NAMED = 4


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


def counted(number: int, word: str) -> str:
    """1 peer, 2 peers."""
    return f"{number:,} {word}{'' if number == 1 else 's'}"
