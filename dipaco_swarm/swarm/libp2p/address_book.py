"""Peers that we met, in a file of the home folder: ways back into the swarm while no bootstrap node is up."""

from collections.abc import Iterable
from pathlib import Path

from dipaco_swarm.files import keep_if_possible

MOST = 16
"""Addresses that are remembered."""
FILE = "acquaintances.txt"


class AddressBook:
    """Where the peers were that we knew last; strangers where there is room. Never raises: it is a convenience."""

    def __init__(self, home: Path) -> None:
        self._file = home / FILE
        self._known = self.addresses()

    def addresses(self) -> tuple[str, ...]:
        """Multiaddrs, each ending in /p2p/NAME; none before the first time in this home."""
        try:
            lines = self._file.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError):
            return ()
        return tuple(line for line in lines[:MOST] if line.startswith("/") and "/p2p/" in line)

    def remember(self, known: Iterable[str], strangers: Iterable[str] = ()) -> None:
        """Keep these, and of those from before what there is room for; of strangers, names of whom cost nothing, what
        there is room for after that."""
        known = tuple(dict.fromkeys((*sorted(known), *self._known, *sorted(strangers))))[:MOST]
        if known == self._known:
            return
        self._known = known
        keep_if_possible(self._file, ("\n".join(known) + "\n").encode())
