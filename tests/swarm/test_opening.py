"""Joining a swarm takes a while, and can be asked to stop, or to wait for better times."""

import asyncio
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import base58
import psutil
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hivemind.utils.multiaddr import Multiaddr

from dipaco_swarm.errors import NodeError, UnreachableError
from dipaco_swarm.machine.stopping import Stopped, Stopping
from dipaco_swarm.run.address import RunAddress
from dipaco_swarm.run.signature import fingerprint_of
from dipaco_swarm.swarm.libp2p import starting
from dipaco_swarm.swarm.libp2p.address_book import AddressBook
from dipaco_swarm.swarm.libp2p.opening import open_swarm
from dipaco_swarm.swarm.libp2p.settings import NodeSettings
from dipaco_swarm.swarm.timing import Timing

from .conftest import LOOPBACK
from .test_contract import MODULE, gather, group

pytestmark = pytest.mark.swarm

SOMEBODY = "12D3KooWHq7DzEPcfqDZ7jWmtcVj5QkH3gG1d1UsBdjyN5urkWzM"


@pytest.fixture
def silent() -> Iterator[str]:
    """The address of a bootstrap node that takes connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"/ip4/127.0.0.1/tcp/{server.getsockname()[1]}/p2p/{SOMEBODY}"


def _address(operator_key: Ed25519PrivateKey, *bootstraps: str) -> RunAddress:
    return RunAddress("test", fingerprint_of(operator_key.public_key()), bootstraps)


def _daemons() -> list[psutil.Process]:
    return [child for child in psutil.Process().children(recursive=True) if child.name() == "p2pd"]


def test_ctrl_c_while_joining_ends_it_and_leaves_no_daemon(
    tmp_path: Path, operator_key: Ed25519PrivateKey, silent: str
) -> None:
    before, stop = set(_daemons()), Stopping()
    threading.Timer(2.0, stop.request).start()
    with pytest.raises(Stopped), open_swarm(_address(operator_key, silent), tmp_path, LOOPBACK, stop):
        pytest.fail("nobody was there to join")
    assert time.monotonic() - stop.asked_at < 5
    assert not set(_daemons()) - before


def test_who_was_asked_to_stop_before_does_not_even_try(
    tmp_path: Path, operator_key: Ed25519PrivateKey, silent: str
) -> None:
    stop = Stopping()
    stop.request()
    with pytest.raises(Stopped), open_swarm(_address(operator_key, silent), tmp_path, LOOPBACK, stop):
        pytest.fail("nobody was there to join")


def test_who_is_asked_to_stop_just_as_it_begins_ends_as_calmly(
    tmp_path: Path, operator_key: Ed25519PrivateKey, silent: str
) -> None:
    class AskedWhenTheLoopBegins(Stopping):
        def __call__(self) -> bool:
            return threading.current_thread() is not threading.main_thread()

    stop = AskedWhenTheLoopBegins()
    with pytest.raises(Stopped), open_swarm(_address(operator_key, silent), tmp_path, LOOPBACK, stop):
        pytest.fail("nobody was there to join")


def test_who_waits_for_better_times_joins_when_they_come(tmp_path: Path, operator_key: Ed25519PrivateKey) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        listen = NodeSettings(f"/ip4/127.0.0.1/tcp/{probe.getsockname()[1]}")
    with open_swarm(_address(operator_key), tmp_path / "bootstrap", listen) as first:
        address, name = first.address, first.peer
    asked: list[UnreachableError] = []
    back = open_swarm(_address(operator_key), tmp_path / "bootstrap", listen)

    def again(nobody: UnreachableError) -> bool:
        asked.append(nobody)
        if len(asked) == 2:
            back.__enter__()
        return True

    with open_swarm(address, tmp_path / "peer", LOOPBACK, Stopping(), again) as peer:
        assert peer.peer != name
    back.__exit__(None, None, None)
    assert len(asked) >= 2
    assert "no bootstrap node answers" in str(asked[0])


def test_who_leaves_early_has_noted_down_who_was_there(
    tmp_path: Path, operator_key: Ed25519PrivateKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Timing, "in_touch", 300.0)
    stranger = f"/ip4/192.0.2.1/tcp/1/p2p/{SOMEBODY}"
    home = tmp_path / "peer"
    home.mkdir()
    AddressBook(home).remember([stranger])
    with open_swarm(_address(operator_key), tmp_path / "bootstrap", LOOPBACK) as first:
        with open_swarm(first.address, home, LOOPBACK) as second:
            gather((first, second), {MODULE: group(0.5, 0.5)}, range(2))
        known = AddressBook(home).addresses()
    assert known[0].endswith(f"/p2p/{first.peer}")
    assert known[1:] == (stranger,)


def test_no_crowd_of_strangers_takes_the_places_of_those_whom_we_know(tmp_path: Path) -> None:
    members = [f"/ip4/88.1.2.{n}/tcp/4001/p2p/{named(n)}" for n in range(6)]
    crowd = [f"/dns4/{n:02}.example/tcp/1/p2p/{named(n + 100)}" for n in range(20)]
    AddressBook(tmp_path).remember(members, crowd[:2])
    AddressBook(tmp_path).remember(members[:3], crowd)
    AddressBook(tmp_path).remember([], reversed(crowd))
    left = AddressBook(tmp_path).addresses()
    assert set(members) <= set(left)
    assert len(left) == 16
    newer = [f"/ip4/88.1.2.{n}/tcp/4001/p2p/{named(n + 200)}" for n in range(16)]
    AddressBook(tmp_path).remember(newer)
    assert AddressBook(tmp_path).addresses() == tuple(sorted(newer))


@pytest.mark.parametrize(
    "place",
    [
        "/foo/bar/foo/bar",
        "/ip4/1.2.3.4/tcp/99999",
        "/ip4/1.2.3.04/tcp/1",
        "/ip4/1.2.3.4/tcp/01",
        "/ip6/fe80::1%eth0/tcp/1",
        "/ip6/1.2.3.4/tcp/1",
        "/unix/a/unix/b",
        "/ip4/1.2.3.4/tcp/1/p2p/nobody/p2p-circuit",
    ],
)
def test_what_a_stranger_calls_its_address_keeps_nobody_from_starting_again(tmp_path: Path, place: str) -> None:
    """One odd line in that file, and neither the operator's node nor a member could be opened until it was removed."""
    good = f"/ip4/1.2.3.4/tcp/1/p2p/{named(1)}"
    AddressBook(tmp_path).remember([f"{place}/p2p/{named(2)}", good, f"/ip4/1.2.3.4/tcp/1/p2p/{named(3)} "])
    assert AddressBook(tmp_path).addresses() == (good,)
    (tmp_path / "acquaintances.txt").write_text(f"{place}/p2p/{named(2)}\n{good}\n")  # of an earlier version
    assert AddressBook(tmp_path).addresses() == (good,)


