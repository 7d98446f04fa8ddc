"""Who connects to a page and asks nothing, or does not listen, keeps nobody out, and the program from nothing."""

import socket
import threading
import urllib.request
from collections.abc import Iterator

import pytest
import uvicorn
from starlette.types import Receive, Scope, Send

from dipaco_swarm.page import impatient
from dipaco_swarm.page.opening import open_page
from dipaco_swarm.page.serving import bound
from dipaco_swarm.page.sites import site_of
from dipaco_swarm.run.address import RunAddress
from dipaco_swarm.settings import Web
from tests.hub import until

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
    with connected(port, b"GET /nothing HTTP/1.1\r\nHost: localhost\r\n\r\n") as client:
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


def test_the_rest_of_a_request_that_has_its_answer_is_not_waited_for(port: int) -> None:
    with connected(port, b"GET /nothing HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n") as client:
        assert client.recv(1 << 16).startswith(b"HTTP/1.1 404")
        client.sendall(b"x")
        while client.recv(1 << 16):
            pass  # the rest of the answer


def test_who_sends_that_rest_in_time_is_answered_again(port: int) -> None:
    with connected(port, b"GET /nothing HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\n\r\n") as client:
        assert client.recv(1 << 16).startswith(b"HTTP/1.1 404")
        client.sendall(b"xGET /nothing HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        said = b""
        while more := client.recv(1 << 16):
            said += more
        assert b"HTTP/1.1 404" in said


def test_one_client_has_so_many_connections(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(impatient, "MOST_OF_ONE", 2)
    monkeypatch.setattr(impatient, "REQUEST_SECONDS", 30.0)
    held = [connected(port, HALF) for _ in range(3)]  # from this machine: a proxy may be there
    assert not any(is_let_go_now(client) for client in held)
    monkeypatch.setattr(impatient, "site_of", lambda host: "somewhere")
    held += [connected(port, HALF) for _ in range(2)]
    assert not any(is_let_go_now(client) for client in held)
    assert is_let_go(port)
    for client in held:
        client.close()
    until(lambda: not impatient.ImpatientProtocol._of_site)
    assert asked(port) == 200


def is_let_go_now(client: socket.socket) -> bool:
    client.settimeout(0.2)
    try:
        return client.recv(1) == b""
    except TimeoutError:
        return False


@pytest.mark.parametrize(
    ("host", "site"),
    [
        ("8.8.8.8", "8.8.8.8"),
        ("::ffff:8.8.8.8", "8.8.8.8"),
        ("2a01:4f8:1:2::3", "2a01:4f8:1::/48"),
        ("127.0.0.1", None),
        ("::1", None),
        ("172.17.0.1", None),
        ("fe80::1%eth0", None),
        ("what a proxy says", "what a proxy says"),
    ],
)
def test_where_a_client_is(host: str, site: str | None) -> None:
    assert site_of(host) == site


LONG = b"x" * (16 << 20)
"""More than two machines keep between them."""


async def long_answer(scope: Scope, receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(LONG))]})
    await send({"type": "http.response.body", "body": LONG})


@pytest.fixture
def long(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[int, uvicorn.Server]]:
    """The port of a server that answers at length."""
    monkeypatch.setattr(impatient, "TAKE_SECONDS", 0.5)
    door = bound(Web("127.0.0.1", 0))
    config = uvicorn.Config(long_answer, http=impatient.ImpatientProtocol, log_config=None, lifespan="off")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, args=([door],), daemon=True)
    thread.start()
    yield door.getsockname()[1], server
    server.should_exit = True
    thread.join(10)
    door.close()


def test_an_answer_that_nobody_takes_is_not_kept(long: tuple[int, uvicorn.Server]) -> None:
    port, server = long
    with connected(port, b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n") as client:
        assert client.recv(10) == b"HTTP/1.1 2"
        until(lambda: not server.server_state.connections)


def test_who_takes_it_slowly_gets_all_of_it(long: tuple[int, uvicorn.Server]) -> None:
    with connected(long[0], b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n") as client:
        got = 0
        while more := client.recv(1 << 20):
            got += len(more)
            threading.Event().wait(0.1)
    assert got > len(LONG)
