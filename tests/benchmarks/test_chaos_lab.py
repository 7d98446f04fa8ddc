"""The network laboratory of the chaos harness: that lines, routers and faults do what they say."""

import os
import signal
import statistics
import subprocess
import sys
from collections.abc import Iterator

import pytest

from benchmarks.chaos.lab import MAX_HOSTS, NAMESPACES, Host, Lab, LabError, Link

pytestmark = pytest.mark.swarm
needs_namespaces = pytest.mark.usefixtures("namespaces_here")
PORT = 4000

# Answers each connection: "e" echoes bytes, "s" swallows them and says at the end how many, "g" gives them till the
# other side goes; and every datagram, with what it holds.
SERVER = f"""
import socket, threading
def answer(to):
    with to:
        kind = to.recv(1)
        if kind == b"e":
            while got := to.recv(65536): to.sendall(got)
        elif kind == b"s":
            swallowed = 0
            while got := to.recv(1 << 20): swallowed += len(got)
            to.sendall(str(swallowed).encode())
        else:
            try:
                while True: to.sendall(bytes(65536))
            except OSError: pass
def answer_datagrams():
    while True: datagrams.sendto(*datagrams.recvfrom(2048))
datagrams = socket.socket(type=socket.SOCK_DGRAM); datagrams.bind(("0.0.0.0", {PORT}))
threading.Thread(target=answer_datagrams, daemon=True).start()
door = socket.create_server(("0.0.0.0", {PORT}), backlog=64)
print("here", flush=True)
while True: threading.Thread(target=answer, args=[door.accept()[0]], daemon=True).start()
"""
CLIENT = """
import socket, sys, time
kind, address, port, amount = sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
if kind == "datagrams":
    to = socket.socket(type=socket.SOCK_DGRAM); to.connect((address, port))
    came = 0
    for number in range(int(amount)):
        to.send(bytes(100)); to.settimeout(0.0005 if number < amount - 1 else 0.5)
        try:
            while True: to.recv(2048); came += 1
        except TimeoutError: pass
    print(came); sys.exit()
try: to = socket.create_connection((address, port), timeout=amount if kind == "reach" else 5)
except OSError as error: sys.exit(f"{type(error).__name__}: {error}")
to.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
if kind == "reach":
    print(to.getpeername()[0])
elif kind == "echo":
    to.send(b"e")
    for _ in range(int(amount)):
        began = time.perf_counter(); to.sendall(b"?" * 64); to.recv(64); print(time.perf_counter() - began)
elif kind == "up":
    began = time.perf_counter(); to.send(b"s"); chunk = bytes(65536)
    while time.perf_counter() - began < amount: to.sendall(chunk)
    to.shutdown(socket.SHUT_WR); to.settimeout(30)
    print(int(to.recv(64)) / (time.perf_counter() - began) * 8 / 1e6)
else:
    to.send(b"g"); began = time.perf_counter(); got = 0
    while (now := time.perf_counter() - began) < amount: got += len(to.recv(1 << 20))
    print(got / now * 8 / 1e6)
"""


def program(host: Host, code: str, *arguments: object) -> list[str]:
    return host.command([sys.executable, "-I", "-S", "-c", code, *map(str, arguments)])


def ask(host: Host, kind: str, address: str, amount: float) -> list[float]:
    """What the client found: seconds of each echo, or Mbit/s, or datagrams that came back."""
    done = subprocess.run(
        program(host, CLIENT, kind, address, PORT, amount), capture_output=True, text=True, timeout=60, check=True
    )
    return [float(line) for line in done.stdout.split()]


def reaches(host: Host, address: str, seconds: float = 10) -> bool:
    done = subprocess.run(program(host, CLIENT, "reach", address, PORT, seconds), capture_output=True, timeout=60)
    return done.returncode == 0


def blocked(host: Host, address: str) -> bool:
    return not reaches(host, address, 0.4)


@pytest.fixture(scope="module")
def namespaces_here() -> None:
    if missing := Lab.missing():
        pytest.skip(missing)


@pytest.fixture
def lab(namespaces_here: None) -> Iterator[Lab]:
    with Lab() as lab:
        yield lab


