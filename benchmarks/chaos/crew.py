"""The programs of a run as processes in hosts of the lab: started, killed, frozen and started again by their handles.

A process is forked from a server that has torch and hivemind loaded, enters its host's network namespace, and runs the
command as a person would: `dipaco-peer`, `dipaco-bootstrap`. So the hundreds of starts of a scenario cost little, and
what is killed is the program itself.
"""

import contextlib
import ctypes
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Literal, TypeVar

import psutil

from benchmarks.chaos.lab import NAMESPACES, Host, Link
from dipaco_swarm.dashboard.metrics import Following, metrics_file
from dipaco_swarm.events.event import Event

E = TypeVar("E", bound=Event)

CLONE_NEWNET = 0x40000000
CPU_GROUPS = Path("/sys/fs/cgroup/cpu")
"""Where control groups of the CPU are (version 1)."""
LEAVE_SECONDS = 20.0
DAEMON_SECONDS = 40.0
"""The daemon of a killed peer ends by itself after 15 idle seconds; this leaves room for a busy machine."""

MAKE = multiprocessing.get_context("forkserver")
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "PYTHONUNBUFFERED": "1",
    "HF_HUB_OFFLINE": "1",
}
"""Of all programs."""
LIBRARIES = ["benchmarks.chaos.loaded"]
"""What all programs need, and what takes seconds to load and to look up."""


def prepare() -> None:
    """Load what all programs need into the server, once. One thread of arithmetic each; call it before any start.

    Whoever ends this program from outside interrupts it, so that what it has started ends with it.
    """
    for ended in (signal.SIGINT, signal.SIGTERM):  # in the background of a script the first is ignored else
        signal.signal(ended, signal.default_int_handler)
    os.environ.update(ENVIRONMENT)
    MAKE.set_forkserver_preload(LIBRARIES)


@dataclass(frozen=True)
class Here:
    """This machine as a host, where there is no laboratory: no lines to cut, but programs to kill."""

    name: str
    address: str = "127.0.0.1"
    namespace: None = None

    @classmethod
    def host(cls, name: str, link: Link = Link()) -> "Here":  # noqa: B008  # frozen
        assert link == Link(), f"{name} wants a line; on this machine alone there is none"
        return cls(name)


Place = Host | Here


def _play(
    namespace: str | None,
    program: Literal["peer", "bootstrap"],
    arguments: Sequence[str],
    log: Path,
    prelude: Callable[[], None] | None,
) -> None:
    """One life of a program, in a process of its own."""
    os.setpgrp()  # Ctrl+C is for the harness alone
    speak_to(log, log)
    if namespace is not None:
        enter(NAMESPACES / namespace)
    if prelude is not None:
        prelude()
    command(program, arguments)


def speak_to(out: Path, errors: Path) -> None:
    """From here on what this process prints is added to these files."""
    for stream, file in ((1, out), (2, errors)):
        os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644), stream)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]


def command(program: str, arguments: Sequence[str]) -> None:
    """Be `dipaco-PROGRAM ARGUMENTS`, to its end: peer, bootstrap or swarm."""
    import_module(f"dipaco_swarm.cli.{program}").app(args=list(arguments), prog_name=f"dipaco-{program}")


def enter(namespace: Path) -> None:
    """Put this process into a network namespace. Raises OSError."""
    descriptor = os.open(namespace, os.O_RDONLY)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(descriptor, CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), f"cannot enter {namespace}")
    os.close(descriptor)


