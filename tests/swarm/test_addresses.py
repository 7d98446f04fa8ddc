"""Where a peer is, and its name, whatever is between them."""

import pytest

from dipaco_swarm.swarm.addresses import address_of, is_on_this_machine, is_relayed, name_in, place_in, site_of

DIRECT = "/ip4/11.0.0.1/tcp/4001"
RELAYED = f"{DIRECT}/p2p/relay/p2p-circuit"


@pytest.mark.parametrize("place", [DIRECT, RELAYED, "/ip6/2001:db8::1/tcp/7", "/dns4/host/tcp/7"])
def test_an_address_is_a_place_and_a_name(place: str) -> None:
    address = address_of(place, "peer")
    assert (place_in(address), name_in(address)) == (place, "peer")
    assert place_in(place) == place
    assert is_relayed(address) == (place == RELAYED)


def test_only_loopback_is_this_machine() -> None:
    assert [is_on_this_machine(place) for place in ("/ip4/127.0.0.1/tcp/1", "/ip4/127.9.9.9/tcp/1", "/ip6/::1/tcp/1")]
    assert not any(map(is_on_this_machine, (DIRECT, "/ip6/::2/tcp/1", "/ip4/12.7.0.1/tcp/1", "/dns4/localhost/tcp/1")))


@pytest.mark.parametrize(
    ("address", "site"),
    [
        ("/ip4/11.0.0.1/tcp/4001", "11.0.0.0/24"),
        ("/ip4/11.0.0.254/udp/1/quic", "11.0.0.0/24"),
        ("/ip4/11.0.1.1/tcp/4001", "11.0.1.0/24"),
        ("/ip6/2001:db8:1:ffff::1/tcp/7", "2001:db8:1::/48"),
        ("/ip6/2001:db8:2::1/tcp/7", "2001:db8:2::/48"),
        (RELAYED, "behind 11.0.0.0/24"),
        ("/dns4/host/tcp/7", ""),
        ("/ip4/1.2.3/tcp/7", ""),
        ("", ""),
    ],
)
def test_a_site_is_what_names_of_one_machine_have_in_common(address: str, site: str) -> None:
    assert site_of(address) == site
