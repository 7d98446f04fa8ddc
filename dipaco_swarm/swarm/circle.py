"""Whom a peer knows: names of who has contributed to states of the run, in a file of the home folder.

Their word decides which states are believed (`algorithm/evidence.py`), also in the next life, when everybody who is
there may be a stranger.
"""

from collections.abc import Iterable
from pathlib import Path

from dipaco_swarm.files import forget_if_possible, keep_if_possible

MOST = 4096
"""Names; who has contributed lately stays."""
LAST = ".last"
"""Of the file that is there where we were the last to leave."""
LONGEST = 80
"""Characters of a name."""


def circle_file(home: Path, run: str) -> Path:
    """`run`: its fingerprint."""
    return home / f"circle-{run[:16]}.txt"


class Circle:
    """The names; whoever was met last is the last one. Never raises: a file that cannot be used is not used."""

    def __init__(self, file: Path | None = None) -> None:
        """`file`: None where nothing is kept."""
        self._file = file
        self._names = dict.fromkeys(_read(file) if file is not None else ())
        self._last = file.with_suffix(LAST) if file is not None else None

    def __contains__(self, name: str) -> bool:
        return name in self._names

    def has_others(self, us: str) -> bool:
        """Whether it has anybody in it but ourselves."""
        names = self._names
        return len(names) > (us in names)

    def enter(self) -> bool:
        """A life begins. Whether the one before it ended with a word, and nobody of these was there then."""
        return self._last is not None and forget_if_possible(self._last)

    def leave(self, *, alone: bool) -> None:
        """This life ends with a word. `alone`: nobody of these was there."""
        if alone and self._last is not None:
            keep_if_possible(self._last, b"")

    def last(self, most: int) -> list[str]:
        """Who was met last."""
        return list(self._names)[-most:][::-1]

    def meet(self, names: Iterable[str]) -> None:
        """These have contributed to a state that we believe."""
        before = self._names.keys()
        met = {name: None for name in names if name}
        is_news = bool(met.keys() - before)
        self._names = dict(list({**{n: None for n in before if n not in met}, **met}.items())[-MOST:])
        if is_news and self._file is not None:
            keep_if_possible(self._file, "".join(f"{name}\n" for name in self._names).encode())


def _read(file: Path) -> list[str]:
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return []
    return [line for line in lines if line.isprintable() and 0 < len(line) <= LONGEST][-MOST:]
