"""How much of a peer those that ask it may take: so many questions at once, and so many in a minute.

Names cost nothing, so a bound for each name alone is none; an address stands for whoever is behind one router.
"""

import time
from collections import Counter
from collections.abc import Callable

from dipaco_swarm.algorithm.forgetting import put_last
from dipaco_swarm.swarm.addresses import host_in, is_relayed, site_of

QUESTIONS = 8
"""Streams of questions at once, of all askers; twice as many where each has one: the desk ends one of somebody who has
several for one of somebody who has none (`peer/shares.py`)..."""
QUESTIONS_OF_ONE = 4
"""... of one..."""
QUESTIONS_OF_AN_ADDRESS = 6
"""... and of all that come from one address, or from one network of IPv6."""
QUESTIONS_A_MINUTE = 600
"""Of one name, and of one address; those that were refused count as well."""
MAX_KNOWN = 4096
"""Names, and addresses, that are counted in a minute; those that asked longest ago are forgotten."""


class Askers:
    """Who asks now. In the loop."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._now: Counter[str] = Counter()
        self._at_once = 0
        self._minute = 0
        self._asked: tuple[dict[str, int], dict[str, int]] = {}, {}
        """In this minute: names, addresses."""

    def refuses(self, name: str, address: str) -> float | None:
        """A question of this peer: seconds after which it may ask again; None: now. `address`: where it comes from."""
        minute, left = divmod(self._monotonic(), 60.0)
        if minute != self._minute:
            self._minute = int(minute)
            self._asked = {}, {}
        own, behind = f"name {name}", _behind(address)
        counted = [(own, self._asked[0])]
        if behind and not is_relayed(address):  # behind one relay are many
            counted.insert(0, (behind, self._asked[1]))  # first: an address that asks too much adds no more names
        for key, asked in counted:
            put_last(asked, key, asked.get(key, 0) + 1, MAX_KNOWN)
            if asked[key] > QUESTIONS_A_MINUTE:
                return 60.0 - left
        room = QUESTIONS if self._now[counted_under(name, address)] else 2 * QUESTIONS
        most_behind = QUESTIONS if is_relayed(address) else QUESTIONS_OF_AN_ADDRESS
        full = self._at_once >= room or self._now[own] >= QUESTIONS_OF_ONE
        return 5.0 if full or (behind and self._now[behind] >= most_behind) else None

    def begin(self, name: str, address: str) -> None:
        """It is being answered."""
        self._at_once += 1
        self._now.update(_counted(name, address))

    def end(self, name: str, address: str) -> None:
        """It is answered, or broke off."""
        self._at_once -= 1
        self._now.subtract(_counted(name, address))
        self._now += Counter()  # forget who asks nothing now


def counted_under(name: str, address: str) -> str:
    """Where that comes from, unless a relay is in between; else its name, of which everybody can have many."""
    behind = _behind(address)
    return f"name {name}" if not behind or is_relayed(address) else behind


def _counted(name: str, address: str) -> list[str]:
    """What a question of this peer counts for."""
    return [key for key in (f"name {name}", _behind(address)) if key]


def _behind(address: str) -> str:
    """Where that comes from: an address, or the place of a relay; empty: nobody knows."""
    host = host_in(address)
    if host is None:
        return ""
    if is_relayed(address):
        return f"relay {site_of(address)}"
    return f"address {host if host.version == 4 else site_of(address)}"
