"""A network laboratory on one machine: hosts with home lines, routers with NAT, partitions. Linux, as root.

    with Lab() as lab:
        server = lab.host("server")
        home = lab.host("home", Link(up_mbit=20, down_mbit=100, round_trip_ms=30, nat=True))
        subprocess.Popen(home.command(["python", "client.py", server.address]))
        lab.part([server], [home])

Every host is a network namespace behind a router, which is another; all routers meet in a third kind, the internet:

    host eth0 --- lan router wan --- line3 internet

The line is what joins a router with the internet. Its rates are token buckets at its two ends, each with a short queue
like a modem's; loss is counted where packets arrive from it; delay is put on in the internet by wan.py. Nothing of it
touches the network of the machine, and from inside there is no way out: addresses are public ones (11.x.0.2), since
programs treat private addresses in special ways, and lead nowhere else.
"""

import contextlib
import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count, permutations
from pathlib import Path
from types import TracebackType
from typing import Final, Literal, Self

MAX_HOSTS: Final = 24
QUEUE_SECONDS: Final = 0.08
"""What waits at most before a slow line: a modem's buffer."""
QUEUE_BYTES: Final = 15_000
"""But ten packets always, however slow the line."""
BURST_SECONDS: Final = 0.004
"""A line may be used in bursts this long: a busy machine serves its queues late."""
PACKET_BYTES: Final = 1514
COMMAND_SECONDS: Final = 60
FORWARDER: Final = Path(__file__).with_name("wan.py")
NAMESPACES: Final = Path("/run/netns")
OURS: Final = re.compile(r"chaos-(\d+)-(\d+)-\d+-.+")
"""Namespaces of a laboratory: the process that owns it, when that started, which of its laboratories, whose."""

_labs = count()


class LabError(RuntimeError):
    """The network laboratory cannot do what it was asked for; the message says why."""


@dataclass(frozen=True)
class Link:
    """A host's line to the internet, seen from the host."""

    up_mbit: float | None = None
    """None: as fast as the machine."""
    down_mbit: float | None = None
    round_trip_ms: float = 0.0
    """What the line adds to a round trip: half on the way out, half on the way in."""
    loss_percent: float = 0.0
    """Of packets, each way."""
    nat: bool = False
    """Behind a home router that masquerades and lets nothing in."""
    congestion_control: Literal["cubic", "bbr"] = "cubic"
    """Of TCP, for what the host sends: as most people have it; bbr, of some servers, hardly minds losses."""

    def __post_init__(self) -> None:
        rates = [rate for rate in (self.up_mbit, self.down_mbit) if rate is not None]
        if not (
            all(0.01 <= rate <= 100_000 for rate in rates)
            and 0 <= self.round_trip_ms <= 10_000
            and 0 <= self.loss_percent <= 100
        ):
            raise ValueError(f"{self}: a line has 0.01 to 100000 Mbit/s (or None), 0 to 10000 ms and 0 to 100 % loss")


@dataclass(frozen=True)
class Counters:
    """What went over a line since the host came, seen from the host; bytes with their Ethernet headers."""

    bytes_out: int
    packets_out: int
    bytes_in: int
    packets_in: int
    lost: int
    """Packets, both ways, that the line's loss took."""
    overflowed: int
    """Packets, both ways, that found a queue full: before a slow line, or on their way along a long one."""
    unplugged: int
    """Packets, both ways, that met a line that was cut."""
    delayed: int
    """Packets, both ways, that were held back for the line's delay."""


class Host:
    """A machine on the laboratory's internet. Made by `Lab.host`."""

    def __init__(self, lab: "Lab", number: int, name: str, link: Link) -> None:
        self.name = name
        self.number = number
        self.link = link
        self.address = f"11.{number}.0.2" if link.nat else f"11.{number}.1.2"
        """IPv4, as others see it."""
        self.inside = "192.168.1.2" if link.nat else self.address
        """IPv4, as the host itself sees it: behind NAT the same in every home."""
        self.line = f"line{number}"
        """The internet's interface to this host."""
        self.namespace = lab._namespace(name)
        self.router = lab._namespace(f"{name}-router")
        self.queues = (2 * number, 2 * number + 1)
        """Where packets from it and to it wait out the line's delay."""
        self._lab = lab
        self._delayed = False
        self._overflowed_before = 0

    def __repr__(self) -> str:
        return f"Host({self.name!r}, {self.address})"

    def command(self, arguments: Sequence[str]) -> list[str]:
        """How to run a program on this host. The process started is the program itself, so signals reach it."""
        return [_program("ip"), "netns", "exec", self.namespace, *arguments]

    def cut(self) -> None:
        """Unplugs the line: from now on nothing comes or goes, and nobody is told."""
        self._lab._cut(self, True)

    def join(self) -> None:
        """Plugs the line in again."""
        self._lab._cut(self, False)

    def change(self, link: Link) -> None:
        """Another rate, delay or loss from now on.

        Raises:
            ValueError: NAT is to come or go, which takes another router.
        """
        if link.nat != self.link.nat:
            raise ValueError(f"{self.name}: a host cannot be moved behind NAT or out of it; make another host")
        self._lab._set_line(self, link)

    def counters(self) -> Counters:
        """What the line has carried and what it has dropped."""
        return self._lab._counters(self)