def test_a_relayed_address_and_those_of_ip_6_are_remembered(tmp_path: Path) -> None:
    good = [
        f"/ip4/1.2.3.4/tcp/1/p2p/{named(1)}/p2p-circuit/p2p/{named(2)}",
        f"/ip6/2001:db8::1/tcp/65535/p2p/{named(3)}",
        f"/dns4/a-b.example.org/udp/4001/quic-v1/p2p/{named(4)}",
    ]
    AddressBook(tmp_path).remember(good)
    assert set(AddressBook(tmp_path).addresses()) == set(good)


def named(number: int) -> str:
    """The name of a key."""
    return base58.b58encode(b"\x00\x24\x08\x01\x12\x20" + number.to_bytes(32, "big")).decode()


def test_a_newcomer_is_told_at_once_that_nobody_is_there(tmp_path: Path, operator_key: Ed25519PrivateKey) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        nobody = f"/ip4/127.0.0.1/tcp/{probe.getsockname()[1]}/p2p/{SOMEBODY}"
    with pytest.raises(UnreachableError, match="no bootstrap node answers"):
        open_swarm(_address(operator_key, nobody), tmp_path, LOOPBACK).__enter__()


@pytest.mark.parametrize(("bootstraps", "expected"), [([SOMEBODY], UnreachableError), ([], NodeError)])
def test_a_daemon_that_is_gone_when_it_is_spoken_to_is_said(
    tmp_path: Path, bootstraps: list[str], expected: type[Exception]
) -> None:
    nobody = Multiaddr(f"/unix{tmp_path}/daemon.sock")
    with pytest.raises(expected, match="the network daemon"):
        asyncio.run(starting._speak_to(nobody, bootstraps))


def test_a_node_on_any_free_port_is_found_there_again() -> None:
    places = ("/ip4/127.0.0.1/tcp/4321/p2p/QmX", "/ip4/127.0.0.1/tcp/99/p2p/QmX")
    anywhere = NodeSettings("/ip4/127.0.0.1/tcp/0", bandwidth=7.0)
    assert anywhere.settled(places) == NodeSettings("/ip4/127.0.0.1/tcp/4321", bandwidth=7.0)
    assert anywhere.settled(()) == anywhere
    for chosen in (NodeSettings("/ip4/0.0.0.0/tcp/4001"), NodeSettings("/ip4/0.0.0.0/tcp/0", announce=("/dns4/x",))):
        assert chosen.settled(places) == chosen
