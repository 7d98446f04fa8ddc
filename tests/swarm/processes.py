"""Members as processes: started, told what to do, frozen and killed by handle, and never left behind."""

import contextlib
import os
import signal
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil

from benchmarks.chaos.crew import LIBRARIES, MAKE

from .member import run

MAKE.set_forkserver_preload(LIBRARIES)  # torch and hivemind are imported once, not once a member


class Process:
    """One `run` of `member.py`."""

    def __init__(self, home: Path, address: str, path: int, parameters: int) -> None:
        self.path = path
        self.peer = ""
        self._home = home
        self._connection, theirs = MAKE.Pipe()
        self._process = MAKE.Process(target=run, args=(theirs, home, address, path, parameters), daemon=True)
        self._process.start()
        theirs.close()
        self._children: list[psutil.Process] = []

    def expect(self, event: str, timeout: float = 60.0) -> dict[str, Any]:
        """The next thing it says, which must be this."""
        assert self._connection.poll(timeout), f"the member of path {self.path} is silent; see {self._home}.log"
        said: dict[str, Any] = self._connection.recv()
        assert said["event"] == event, said
        return said

    def says_nothing(self) -> bool:
        """Whether it died before it could say another word; whatever was on its way counts."""
        try:
            return not self._connection.poll(0.2) or self._connection.recv() is None
        except (EOFError, ConnectionResetError):
            return True

    def until_ready(self) -> None:
        self.peer = self.expect("ready")["peer"]
        assert self._process.pid is not None
        self._children = psutil.Process(self._process.pid).children(recursive=True)

    def tell(self, **command: object) -> None:
        self._connection.send(command)

    def kill(self) -> None:
        """As when its machine loses power: process and daemon at once, no goodbye."""
        self._process.kill()
        for child in self._children:
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
        self._process.join()

    def freeze(self) -> None:
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, what: signal.Signals) -> None:
        assert self._process.pid is not None
        os.kill(self._process.pid, what)

    def close(self) -> None:
        self.kill()
        self._connection.close()


class Group:
    """The members of one module group."""

    def __init__(self, folder: Path, address: str, parameters: int) -> None:
        self._folder = folder
        self._address = address
        self._parameters = parameters
        self._started: list[Process] = []

    def start(self, path: int) -> Process:
        home = self._folder / f"member-{len(self._started)}"
        process = Process(home, self._address, path, self._parameters)
        self._started.append(process)
        return process

    def begin_round(self, members: Sequence[Process], version: int, patience: float = 20.0) -> None:
        """All see one another, then all go at once; returns when each has said "begun"."""
        among = [member.peer for member in members]
        for member in members:
            member.tell(do="round", version=version, among=among, patience=patience)
        for member in members:
            member.expect("set")
        for member in members:
            member.tell(do="go")
        for member in members:
            member.expect("begun")

    @staticmethod
    def outcomes(members: Sequence[Process], timeout: float = 60.0) -> list[dict[str, Any]]:
        deadline = time.monotonic() + timeout
        return [member.expect("done", max(0.1, deadline - time.monotonic())) for member in members]

    def close(self) -> None:
        for process in self._started:
            process.close()


@contextlib.contextmanager
def group(folder: Path, address: str, parameters: int) -> Iterator[Group]:
    members = Group(folder, address, parameters)
    try:
        yield members
    finally:
        members.close()
