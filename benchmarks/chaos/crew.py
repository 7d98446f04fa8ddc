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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Literal

import psutil

from benchmarks.chaos.lab import NAMESPACES, Host

CLONE_NEWNET = 0x40000000
LEAVE_SECONDS = 20.0
DAEMON_SECONDS = 40.0
"""The daemon of a killed peer ends by itself after 15 idle seconds; this leaves room for a busy machine."""

MAKE = multiprocessing.get_context("forkserver")


def prepare() -> None:
    """Load what all programs need into the server, once. One thread of arithmetic each; call it before any start."""
    os.environ.update(OMP_NUM_THREADS="1", TOKENIZERS_PARALLELISM="false", PYTHONUNBUFFERED="1", HF_HUB_OFFLINE="1")
    MAKE.set_forkserver_preload(["dipaco_swarm.peer", "dipaco_swarm.bootstrap", "dipaco_swarm.swarm.libp2p"])


def _play(namespace: Path, program: Literal["peer", "bootstrap"], arguments: Sequence[str], log: Path) -> None:
    """One life of a program, in a process of its own."""
    os.setpgrp()  # Ctrl+C is for the harness alone
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(out, 1)
    os.dup2(out, 2)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    descriptor = os.open(namespace, os.O_RDONLY)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(descriptor, CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), f"cannot enter {namespace}")
    os.close(descriptor)
    if program == "peer":
        from dipaco_swarm.cli.peer import app
    else:
        from dipaco_swarm.cli.bootstrap import app
    app(args=list(arguments), prog_name=f"dipaco-{program}")


@dataclass(eq=False)
class Member:
    """A program with a home, in a host. `start` begins a life of it; there may be many."""

    name: str
    host: Host
    folder: Path
    program: Literal["peer", "bootstrap"]
    arguments: Sequence[str]
    lives: int = 0
    ended_badly: list[str] = field(default_factory=list)
    _process: ForkServerProcess | None = None

    @property
    def home(self) -> Path:
        return self.folder / self.name

    @property
    def log(self) -> Path:
        return self.folder / f"{self.name}.log"

    def said(self) -> str:
        """Everything that it has printed, in all its lives."""
        try:
            return self.log.read_text(errors="replace")
        except FileNotFoundError:
            return ""

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.is_alive()

    @property
    def process(self) -> psutil.Process:
        assert self._process is not None, f"{self.name} was never started"
        return psutil.Process(self._process.pid)

    def start(self) -> None:
        assert not self.running, f"{self.name} is running"
        arguments = [*self.arguments, "--home", str(self.home), "--screen", "plain"]
        self._process = MAKE.Process(
            target=_play, args=(NAMESPACES / self.host.namespace, self.program, arguments, self.log), name=self.name
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
        """Ask it to leave; returns the seconds that took."""
        started = time.monotonic()
        self._end(signal.SIGINT, [self.process])
        return time.monotonic() - started

    def freeze(self) -> None:
        for process in self._all():
            process.suspend()

    def thaw(self) -> None:
        for process in self._all():
            process.resume()

    def _all(self) -> list[psutil.Process]:
        return [self.process, *self.process.children(recursive=True)]

    def _end(self, how: signal.Signals, processes: Sequence[psutil.Process]) -> None:
        assert self._process is not None
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

    def add(self, name: str, host: Host, program: Literal["peer", "bootstrap"], arguments: Sequence[str]) -> Member:
        member = self.members[name] = Member(name, host, self.folder, program, arguments)
        return member

    def running(self) -> list[Member]:
        return [member for member in self.members.values() if member.running]


def orphans(hosts: Sequence[Host], seconds: float = DAEMON_SECONDS) -> list[str]:
    """What still runs in these hosts although nobody has started it, after daemons have had time to notice."""
    deadline = time.monotonic() + seconds
    while (left := list(_in(hosts))) and time.monotonic() < deadline:
        time.sleep(0.5)
    return [f"{process.pid} {process.name()}" for process in left]


def _in(hosts: Sequence[Host]) -> Iterator[psutil.Process]:
    spaces = {os.stat(NAMESPACES / host.namespace).st_ino for host in hosts}
    for process in psutil.process_iter():
        with contextlib.suppress(OSError, psutil.NoSuchProcess):
            if os.stat(f"/proc/{process.pid}/ns/net").st_ino in spaces:
                yield process
