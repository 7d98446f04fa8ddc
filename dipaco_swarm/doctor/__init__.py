"""Can this machine take part? Looks without joining anything; says what it saw and what to do if that is not enough.

Nothing heavy is imported in this process except torch, which is asked for the GPU, and with a run address hivemind,
whose daemon then listens as a peer's would while the bootstrap nodes say what they see of it.
"""

import importlib.metadata
import importlib.util
import os
import platform
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from dipaco_swarm.doctor.of_run import (
    LookAtRun,
    admission_check,
    as_a_guest,
    congestion_control,
    joining_check,
    path_check,
    round_check,
)
from dipaco_swarm.doctor.report import Check, Report
from dipaco_swarm.errors import NodeError, UnreachableError
from dipaco_swarm.run.address import RunAddress
from dipaco_swarm.settings import default_home
from dipaco_swarm.swarm.timing import Timing

GIB = 2**30
DISK_GIB = 5  # checkpoints of a 150M path with optimizer state take 2-3, the token cache the rest
MEMORY_GIB = 4  # torch, transformers and hivemind take about 1 together; a small path and its copies the rest
KNOCK_SECONDS = 5.0
HELP_SECONDS = 20.0
ANYWHERE = "/ip4/0.0.0.0/tcp/0"
CLOCK_NOTE_SECONDS = 5.0


def examine(address: RunAddress | None, listen: str | None = None, look: LookAtRun | None = None) -> Report:
    """Look at everything; with an address, also ask the run's bootstrap nodes how this machine looks from there.

    `listen`: the multiaddr that the peer would be given; None: any free port. `look`: with it, this machine trains a
    path of the run for ten seconds.
    """
    checks = list(_checks(address, listen or ANYWHERE))
    if address is not None and look is not None and all(check.verdict != "bad" for check in checks):
        checks += as_a_guest(address, look, _device())
    return Report(tuple(checks))


def _device() -> str:
    """What `--device auto` would take."""
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def _checks(address: RunAddress | None, listen: str) -> Iterator[Check]:
    yield _system()
    yield _python()
    yield from (_package(name) for name in ("torch", "transformers", "hivemind"))
    yield _daemon()
    yield _gpu()
    yield _memory()
    yield _disk(default_home(address.name, "peer") if address else default_home("run", "peer"))
    if address is None:
        yield _clock(None)
    else:
        knocks = {place: _knock(place) for place in address.bootstraps}
        found = any(check.verdict == "ok" for check in knocks.values())
        # the node's own loopback address is for its own machine only
        yield from (
            check for place, check in knocks.items() if check.verdict == "ok" or not (found and "/127.0.0.1/" in place)
        )
        if not found:
            yield _clock(None)
            yield Check(
                "way in",
                "bad",
                "no bootstrap node could be reached",
                "if others reach them, a firewall here stops outgoing connections; else ask the operator",
            )
        else:
            yield from _from_outside(address, listen)


def _system() -> Check:
    seen = f"{platform.system()} {platform.release()}, {platform.machine()}, {os.cpu_count()} CPU cores"
    if sys.platform == "win32":
        return Check(
            "system", "bad", seen, "hivemind has no Windows build: install WSL 2 and run dipaco-peer inside it"
        )
    return Check("system", "ok", seen)


def _python() -> Check:
    version = platform.python_version()
    if not (3, 11) <= sys.version_info[:2] < (3, 14):
        return Check("python", "bad", version, "use Python 3.11, 3.12 or 3.13; others are not tested")
    return Check("python", "ok", version)


def _package(name: str) -> Check:
    try:
        return Check(name, "ok", importlib.metadata.version(name))
    except importlib.metadata.PackageNotFoundError:
        return Check(name, "bad", "not installed", "reinstall dipaco-swarm into a fresh virtual environment")