class Lab:
    """A network of hosts, there from `with` to its end. Making one starts nothing."""

    def __init__(self) -> None:
        self._prefix = f"chaos-{os.getpid()}-{_started(os.getpid())}-{next(_labs)}-"
        self._internet = self._namespace("internet")
        self._hosts: dict[str, Host] = {}
        self._unplugged: set[Host] = set()
        self._islands: tuple[frozenset[Host], ...] = ()
        self._forwarder: subprocess.Popen[bytes] | None = None
        self._open = False

    @staticmethod
    def missing() -> str | None:
        """Why there can be no laboratory here, as one line for a person; None: all is there."""
        if sys.platform != "linux":
            return "network namespaces are a thing of Linux"
        if os.geteuid() != 0:
            return "network namespaces need root: run as root, or in a machine or container where you are"
        if lacking := [name for name in ("ip", "tc", "iptables-restore") if _found(name) is None]:
            return f"{', '.join(lacking)} not found: install iproute2 and iptables"
        lab = Lab()
        try:
            lab._enter()
            first = lab.host("probe", Link(1, 1, loss_percent=1, round_trip_ms=1, nat=True))
            _run(first.command(["true"]))
        except LabError as error:
            return f"this kernel or container does not allow what is needed: {error}"
        finally:
            lab.close()
        return None

    def __enter__(self) -> Self:
        try:
            self._enter()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def host(self, name: str, link: Link = Link()) -> Host:
        """A new host, connected.

        Raises:
            ValueError: its name is taken or no name for an interface, or there are too many hosts.
            LabError: the machine does not do it.
        """
        if not self._open:
            raise LabError("the laboratory is not open: hosts live inside `with Lab() as lab:`")
        if not re.fullmatch(r"[a-z0-9][a-z0-9-]{0,31}", name) or name == "internet" or name.endswith("-router"):
            raise ValueError(f"a host cannot be called {name!r}: use small letters, digits and dashes, at most 32")
        if name in self._hosts:
            raise ValueError(f"there is a host {name!r} already")
        if len(self._hosts) == MAX_HOSTS:
            raise ValueError(f"a laboratory has room for {MAX_HOSTS} hosts")
        host = Host(self, len(self._hosts) + 1, name, link)
        self._hosts[name] = host
        self._connect(host)
        self._set_line(host, link)
        return host

    def part(self, *islands: Collection[Host]) -> None:
        """Hosts of different islands cannot reach one another from now on; hosts of no island reach all.

        Replaces an earlier partition.
        """
        hosts = [host for island in islands for host in island]
        if twice := {host.name for host in hosts if hosts.count(host) > 1}:
            raise ValueError(f"{', '.join(sorted(twice))}: on two islands at once")
        self._islands = tuple(frozenset(island) for island in islands)
        self._set_faults()

    def mend(self) -> None:
        """Everybody reaches everybody again (unless cut, or behind NAT)."""
        self.part()

    def dropped(self) -> int:
        """Packets that met a partition so far: the proof that there was one."""
        return _dropped(self._internet, "filter")["parted"]

    def close(self) -> None:
        """Ends what still runs in the laboratory and removes it."""
        self._open = False
        _remove(name for name in _namespaces() if name.startswith(self._prefix))
        if self._forwarder is not None:
            self._forwarder.communicate()  # it ran in there
            self._forwarder = None

    # how it is built --------------------------------------------------------------------------------------------------

    def _namespace(self, name: str) -> str:
        return self._prefix + name

    def _enter(self) -> None:
        _remove(name for name in _namespaces() if not _owned(name))
        _run([_program("ip"), "netns", "add", self._internet])
        _configure(
            self._internet,
            forwards=True,
            rules=["*filter", ":parted -", ":faults -", "-A parted -j DROP", "-A FORWARD -j faults", "COMMIT"],
        )
        _ip(self._internet, ["link set lo up"])
        self._open = True

    def _connect(self, host: Host) -> None:
        number, line = host.number, host.line
        home = "192.168.1" if host.link.nat else f"11.{number}.1"
        _ip(
            None,
            [
                f"netns add {host.namespace}",
                f"netns add {host.router}",
            ],
        )
        _configure(host.namespace)
        _configure(
            host.router,
            forwards=True,
            rules=[
                *("*raw", ":line -", ":lost -", "-A lost -j DROP", "-A PREROUTING -i wan -j line", "COMMIT"),
                *(ROUTER_WITH_NAT if host.link.nat else ()),
            ],
        )
        _ip(
            None,
            [
                f"link add eth0 netns {host.namespace} type veth peer name lan netns {host.router}",
                f"link add wan netns {host.router} type veth peer name {line} netns {self._internet}",
            ],
        )
        _ip(
            host.namespace,
            [
                "link set lo up",
                f"address add {home}.2/30 dev eth0",
                "link set eth0 up",
                f"route add default via {home}.1 congctl {host.link.congestion_control}",
            ],
        )
        _ip(
            host.router,
            [
                "link set lo up",
                f"address add {home}.1/30 dev lan",
                "link set lan up",
                f"address add 11.{number}.0.2/30 dev wan",
                "link set wan up",
                f"route add default via 11.{number}.0.1",
            ],
        )
        home_route = [] if host.link.nat else [f"route add {home}.0/30 via 11.{number}.0.2"]
        _ip(
            self._internet,
            [
                f"address add 11.{number}.0.1/30 dev {line}",
                f"link set {line} up",
                *home_route,
            ],
        )
        _rules(
            self._internet,
            [
                *("*raw", f":{line} -", f":lost-{line} -", f"-A lost-{line} -j DROP"),
                *(f"-A PREROUTING -i {line} -j {line}", "COMMIT"),
                *("*filter", f":cut-{line} -", f"-A cut-{line} -j DROP", "COMMIT"),
            ],
        )

    def _set_line(self, host: Host, link: Link) -> None:
        """Rate, delay and loss of a line."""
        host.link = link
        if link.round_trip_ms or host._delayed:
            self._set_delay(host, link.round_trip_ms / 2000)
        self._set_rate(host, host.router, "wan", link.up_mbit)
        self._set_rate(host, self._internet, host.line, link.down_mbit)
        self._set_loss(host.router, "wan", "line", "lost", link.loss_percent / 100)
        self._set_loss(self._internet, host.line, host.line, f"lost-{host.line}", link.loss_percent / 100)

    def _set_rate(self, host: Host, namespace: str, interface: str, mbit: float | None) -> None:
        limited = _queue(namespace, interface)
        if mbit is not None:
            rate = mbit * 1e6 / 8
            burst = int(max(2 * PACKET_BYTES, rate * BURST_SECONDS))
            room = int(max(QUEUE_BYTES, rate * QUEUE_SECONDS)) + burst
            settings = f"tbf rate {round(mbit * 1000)}kbit burst {burst} limit {room}"
            _run([_program("tc"), "-n", namespace, *f"qdisc replace dev {interface} root {settings}".split()])
        elif limited is not None:
            host._overflowed_before += limited
            _run([_program("tc"), "-n", namespace, *f"qdisc del dev {interface} root".split()])

    def _set_loss(self, namespace: str, interface: str, chain: str, lost: str, share: float) -> None:
        """What comes in by an interface is lost; what goes out by it goes as single packets, to be lost singly."""
        random = [f"-A {chain} -m statistic --mode random --probability {share} -j {lost}"] if share else []
        _rules(namespace, ["*raw", f":{chain} -", *random, "COMMIT"])
        _ip(namespace, [f"link set {interface} gso_max_segs {1 if share else 65535}"])

    def _set_delay(self, host: Host, seconds: float) -> None:
        """One way. A line that had a delay once goes through the forwarder from then on."""
        if self._forwarder is None:
            self._forwarder = subprocess.Popen(
                [_program("ip"), "netns", "exec", self._internet, sys.executable, "-I", str(FORWARDER)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                bufsize=0,
                start_new_session=True,  # Ctrl+C ends the laboratory, and that ends it
            )
        assert self._forwarder.stdin is not None
        assert self._forwarder.stdout is not None
        for queue in host.queues:
            with contextlib.suppress(BrokenPipeError):
                self._forwarder.stdin.write(f"{queue} {seconds}\n".encode())
            if not select.select([self._forwarder.stdout], [], [], COMMAND_SECONDS)[0]:
                raise LabError(f"the delay forwarder has not answered after {COMMAND_SECONDS} s")
            if self._forwarder.stdout.read(64) != b"ok\n":
                self._forwarder.wait(COMMAND_SECONDS)
                self._check_forwarder()
        if not host._delayed:
            host._delayed = True
            _rules(
                self._internet,
                [
                    "*mangle",
                    f"-A FORWARD -i {host.line} -j NFQUEUE --queue-num {host.queues[0]}",
                    f"-A POSTROUTING -o {host.line} -j NFQUEUE --queue-num {host.queues[1]}",
                    "COMMIT",
                ],
            )

    def _check_forwarder(self) -> None:
        """A line with a delay is dead without the forwarder: that is no fault that anybody asked for."""
        if self._forwarder is not None and (status := self._forwarder.poll()) is not None:
            raise LabError(f"the delay forwarder has ended with status {status}; its last words are above")

    def _cut(self, host: Host, cut: bool) -> None:
        (self._unplugged.add if cut else self._unplugged.discard)(host)
        self._set_faults()

    def _set_faults(self) -> None:
        """Who is cut and who is apart, all at once."""
        rules = [
            f"-A faults {way} {host.line} -j cut-{host.line}"
            for host in sorted(self._unplugged, key=lambda host: host.number)
            for way in ("-i", "-o")
        ]
        rules += [
            f"-A faults -i {here.line} -o {there.line} -j parted"
            for island, other in permutations(self._islands, 2)
            for here in island
            for there in other
        ]
        _rules(self._internet, ["*filter", ":faults -", *rules, "COMMIT"])

    def _counters(self, host: Host) -> Counters:
        self._check_forwarder()
        ends = json.loads(_run([_program("ip"), "-n", host.router, "-j", "-s", "link", "show", "dev", "wan"]))
        came, went = (ends[0]["stats64"][way] for way in ("rx", "tx"))
        lost = _dropped(host.router, "raw")["lost"] + _dropped(self._internet, "raw")[f"lost-{host.line}"]
        full = [_queue(host.router, "wan") or 0, _queue(self._internet, host.line) or 0, host._overflowed_before]
        held = [_held(self._internet, queue) for queue in host.queues]
        return Counters(
            bytes_out=went["bytes"],
            packets_out=went["packets"],
            bytes_in=came["bytes"],
            packets_in=came["packets"],
            lost=lost,
            overflowed=sum(full) + sum(dropped for _, dropped in held),
            unplugged=_dropped(self._internet, "filter")[f"cut-{host.line}"],
            delayed=sum(packets for packets, _ in held),
        )


ROUTER_WITH_NAT: Final = (
    *("*nat", "-A POSTROUTING -o wan -j MASQUERADE", "COMMIT"),
    *("*filter", ":INPUT DROP", ":FORWARD DROP", "-A FORWARD -i lan -j ACCEPT"),
    *("-A FORWARD -i wan -m conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT", "COMMIT"),
)


# the machine's tools --------------------------------------------------------------------------------------------------


def _found(name: str) -> str | None:
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")


def _program(name: str) -> str:
    found = _found(name)
    if found is None:
        raise LabError(f"{name} not found: install iproute2 and iptables")
    return found


def _run(command: Sequence[str], text: str = "") -> str:
    """What a tool says; the text is its input.

    Raises:
        LabError: it failed, or took too long.
    """
    try:
        done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=COMMAND_SECONDS)
    except subprocess.TimeoutExpired:
        raise LabError(f"`{' '.join(command)}` has not ended after {COMMAND_SECONDS} s") from None
    if done.returncode:
        said = " ".join((done.stderr or done.stdout).split())
        raise LabError(f"`{' '.join(command)}` failed with {done.returncode}: {said}")
    return done.stdout


