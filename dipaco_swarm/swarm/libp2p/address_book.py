"""Peers that we met, in a file of the home folder: ways back into the swarm while no bootstrap node is up."""

import ipaddress
import re
from collections.abc import Iterable
from pathlib import Path

from dipaco_swarm.files import keep_if_possible
from dipaco_swarm.swarm.libp2p.identity import public_key

_ADDRESS = re.compile(
    r"/(?:ip4/(?P<ip4>[0-9.]+)|ip6/(?P<ip6>[0-9a-f:.]+)|dns[46]?/[a-z0-9.-]{1,253})"
    r"/(?:tcp/(?P<tcp>[1-9]\d{0,4})|udp/(?P<udp>[1-9]\d{0,4})/quic(?:-v1)?)"
    r"(?:/p2p/(?P<relay>[^/]+)/p2p-circuit)?/p2p/(?P<name>[^/]+)"
)

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
        return tuple(line for line in lines[:MOST] if is_dialable(line))

    def remember(self, known: Iterable[str], strangers: Iterable[str] = ()) -> None:
        """Keep these, and of those from before what there is room for; of strangers, names of whom cost nothing, what
        there is room for after that."""
        places = (*sorted(known), *self._known, *sorted(strangers))
        known = tuple(filter(is_dialable, dict.fromkeys(places)))[:MOST]
        if known == self._known:
            return
        self._known = known
        keep_if_possible(self._file, ("\n".join(known) + "\n").encode())


def is_dialable(address: str) -> bool:
    """Whether the network daemon reads this as the address of a peer of ours. Strangers say what they like, and one odd
    address among many ends a daemon that is started with them."""
    found = _ADDRESS.fullmatch(address)
    if found is None:
        return False
    ip, port = found["ip4"] or found["ip6"], int(found["tcp"] or found["udp"])
    try:
        version = ipaddress.ip_address(ip).version if ip is not None else None
    except ValueError:
        return False
    names = [name for name in (found["relay"], found["name"]) if name is not None]
    is_one = version in (None, 4 if found["ip4"] is not None else 6)
    return is_one and port < 1 << 16 and all(public_key(name) is not None for name in names)
