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
        keys = _keys(name, address)
        for key, asked in reversed(list(zip(keys, self._asked, strict=False))):
            put_last(asked, key, asked.get(key, 0) + 1, MAX_KNOWN)
            if asked[key] > QUESTIONS_A_MINUTE:  # an address that asks too much adds no more names
                return 60.0 - left
        bounds = zip(keys, (QUESTIONS_OF_ONE, QUESTIONS_OF_AN_ADDRESS), strict=False)
        room = QUESTIONS if self._now[keys[-1]] else 2 * QUESTIONS
        full = self._at_once >= room or any(self._now[key] >= most for key, most in bounds)
        return 5.0 if full else None

    def begin(self, name: str, address: str) -> None:
        """It is being answered."""
        self._at_once += 1
        self._now.update(_keys(name, address))

    def end(self, name: str, address: str) -> None:
        """It is answered, or broke off."""
        self._at_once -= 1
        self._now.subtract(_keys(name, address))
        self._now += Counter()  # forget who asks nothing now


def counted_under(name: str, address: str) -> str:
    """Where that comes from, unless a relay is in between; else its name, of which everybody can have many."""
    return _keys(name, address)[-1]


def _keys(name: str, address: str) -> list[str]:
    """What a question is counted under: its asker, and where that comes from unless a relay is in between."""
    host = host_in(address)
    if host is None or is_relayed(address):
        return [f"name {name}"]
    return [f"name {name}", f"address {host if host.version == 4 else site_of(address)}"]