def serve(host: Host) -> subprocess.Popen[str]:
    """Ends with the laboratory."""
    server = subprocess.Popen(program(host, SERVER), stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    assert server.stdout.readline() == "here\n"
    server.stdout.close()
    return server


def test_nat_lets_out_and_nothing_in(lab: Lab) -> None:
    street, home, other_home = lab.host("street"), lab.host("home", Link(nat=True)), lab.host("other", Link(nat=True))
    for host in (street, home, other_home):
        serve(host)
    assert reaches(home, street.address)
    assert blocked(street, home.address)
    assert blocked(street, home.inside)
    assert blocked(other_home, home.address)
    assert reaches(home, home.inside)
    assert home.inside == other_home.inside != home.address  # as in the world: everybody's is 192.168.something
    assert street.inside == street.address


def test_a_partition_separates_islands_until_mended(lab: Lab) -> None:
    east, west, ferry = (lab.host(name) for name in ("east", "west", "ferry"))
    for host in (east, west, ferry):
        serve(host)
    assert reaches(east, west.address)
    assert lab.dropped() == 0
    lab.part([east], {west})
    assert blocked(east, west.address)
    assert blocked(west, east.address)
    assert reaches(east, ferry.address)
    assert reaches(ferry, west.address)
    dropped = lab.dropped()
    assert dropped > 0
    lab.mend()
    assert reaches(east, west.address)
    assert lab.dropped() == dropped  # what was counted stays counted
    with pytest.raises(ValueError, match="east: on two islands"):
        lab.part([east], [east, west])


def test_a_cut_line_is_silent_until_joined(lab: Lab) -> None:
    here, there = lab.host("here"), lab.host("there", Link(nat=True))
    serve(here)
    there.cut()
    assert blocked(there, here.address)
    assert there.counters().unplugged > 0
    assert lab.dropped() == 0
    there.join()
    assert reaches(there, here.address)


def test_a_line_is_as_slow_and_as_far_as_it_says(lab: Lab) -> None:
    near, far = lab.host("near"), lab.host("far", Link(up_mbit=8, down_mbit=32, round_trip_ms=60))
    serve(near)
    round_trip = statistics.median(ask(far, "echo", near.address, 9)) * 1000
    assert 58 <= round_trip <= 90
    up, down = ask(far, "up", near.address, 1)[0], ask(far, "down", near.address, 1)[0]
    assert 4 < up <= 8.4
    assert 10 < down <= 33.6
    counters = far.counters()
    assert counters.delayed > 500
    assert counters.bytes_out > 0.8 * up * 1e6 / 8
    assert counters.bytes_in > 0.8 * down * 1e6 / 8
    far.change(Link(round_trip_ms=4))
    assert 3 <= statistics.median(ask(far, "echo", near.address, 9)) * 1000 <= 30
    assert ask(far, "down", near.address, 0.5)[0] > 40
    with pytest.raises(ValueError, match="NAT"):
        far.change(Link(nat=True))


def test_a_line_loses_its_share_of_packets(lab: Lab) -> None:
    near, far = lab.host("near"), lab.host("far", Link(loss_percent=20))
    serve(near)
    came = ask(far, "datagrams", near.address, 800)[0]
    assert 0.5 < came / 800 < 0.78  # 0.8 squared
    lost = far.counters().lost
    assert 0.8 * (800 - came) <= lost <= 1.2 * (800 - came) + 5
    far.change(Link())
    assert ask(far, "datagrams", near.address, 200)[0] >= 190  # some may come after the last look
    assert far.counters().lost == lost


def test_a_signal_reaches_the_program_itself(lab: Lab) -> None:
    server = serve(lab.host("only"))
    server.send_signal(signal.SIGKILL)
    assert server.wait(timeout=10) == -signal.SIGKILL


def test_a_dead_forwarder_is_not_taken_for_a_fault_of_the_line(lab: Lab) -> None:
    far = lab.host("far", Link(round_trip_ms=1))
    assert far.counters().delayed == 0
    forwarder = lab._forwarder
    assert forwarder is not None
    forwarder.kill()
    forwarder.wait()
    with pytest.raises(LabError, match="delay forwarder has ended with status -9"):
        far.counters()
    with pytest.raises(LabError, match="delay forwarder has ended"):
        far.change(Link(round_trip_ms=2))


def namespaces(prefix: str) -> list[str]:
    return [path.name for path in NAMESPACES.glob(f"{prefix}*")]


@needs_namespaces
def test_nothing_is_left_after_an_exception() -> None:
    left = []

    def interrupted() -> None:
        with Lab() as lab:
            left.append(serve(lab.host("only", Link(round_trip_ms=1))))
            assert len(namespaces(f"chaos-{os.getpid()}-")) == 3
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert namespaces(f"chaos-{os.getpid()}-") == []
    assert left[0].wait(timeout=10) == -signal.SIGKILL


@needs_namespaces
def test_a_laboratory_whose_owner_was_killed_is_removed_by_the_next() -> None:
    code = (
        "import sys; from benchmarks.chaos.lab import Lab, Link\n"
        "with Lab() as lab: lab.host('only', Link(round_trip_ms=1)); print('here', flush=True); sys.stdin.read()"
    )
    owner = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    assert owner.stdout.readline() == "here\n"
    with Lab():
        assert len(namespaces(f"chaos-{owner.pid}-")) == 3  # not while it lives
    owner.kill()
    owner.communicate()
    with Lab():
        assert namespaces(f"chaos-{owner.pid}-") == []


def test_two_laboratories_do_not_meet(lab: Lab) -> None:
    with Lab() as other:
        serve(lab.host("server"))
        stranger = other.host("server")
        assert blocked(stranger, stranger.address)
        assert blocked(other.host("client"), stranger.address)


def test_there_is_an_end_to_hosts_and_to_their_names(lab: Lab) -> None:
    lab.host("a")
    with pytest.raises(ValueError, match="already"):
        lab.host("a")
    with pytest.raises(ValueError, match="small letters"):
        lab.host("../a")
    for number in range(1, MAX_HOSTS):
        lab.host(f"h{number}")
    with pytest.raises(ValueError, match=f"{MAX_HOSTS} hosts"):
        lab.host("more")


def test_a_line_has_sensible_figures() -> None:
    with pytest.raises(ValueError, match="0 to 100 % loss"):
        Link(loss_percent=101)
    with pytest.raises(ValueError, match=r"0\.01 to 100000 Mbit/s"):
        Link(up_mbit=0)
