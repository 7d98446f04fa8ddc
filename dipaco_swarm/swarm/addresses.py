"""Multiaddrs of peers, as text.

    /ip4/1.2.3.4/tcp/4001/p2p/NAME                          a peer that can be dialled
    /ip4/1.2.3.4/tcp/4001/p2p/RELAY/p2p-circuit/p2p/NAME    one that is reached through a relay

As text and not as hivemind's `Multiaddr`, which refuses names that are not base 58: peers within a process have such
names, and what strangers say may be anything. Only what is handed to the daemon becomes one.
"""

import ipaddress
import re

_NAME, _RELAYED = "/p2p/", "/p2p-circuit"
_HOST = re.compile(r"/ip[46]/([^/]+)/")

SITE_BITS = {4: 24, 6: 48}
"""Of an address, by version of IP: what one customer has at most, as a rule."""


def name_in(address: str) -> str:
    """The peer name at the end of an address; all of it when there is no name in it."""
    return address.rpartition(_NAME)[2]


def place_in(address: str) -> str:
    """An address without the peer name at its end, if there is one."""
    place, _, name = address.rpartition(_NAME)
    return place if place and "/" not in name else address


def address_of(place: str, peer: str) -> str:
    return f"{place}{_NAME}{peer}"


def is_relayed(address: str) -> bool:
    return _RELAYED in address


def is_on_this_machine(address: str) -> bool:
    """Whether only programs of the same machine can dial it."""
    return address.startswith(("/ip4/127.", "/ip6/::1/"))


def host_in(address: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """The IP address at its beginning; of one that is reached through a relay that is the relay's."""
    found = _HOST.match(address)
    try:
        return ipaddress.ip_address(found[1]) if found is not None else None
    except ValueError:
        return None


def site_of(address: str) -> str:
    """Where that is, as far as names that are made up by the dozen have it in common: /24, of IPv6 /48; or "".

    Who comes through a relay is where that is: libp2p does not say more.
    """
    host = host_in(address)
    if host is None:
        return ""
    site = ipaddress.ip_network((int(host), SITE_BITS[host.version]), strict=False)
    return f"behind {site}" if is_relayed(address) else str(site)