def _ip(namespace: str | None, lines: Sequence[str]) -> None:
    inside = [] if namespace is None else ["-n", namespace]
    _run([_program("ip"), *inside, "-batch", "-"], "\n".join(lines) + "\n")


def _inside(namespace: str, command: Sequence[str], text: str = "") -> str:
    return _run([_program("ip"), "netns", "exec", namespace, *command], text)


def _rules(namespace: str, lines: Sequence[str]) -> None:
    """iptables rules on top of those there are; a chain of ours that is named is emptied first. All or nothing."""
    _inside(namespace, [_program("iptables-restore"), "--noflush"], "\n".join(lines) + "\n")


def _configure(namespace: str, forwards: bool = False, rules: Sequence[str] = ()) -> None:
    """Before its interfaces come: no IPv6 on them, and whether it passes packets on."""
    settings = {"ipv6/conf/default/disable_ipv6": 1, "ipv4/ip_forward": int(forwards)}
    script = [f"[ ! -e /proc/sys/net/{key} ] || echo {value} > /proc/sys/net/{key}" for key, value in settings.items()]
    _inside(namespace, ["sh", "-ec", "\n".join(script)])
    if rules:
        _rules(namespace, rules)


def _dropped(namespace: str, table: str) -> dict[str, int]:
    """Packets counted by the rules of each chain of an iptables table."""
    saved = _inside(namespace, [_program("iptables-save"), "-c", "-t", table])
    found: dict[str, int] = {}
    for packets, chain in re.findall(r"^\[(\d+):\d+\] -A (\S+)", saved, re.MULTILINE):
        found[chain] = found.get(chain, 0) + int(packets)
    return found


