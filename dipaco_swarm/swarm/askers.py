"""How much of a peer those that ask it may take: so many questions at once, and so many in a minute.

Names cost nothing, so a bound for each name alone is none; an address stands for whoever is behind one router.
"""

import ipaddress
import time
from collections import Counter
from collections.abc import Callable

from dipaco_swarm.swarm.addresses import host_in, is_relayed

QUESTIONS = 8
"""Streams of questions at once, of all askers..."""
QUESTIONS_OF_ONE = 4
"""... of one..."""
QUESTIONS_OF_AN_ADDRESS = 6
"""... and of all that come from one address, or from one network of IPv6."""
QUESTIONS_A_MINUTE = 600
"""Of one name, and of one address; those that were refused count as well."""
MAX_KNOWN = 4096
"""Names and addresses that are counted in a minute; nobody else may ask in it."""


class Askers:
    """Who asks now. In the loop."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._now: Counter[str] = Counter()
        self._at_once = 0
        self._minute = 0
        self._asked: Counter[str] = Counter()
        """In this minute."""

    def refuses(self, name: str, address: str) -> float | None:
        """A question of this peer: seconds after which it may ask again; None: now. `address`: where it comes from."""
        minute, left = divmod(self._monotonic(), 60.0)
        if minute != self._minute:
            self._minute = int(minute)
            self._asked.clear()
        keys = _keys(name, address)
        if len(self._asked) >= MAX_KNOWN and any(key not in self._asked for key in keys):
            return 60.0 - left
        for key in reversed(keys):  # an address that asks too much adds no more names
            self._asked[key] += 1
            if self._asked[key] > QUESTIONS_A_MINUTE:
                return 60.0 - left
        bounds = zip(keys, (QUESTIONS_OF_ONE, QUESTIONS_OF_AN_ADDRESS), strict=False)
        full = self._at_once >= QUESTIONS or any(self._now[key] >= most for key, most in bounds)
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
    network = host if host.version == 4 else ipaddress.ip_network((int(host), 64), strict=False)
    return [f"name {name}", f"address {network}"]
