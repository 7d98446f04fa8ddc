"""The project's commands as processes, without loading their libraries each time.

torch, transformers and hivemind take seven seconds of a core to load, and the tests start a hundred programs. So a
server loads them once, and each program is forked from it: the same code, in a process of its own that is signalled and
killed by its own handle. The commands as they are installed are run by the tests of the demo, of the command line and
of the examples.
"""

import os
import signal
import subprocess
import tempfile
import threading
from collections.abc import Sequence
from multiprocessing import forkserver
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from unittest.mock import patch

from benchmarks.chaos.crew import LIBRARIES, MAKE, command, enter, speak_to

ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}

_one_at_a_time = threading.Lock()


class Program:
    """One running command. The handle has what the tests use of `subprocess.Popen`."""

    def __init__(self, process: ForkServerProcess) -> None:
        assert process.pid is not None
        self.pid = process.pid
        self._process = process

    def poll(self) -> int | None:
        """The exit code, below zero for a signal; None: it runs."""
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        """The exit code, once it has ended. Raises TimeoutError."""
        self._process.join(timeout)
        if (code := self._process.exitcode) is None:
            raise TimeoutError(f"process {self.pid} still runs after {timeout} s")
        return code

    def send_signal(self, what: signal.Signals) -> None:
        if self.poll() is None:
            os.kill(self.pid, what)

    def terminate(self) -> None:
        self._process.terminate()

    def kill(self) -> None:
        self._process.kill()


def start(
    program: str,
    arguments: Sequence[str | Path],
    out: Path,
    *,
    errors: Path | None = None,
    cwd: Path | None = None,
    prelude: str = "",
    namespace: Path | None = None,
) -> Program:
    """Run `dipaco-PROGRAM ARGUMENTS`. `program`: peer, bootstrap or swarm. What it prints goes to `out`.

    `errors`: where stderr goes, if not there as well. `prelude`: Python that runs first. `namespace`: a network
    namespace to be in.
    """
    out.write_bytes(b"")
    with _one_at_a_time, patch.dict(os.environ, ENVIRONMENT):
        MAKE.set_forkserver_preload(LIBRARIES)
        forkserver.ensure_running()
    typed = [str(argument) for argument in arguments]
    process = MAKE.Process(target=_play, args=(program, typed, out, errors or out, cwd, prelude, namespace))
    process.start()
    return Program(process)


def run(
    program: str, arguments: Sequence[str | Path], *, cwd: Path | None = None, timeout: float = 60
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end. Raises TimeoutError."""
    with tempfile.TemporaryDirectory() as folder:
        out, errors = Path(folder, "out"), Path(folder, "errors")
        running = start(program, arguments, out, errors=errors, cwd=cwd)
        try:
            code = running.wait(timeout)
        finally:
            running.kill()
        typed = [program, *map(str, arguments)]
        return subprocess.CompletedProcess(typed, code, out.read_text(), errors.read_text())


def _play(
    program: str,
    arguments: list[str],
    out: Path,
    errors: Path,
    cwd: Path | None,
    prelude: str,
    namespace: Path | None,
) -> None:
    """The life of the process."""
    speak_to(out, errors)
    if namespace is not None:
        enter(namespace)
    if cwd is not None:
        os.chdir(cwd)
    exec(prelude, {})
    command(program, arguments)