def _queue(namespace: str, interface: str) -> int | None:
    """Packets that found the queue of an interface full; None: its rate is not limited."""
    shown = _run([_program("tc"), "-n", namespace, "-j", "-s", "qdisc", "show", "dev", interface])
    drops: list[int] = [queue["drops"] for queue in json.loads(shown) if queue["kind"] == "tbf"]
    return drops[0] if drops else None


def _held(namespace: str, queue: int) -> tuple[int, int]:
    """Packets that a delay queue has held so far, and those that it had no room for."""
    for line in _inside(namespace, ["cat", "/proc/net/netfilter/nfnetlink_queue"]).splitlines():
        number, _, _, _, _, full, unnoticed, packets, *_ = map(int, line.split())
        if number == queue:
            return packets, full + unnoticed
    return 0, 0


def _namespaces() -> list[str]:
    """Those of laboratories."""
    if not NAMESPACES.is_dir():
        return []
    return sorted(path.name for path in NAMESPACES.iterdir() if OURS.fullmatch(path.name))


def _started(process: int) -> int:
    """When a process started, in the kernel's ticks; tells it from a later one with its number. 0: there is none."""
    try:
        status = Path(f"/proc/{process}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return int(status.rpartition(")")[2].split()[19])


def _owned(namespace: str) -> bool:
    """Whether the process still lives that made this laboratory."""
    found = OURS.fullmatch(namespace)
    return found is None or _started(int(found[1])) == int(found[2])