@dataclass(eq=False)
class Member:
    """A program with a home, in a host. `start` begins a life of it; there may be many."""

    name: str
    host: Place
    folder: Path
    program: Literal["peer", "bootstrap"]
    arguments: Sequence[str]
    prelude: Callable[[], None] | None = None
    """What its process does before it is the program."""
    lives: int = 0
    ended_badly: list[str] = field(default_factory=list)
    _process: ForkServerProcess | None = None
    _ended_by_us: bool = True
    _throttle: Path | None = None
    _had_said: int = 0
    """Characters that its earlier lives have printed."""
    _had_reported: int = 0
    """Events that they have reported."""

    @property
    def home(self) -> Path:
        return self.folder / self.name

    @property
    def line(self) -> Host:
        """Its host in the laboratory, whose line can be cut."""
        assert isinstance(self.host, Host), f"{self.name} is on this machine, without a line"
        return self.host

    @property
    def log(self) -> Path:
        return self.folder / f"{self.name}.log"

    def said(self) -> str:
        """Everything that it has printed, in all its lives."""
        try:
            return self.log.read_text(errors="replace")
        except FileNotFoundError:
            return ""

    def said_in_this_life(self) -> str:
        return self.said()[self._had_said :]

    def reported(self, kind: type[E]) -> list[E]:
        """What it has reported of this kind in this life."""
        return [event for event in self.told.events()[self._had_reported :] if isinstance(event, kind)]

    @cached_property
    def told(self) -> Following:
        """What it has reported in all its lives."""
        return Following(metrics_file(self.home))

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.is_alive()

    @property
    def left_by_itself(self) -> bool:
        return self._process is not None and not self.running and not self._ended_by_us

    @property
    def process(self) -> psutil.Process:
        assert self._process is not None, f"{self.name} was never started"
        return psutil.Process(self._process.pid)

    def start(self) -> None:
        assert not self.running, f"{self.name} is running"
        if self.left_by_itself:
            self.ended_badly.append(f"ended by itself with {self.wait(0)} in the middle of it")
        self._ended_by_us = False
        arguments = [*self.arguments, "--home", str(self.home), "--screen", "plain"]
        self._had_said, self._had_reported = len(self.said()), len(self.told.events())
        self._process = MAKE.Process(
            target=_play,
            args=(self.host.namespace, self.program, arguments, self.log, self.prelude),
            name=self.name,
        )
        self._process.start()
        self.lives += 1

    def kill(self) -> None:
        """SIGKILL the program alone, as when memory runs out; its daemon notices later."""
        self._end(signal.SIGKILL, [self.process])

    def power_cut(self) -> None:
        """Program and daemon at once: nobody says goodbye, no connection is closed... until the kernel does."""
        self._end(signal.SIGKILL, self._all())

    def ctrl_c(self) -> float:
        """Ask it to leave, once it is to be seen; returns the seconds that took.

        A process that was forked a moment ago ignores SIGINT, as the fork server does.
        """
        deadline = time.monotonic() + LEAVE_SECONDS
        while not self.said_in_this_life() and self.running and time.monotonic() < deadline:
            time.sleep(0.05)
        started = time.monotonic()
        self._end(signal.SIGINT, [self.process])
        self.check_exit()
        return time.monotonic() - started

    def freeze(self) -> None:
        for process in self._all():
            process.suspend()

    def thaw(self) -> None:
        for process in self._all():
            process.resume()

    def throttle(self, share: float) -> None:
        """Give this life this share of one core; needs root and control groups."""
        group = CPU_GROUPS / f"chaos-{os.getpid()}-{self.name}"
        group.mkdir(exist_ok=True)
        (group / "cpu.cfs_period_us").write_text("100000")
        (group / "cpu.cfs_quota_us").write_text(str(int(100_000 * share)))
        (group / "cgroup.procs").write_text(str(self.process.pid))
        self._throttle = group

    def daemons(self) -> int:
        """Processes of it that run beside the program."""
        return len(self._all()) - 1

    def _all(self) -> list[psutil.Process]:
        return [self.process, *self.process.children(recursive=True)]

    def _end(self, how: signal.Signals, processes: Sequence[psutil.Process]) -> None:
        assert self._process is not None
        self._ended_by_us = True
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(how)
        self._process.join(LEAVE_SECONDS)
        if self._process.is_alive():
            self.ended_badly.append(f"still there {LEAVE_SECONDS:.0f} s after {how.name}")
            self._process.kill()
            self._process.join()

    def wait(self, seconds: float) -> int | None:
        """Its exit status once it has ended by itself; None when it has not by then."""
        assert self._process is not None
        self._process.join(seconds)
        return self._process.exitcode

    def check_exit(self) -> None:
        """Who was asked to leave, or left with the run, must say that all is well."""
        if (status := self.wait(0)) not in (0, None):
            self.ended_badly.append(f"left with exit status {status}")

    def resident(self) -> int:
        """Bytes of memory of the program alone (its daemon is Go, and collects when it likes)."""
        return int(self.process.memory_info().rss)

    def descriptors(self) -> int:
        return int(self.process.num_fds())


class Crew:
    """All programs of a scenario. At the end of the block every one of them is gone."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.members: dict[str, Member] = {}

    def __enter__(self) -> "Crew":
        return self

    def __exit__(self, *_: object) -> None:
        for member in self.members.values():
            if member.running:
                member.thaw()
                member.power_cut()
            if member._throttle is not None:
                member._throttle.rmdir()

    def add(self, name: str, host: Place, program: Literal["peer", "bootstrap"], arguments: Sequence[str]) -> Member:
        member = self.members[name] = Member(name, host, self.folder, program, arguments)
        return member

    def running(self) -> list[Member]:
        return [member for member in self.members.values() if member.running]

    def orphans(self, seconds: float = DAEMON_SECONDS) -> list[str]:
        """Daemons of ours that still run although their programs are gone, after they have had time to notice."""
        deadline = time.monotonic() + seconds
        while (left := list(self._daemons())) and time.monotonic() < deadline:
            time.sleep(0.5)
        return [f"{process.pid} {process.name()}" for process in left]

    def _daemons(self) -> Iterator[psutil.Process]:
        """Known by the identity file that they were started with."""
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if any(word.startswith(f"-id={self.folder}/") for word in process.cmdline()):
                    yield process
