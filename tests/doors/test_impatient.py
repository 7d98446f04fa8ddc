"""Who connects to a page and asks nothing keeps nobody out, and the program from nothing."""

import socket
import urllib.request
from collections.abc import Iterator

import pytest

from dipaco_swarm.page import impatient
from dipaco_swarm.page.opening import open_page
from dipaco_swarm.run.address import RunAddress
from dipaco_swarm.settings import Web

ADDRESS = "dipaco:x:" + "a" * 32 + "@/ip4/127.0.0.1/tcp/1/p2p/12D3KooWQYhTNQdmr3ArTeUHRYzFg94BKyTkoWBDWez9kSCVe2Xo"
HALF = b"GET / HTTP/1.1\r\nX: "


class Quiet:
    """A screen."""

    def show(self, view: object) -> None:
        """Nobody looks."""

    def event(self, event: object) -> None:
        """Nobody listens."""


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    monkeypatch.setattr(impatient, "REQUEST_SECONDS", 0.5)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        found: int = probe.getsockname()[1]
    with open_page(RunAddress.parse(ADDRESS), Quiet(), None, Web("127.0.0.1", found)):
        yield found


def asked(port: int) -> int:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=10) as answer:
        return int(answer.status)


def connected(port: int, data: bytes) -> socket.socket:
    opened = socket.create_connection(("127.0.0.1", port), timeout=10)
    opened.sendall(data)
    return opened


def is_let_go(port: int) -> bool:
    try:
        with connected(port, HALF) as client:
            return client.recv(1) == b""
    except ConnectionError:
        return True


def test_half_a_request_is_let_go(port: int) -> None:
    held = [connected(port, data) for data in (b"", HALF, HALF)]
    assert asked(port) == 200
    assert [client.recv(1) for client in held] == [b""] * 3
    for client in held:
        client.close()


def test_half_of_a_second_request_as_well(port: int) -> None:
    with connected(port, b"GET /nothing HTTP/1.1\r\nHost: x\r\n\r\n") as client:
        assert client.recv(1 << 16).startswith(b"HTTP/1.1 404")
        client.sendall(HALF)
        while client.recv(1 << 16):
            pass  # the rest of the first answer


def test_only_so_many_are_connected_at_once(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(impatient, "MOST_OPEN", 5)
    monkeypatch.setattr(impatient, "REQUEST_SECONDS", 30.0)
    held = [connected(port, HALF) for _ in range(5)]
    assert is_let_go(port)
    for client in held:
        client.close()
    assert asked(port) == 200