def _daemon() -> Check:
    spec = importlib.util.find_spec("hivemind")
    if spec is None or not spec.submodule_search_locations:
        return Check("p2p daemon", "bad", "hivemind is not installed", "reinstall dipaco-swarm")
    binary = Path(spec.submodule_search_locations[0]) / "hivemind_cli" / "p2pd"
    if not binary.exists():
        return Check("p2p daemon", "bad", "hivemind was installed without p2pd", "reinstall hivemind from a wheel")
    try:
        ended = subprocess.run([binary, "--help"], capture_output=True, timeout=HELP_SECONDS, check=False)
    except OSError as error:
        advice = (
            "the binary is for another processor, or the folder is mounted noexec; build hivemind from source there"
        )
        return Check("p2p daemon", "bad", f"does not start: {error.strerror}", advice)
    except subprocess.TimeoutExpired:
        return Check("p2p daemon", "bad", f"no answer in {HELP_SECONDS:.0f} s", "the machine is overloaded; try again")
    if b"-listen" not in ended.stdout + ended.stderr and b"hostAddrs" not in ended.stdout + ended.stderr:
        return Check("p2p daemon", "bad", f"ended with code {ended.returncode}", "reinstall hivemind")
    return Check("p2p daemon", "ok", "starts")


def _gpu() -> Check:
    try:
        import torch
    except ImportError as error:
        return Check("gpu", "bad", f"torch does not load: {error}", "reinstall torch for this system")
    if not torch.cuda.is_available():
        return Check("gpu", "note", "none that torch can use", "fine for small runs; large paths want a CUDA device")
    free, total = torch.cuda.mem_get_info()
    return Check("gpu", "ok", f"{torch.cuda.get_device_name()}, {free / GIB:.1f} of {total / GIB:.1f} GiB free")


def _memory() -> Check:
    available = _available_memory()
    if available is None:
        return Check("memory", "note", "cannot be told on this system", f"{MEMORY_GIB} GiB free are a good start")
    seen = f"{available / GIB:.1f} GiB available"
    if available < MEMORY_GIB * GIB:
        return Check(
            "memory", "note", seen, f"small paths fit; for others close programs until {MEMORY_GIB} GiB are free"
        )
    return Check("memory", "ok", seen)


