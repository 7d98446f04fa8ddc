"""Who counts as one client."""

from ipaddress import IPv6Address, ip_address, ip_network

SITE_BITS = 48
"""Of an address of IPv6."""


def site_of(host: str) -> str | None:
    """An address, of IPv6 what one customer has at most, as a rule. None: it is not of the internet, so a proxy may be
    there, on this machine or beside it, with all clients behind it."""
    try:
        address = ip_address(host)
    except ValueError:
        return host
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    if not address.is_global:
        return None
    return str(address if address.version == 4 else ip_network((int(address), SITE_BITS), strict=False))
