"""The processes of the demo: started with their own log, ended by their handle, never by name."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

POLITE_SECONDS = 4.0
"""A program saves and says goodbye in less; the rest of five seconds is for those that do not listen."""
LAST_LINES = 12


class ProcessFailedError(Exception):
    """A process of the demo ended before its work was done."""


@dataclass(frozen=True)
class Process:
    """A running program of ours."""

    name: str
    log: Path
    handle: subprocess.Popen[bytes]

    @property
    def code(self) -> int | None:
        """Its exit status; None while it runs."""
        return self.handle.poll()


class Troupe:
    """All processes of the demo. At the end of the block every one of them is gone."""

    def __init__(self, logs: Path) -> None:
        self._logs = logs
        self._processes: list[Process] = []

    def __enter__(self) -> "Troupe":
        return self

    def __exit__(self, *_: object) -> None:
        running = [process for process in self._processes if process.code is None]
        for process in running:
            process.handle.send_signal(signal.SIGINT)
        deadline = time.monotonic() + POLITE_SECONDS
        for process in running:
            with suppress(subprocess.TimeoutExpired):
                process.handle.wait(max(0.0, deadline - time.monotonic()))
        for process in running:
            if process.handle.poll() is None:
                _end_group(process.handle)
                process.handle.wait()

    def start(self, name: str, module: str, arguments: Sequence[str]) -> Process:
        """Run `main` of one of our modules as a process of its own, with one thread of arithmetic."""
        self._logs.mkdir(parents=True, exist_ok=True)
        log = self._logs / f"{name}.log"
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "TOKENIZERS_PARALLELISM": "false",
            "PYTHONUNBUFFERED": "1",
            "HF_HUB_OFFLINE": "1",
        }
        code = f"from {module} import main; main()"
        with open(log, "wb") as file:
            handle = subprocess.Popen(
                [sys.executable, "-c", code, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env=environment,
                process_group=0,  # Ctrl+C is for the demo alone, which ends the others in order
            )
        process = Process(name, log, handle)
        self._processes.append(process)
        return process

    def check(self) -> None:
        """Raises ProcessFailedError, with the end of its log, for a process that ended badly."""
        for process in self._processes:
            if process.code:
                _end_group(process.handle)  # what it started and can no longer end itself
                said = "\n".join(f"    {line}" for line in tail(process.log, LAST_LINES))
                raise ProcessFailedError(
                    f"{process.name} ended with status {process.code}; its log, {process.log}, ends with\n{said}"
                )


def tail(log: Path, lines: int) -> list[str]:
    """The last lines of a log that are not empty."""
    with open(log, "rb") as file:
        _from_the_end(file, 8192)
        text = file.read().decode("utf-8", "replace")
    return [line for line in text.splitlines() if line.strip()][-lines:]


def _from_the_end(file: BinaryIO, size: int) -> None:
    file.seek(max(0, file.seek(0, os.SEEK_END) - size))


def _end_group(handle: "subprocess.Popen[bytes]") -> None:
    with suppress(ProcessLookupError):
        os.killpg(handle.pid, signal.SIGKILL)