def _available_memory() -> int | None:
    """Bytes that can be had without swapping (Linux; elsewhere all physical memory), or the container's limit."""
    try:
        text = Path("/proc/meminfo").read_text(encoding="ascii")
        found = re.search(r"^MemAvailable:\s+(\d+) kB", text, re.MULTILINE)
        available = int(found[1]) * 1024 if found else None
    except OSError:
        try:
            available = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        except (ValueError, OSError):
            available = None
    try:
        limit = int(Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii"))
        used = int(Path("/sys/fs/cgroup/memory.current").read_text(encoding="ascii"))
    except (OSError, ValueError):  # no such file, or "max"
        return available
    return min(available, limit - used) if available is not None else limit - used


def _disk(home: Path) -> Check:
    there = _there(home)
    free = shutil.disk_usage(there).free
    seen = f"{free / GIB:.1f} GiB free under {there}"
    if not os.access(there, os.W_OK):
        return Check("disk", "bad", f"{there} cannot be written", "choose another folder with --home")
    if free < DISK_GIB * GIB:
        return Check(
            "disk", "note", seen, f"small runs fit; for others free {DISK_GIB} GiB or choose a disk with --home"
        )
    return Check("disk", "ok", seen)


def _there(home: Path) -> Path:
    """The folder, or what is there of the way to it."""
    return next(folder for folder in (home, *home.parents) if folder.exists())


def _clock(ahead: float | None) -> Check:
    """`ahead`: seconds by which our clock is ahead of the bootstrap node's, if it said what time it has."""
    seen = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
    advice = "announcements expire by the clock: compare it with another one, and switch time synchronisation on"
    if ahead is not None:
        seen = f"{seen}, {abs(ahead):.1f} s {'ahead of' if ahead > 0 else 'behind'} the bootstrap node's"
        if abs(ahead) <= CLOCK_NOTE_SECONDS:
            return Check("clock", "ok", seen)
        advice = (
            "announcements live for half a minute: set the clock (timedatectl set-ntp true; in WSL: hwclock -s), or "
            "tell the operator if it is the node's that is wrong"
        )
        return Check("clock", "bad" if abs(ahead) > Timing().clock_tolerance else "note", seen, advice)
    try:
        asked = subprocess.run(
            ["timedatectl", "show", "--property=NTPSynchronized", "--value"],
            capture_output=True, text=True, timeout=5.0, check=False,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return Check("clock", "note", f"{seen}; nobody here can say whether it is right", advice)
    match asked.stdout.strip():
        case "yes":
            return Check("clock", "ok", f"{seen}, synchronised")
        case "no":
            return Check("clock", "note", f"{seen}, not synchronised", advice)
        case _:
            return Check("clock", "note", f"{seen}; nobody here can say whether it is right", advice)


def _knock(place: str) -> Check:
    """Whether a TCP connection to a bootstrap node can be opened."""
    found = re.match(r"/(?:ip4|ip6|dns|dns4|dns6)/([^/]+)/tcp/(\d+)/", place)
    if found is None:
        return Check("bootstrap node", "note", f"{place} is not plain TCP; not tried")
    host, port = found[1], int(found[2])
    started = time.monotonic()
    try:
        socket.create_connection((host, port), timeout=KNOCK_SECONDS).close()
    except (OSError, OverflowError) as error:
        reason = f"no answer in {KNOCK_SECONDS:.0f} s" if isinstance(error, TimeoutError) else str(error)
        return Check("bootstrap node", "note", f"{host} port {port}: {reason}", "one that answers is enough")
    return Check("bootstrap node", "ok", f"{host} port {port} answers in {(time.monotonic() - started) * 1000:.0f} ms")


def _from_outside(address: RunAddress, listen: str) -> Iterator[Check]:
    """What the bootstrap nodes say: clock, version, and whether others can dial this machine."""
    from dipaco_swarm.swarm.libp2p.outside import look_from_outside

    try:
        outside = look_from_outside(address, listen)
    except NodeError as error:
        yield _clock(None)
        yield Check("port", "bad", str(error), "try another --listen, the one that you will give dipaco-peer")
        return
    except UnreachableError as error:
        yield _clock(None)
        yield Check("way in", "bad", str(error), "check the run address with the operator")
        return
    yield Check("port", "ok", "any free one" if listen == ANYWHERE else f"{listen} is free")
    if outside is None:
        yield _clock(None)
        yield Check(
            "dialling in",
            "note",
            "the bootstrap node does not say whether others can dial this machine",
            "it is of an older version, or very busy: ask again later",
        )
        return
    yield _clock(outside.clock_ahead)
    yield _version(outside.our_version, outside.version)
    if outside.path is not None:
        if outside.path.invited_only:
            yield admission_check(address)
        home = default_home(address.name, "peer")
        yield path_check(outside.path, _available_memory(), shutil.disk_usage(_there(home)).free, _free_on_gpu())
        yield round_check(outside.path, outside.bytes_up, congestion_control())
        yield joining_check(outside.path, outside.bytes_down)
    yield _dialling_in(outside.seen_at, outside.port, tried=outside.tried, relayed=outside.relayed, listen=listen)


def _version(ours: str, theirs: str) -> Check:
    if ours == theirs:
        return Check("version", "ok", f"{ours}, as the bootstrap node")
    advice = "peers of different versions may not understand each other: install the run's, or ask the operator"
    return Check("version", "note", f"{ours} here, {theirs} at the bootstrap node", advice)


def _free_on_gpu() -> int | None:
    """Bytes; None: there is no GPU."""
    import torch

    return torch.cuda.mem_get_info()[0] if torch.cuda.is_available() else None


def _dialling_in(seen_at: str, port: int | None, *, tried: bool, relayed: bool, listen: str) -> Check:
    if port is not None:
        return Check("dialling in", "ok", f"others can dial this machine, at {seen_at} port {port}")
    if not tried:
        return Check("dialling in", "note", "the bootstrap node had no time to try", "ask again in a minute")
    if listen == ANYWHERE:
        advice = (
            "to be dialled, have your router forward a TCP port, say 4002, to this machine, and give doctor, then "
            "dipaco-peer, --listen /ip4/0.0.0.0/tcp/4002"
        )
    else:
        advice = f"does the router forward this port to this machine ({listen}), and does its firewall let it in?"
    if relayed:
        seen = f"not possible from outside ({seen_at}); others come through the bootstrap node, which relays"
        return Check("dialling in", "note", seen, f"works as it is, only slower; {advice}")
    seen = f"not possible from outside ({seen_at}), and the bootstrap node does not relay"
    return Check("dialling in", "note", seen, f"works with volunteers who can be dialled; {advice}")