def _inhabitants(namespaces: Collection[str]) -> Iterator[int]:
    """Processes in any of these namespaces."""
    places = set()
    for name in namespaces:
        with contextlib.suppress(FileNotFoundError):  # another laboratory tidied up at the same time
            place = (NAMESPACES / name).stat()
            places.add((place.st_dev, place.st_ino))
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError, PermissionError):  # gone, or not for us to see
            place = (process / "ns" / "net").stat()
            if (place.st_dev, place.st_ino) in places:
                yield int(process.name)


def _remove(namespaces: Iterable[str]) -> None:
    """Removes namespaces, and ends what runs in them."""
    names = list(namespaces)
    if not names:
        return
    while inhabitants := list(_inhabitants(names)):  # again: they may have been starting others
        for process in inhabitants:
            _end(process)
    for name in names:
        try:
            _run([_program("ip"), "netns", "del", name])
        except LabError:
            if (NAMESPACES / name).exists():
                raise


def _end(process: int) -> None:
    """Ends a process and waits until it is gone."""
    with contextlib.suppress(ProcessLookupError):
        handle = os.pidfd_open(process)
        try:
            signal.pidfd_send_signal(handle, signal.SIGKILL)
            end = select.poll()
            end.register(handle, select.POLLIN)
            if not end.poll(COMMAND_SECONDS * 1000):
                raise LabError(f"process {process} does not end when killed: the machine may be out of order")
        finally:
            os.close(handle)
