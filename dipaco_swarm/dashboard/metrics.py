"""All events of a program, as JSON lines in its home folder: for charts, ledgers, reports, and whoever likes to look.

Each line is an event (`events/lines.py` has the format; `events/` says what each has). Nothing here is needed to go on
with a run, and a line that a power cut has torn is left out.
"""

import contextlib
import errno
import logging
import math
import os
import time
from collections.abc import Callable
from functools import lru_cache
from io import FileIO
from pathlib import Path

from dipaco_swarm.errors import cannot_write
from dipaco_swarm.events.event import Event
from dipaco_swarm.events.lines import BadLineError, Entry, from_line, to_line
from dipaco_swarm.events.training import Steps

log = logging.getLogger(__name__)

STEPS_PER_LINE = 10
MOST_BYTES = 32 << 20
"""Of one file. A full one is kept as `metrics.1.jsonl` until the next is full, so that months do not fill the disk."""


def metrics_file(home: Path) -> Path:
    """Where a program with this home writes its events."""
    return home / "metrics.jsonl"


class Journal:
    """Appends events to one file. Never raises: a full disk costs a chart, not a round.

    A line is in the hands of the kernel when `note` returns: a program that is killed then leaves it there.
    """

    def __init__(self, file: Path, wall: Callable[[], float] = time.time) -> None:
        """`wall`: seconds since the epoch."""
        self._file = file
        self._wall = wall
        self._silent = False

    def note(self, event: Event) -> None:
        line = to_line(Entry(self._wall(), event))
        try:
            self._append(line)
        except OSError as error:
            if not self._silent:
                log.warning("%s; training goes on", cannot_write(self._file.name, self._file.parent, error))
            self._silent = True
        else:
            self._silent = False

    def _append(self, line: bytes) -> None:
        self._file.parent.mkdir(parents=True, exist_ok=True)
        if self._file.exists() and self._file.stat().st_size + len(line) > MOST_BYTES:
            self._file.replace(_before(self._file))
        with open(self._file, "a+b", buffering=0) as file:
            size = file.tell()
            if not _ends_with_a_line(file):  # half of one, of a power cut, would spoil this one too
                line = b"\n" + line
            if file.write(line) < len(line):
                file.truncate(size)  # half a line would spoil the next one too
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class StepMeter:
    """Makes an event of every ten inner steps."""

    def __init__(self) -> None:
        self._losses: list[float] = []
        self._seconds = 0.0
        self._fresh_tokens = 0
        self._tokens = 0
        self._where = (-1, -1)

    def step(self, stage: int, path: int, step: int, loss: float, tokens: int, seconds: float) -> Steps | None:
        """Count an inner step; the event of the last ten with every tenth."""
        if (stage, path) != self._where:
            self._where = (stage, path)
            self._losses, self._seconds, self._fresh_tokens = [], 0.0, 0
        self._losses.append(loss)
        self._seconds += seconds
        self._fresh_tokens += tokens
        self._tokens += tokens
        if len(self._losses) < STEPS_PER_LINE:
            return None
        mean = math.fsum(self._losses) / len(self._losses)
        speed = self._fresh_tokens / self._seconds if self._seconds else 0.0
        self._losses, self._seconds, self._fresh_tokens = [], 0.0, 0
        return Steps(stage, path, step, mean, self._tokens, speed)


def read_metrics(file: Path) -> list[Entry]:
    """All events that are kept, the oldest first; a line that is being written is left for next time."""
    return Following(file).entries()


class Following:
    """The events of one file, for who looks again and again: only what is new is read."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._entries: list[Entry] = []
        self._newest: int | None = None
        """Of the file that was read last, its number on the disk: a full one makes room for another."""
        self._read = 0
        """Of that file, bytes of whole lines."""

    def entries(self) -> list[Entry]:
        """As `read_metrics` has them."""
        with contextlib.ExitStack() as opened:
            files = []
            # the newer file first: one that is full in this moment is seen twice, and not missed
            for part in (self._file, _before(self._file)):
                with contextlib.suppress(FileNotFoundError):
                    files.append(opened.enter_context(part.open("rb")))
            if not files:
                return []
            if len(files) > 1 and os.path.sameopenfile(files[0].fileno(), files[1].fileno()):
                files.pop()
            newest, *older = files
            now = os.fstat(newest.fileno())
            if now.st_ino != self._newest or now.st_size < self._read:
                self._newest, self._read = now.st_ino, 0
                self._entries = [entry for part in older for entry in _whole_lines(part.read(), self._file)]
            newest.seek(self._read)
            data = newest.read()
        self._entries += _whole_lines(data, self._file)
        self._read += data.rfind(b"\n") + 1
        return self._entries.copy()

    def events(self) -> list[Event]:
        return [entry.event for entry in self.entries()]


def _before(file: Path) -> Path:
    """Where the full file before this one is."""
    return file.with_suffix(f".1{file.suffix}")


def _whole_lines(data: bytes, file: Path) -> list[Entry]:
    """The lines of `data` that can be read, without one at the end that is being written."""
    found, torn = [], []
    for line in data.split(b"\n")[:-1]:
        try:
            found.append(from_line(line))
        except BadLineError as error:
            torn.append(error)
    if torn:
        _say_torn(file, len(torn), str(torn[0]))
    return found


def _ends_with_a_line(file: FileIO) -> bool:
    """Whether nothing, or a whole line, comes before the end."""
    if not file.seek(0, os.SEEK_END):
        return True
    file.seek(-1, os.SEEK_END)
    return file.read(1) == b"\n"


@lru_cache(maxsize=64)  # once for each file
def _say_torn(file: Path, lines: int, why: str) -> None:
    log.warning("%s: %d of its lines cannot be read and are left out; the first: %s", file.name, lines, why)
