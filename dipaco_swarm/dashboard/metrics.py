"""What a training program did, as JSON lines in its home folder: for charts, reports, and whoever likes to look.

    {"kind": "steps", "time", "stage", "path", "step", "loss", "tokens", "tokens_per_second"}   every few inner steps
    {"kind": "round", "time", "stage", "path", "step", "round", "modules": {"L0M1": {...}}}

Of a module: "version", "digest", "peers" (contributors), "tokens" (behind our own outer gradient).
`loss` is the mean over the steps since the last line; `tokens` those of this peer since it started; `step` the path's
own count over all stages. Nothing here is needed to go on with a run, and a line that a power cut has torn is left out.
"""

import contextlib
import errno
import json
import logging
import math
import os
import time
from dataclasses import asdict
from functools import lru_cache
from io import FileIO
from pathlib import Path
from typing import Any

from dipaco_swarm.errors import cannot_write
from dipaco_swarm.events.training import Round

log = logging.getLogger(__name__)

STEPS_PER_LINE = 10
MOST_BYTES = 32 << 20
"""Of one file. A full one is kept as `metrics.1.jsonl` until the next is full, so that months do not fill the disk."""
TAIL_BYTES = 1 << 20

_FIELDS = {
    "steps": {"time", "stage", "path", "step", "loss", "tokens"},
    "round": {"time", "stage", "path", "step", "round", "modules"},
}
"""What a line of each kind has at least."""


class Metrics:
    """Appends to one file. Never raises: a full disk costs a chart, not a round."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._losses: list[float] = []
        self._seconds = 0.0
        self._fresh_tokens = 0
        self._tokens = 0
        self._where = (-1, -1)
        self._silent = False

    @property
    def file(self) -> Path:
        return self._file

    def step(self, stage: int, path: int, step: int, loss: float, tokens: int, seconds: float) -> None:
        """Note an inner step; every tenth becomes a line."""
        if (stage, path) != self._where:
            self._where = (stage, path)
            self._losses, self._seconds, self._fresh_tokens = [], 0.0, 0
        self._losses.append(loss)
        self._seconds += seconds
        self._fresh_tokens += tokens
        self._tokens += tokens
        if len(self._losses) < STEPS_PER_LINE:
            return
        self._append(
            "steps",
            stage=stage,
            path=path,
            step=step,
            loss=math.fsum(self._losses) / len(self._losses),
            tokens=self._tokens,
            tokens_per_second=self._fresh_tokens / self._seconds if self._seconds else 0.0,
        )
        self._losses, self._seconds, self._fresh_tokens = [], 0.0, 0

    def round(self, over: Round) -> None:
        """Note an outer round: version, digest, contributors and our tokens of each module that was committed."""
        self._append("round", **asdict(over))

    def _append(self, kind: str, **values: object) -> None:
        line = (json.dumps({"kind": kind, "time": time.time(), **values}) + "\n").encode()
        try:
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
        except OSError as error:
            if not self._silent:
                log.warning("%s; training goes on", cannot_write(self._file.name, self._file.parent, error))
            self._silent = True
        else:
            self._silent = False


def steps_after(file: Path, stage: int, path: int, step: int) -> int:
    """How many inner steps of a path were written down after this one, in its last life; about, for lines are of ten.

    They are counted, as the path's own count goes on by what others have trained, too. Looks at the last lines.
    """
    last = _end_of(file)
    if len(last) < TAIL_BYTES:
        last = _end_of(_before(file)) + last
    noted = [line for line in _whole_lines(last, file) if line["kind"] == "steps"]
    count, tokens = 0, math.inf
    for line in (line for line in reversed(noted) if (line["stage"], line["path"]) == (stage, path)):
        if line["step"] <= step or line["tokens"] >= tokens:  # tokens begin at none in every life
            break
        count, tokens = count + STEPS_PER_LINE, line["tokens"]
    return count


def read_metrics(file: Path) -> list[dict[str, Any]]:
    """All lines that are kept, the oldest first; a line that is being written is left for next time."""
    with contextlib.ExitStack() as opened:
        files = []
        # the newer file first: one that is full in this moment is seen twice, and not missed
        for part in (file, _before(file)):
            with contextlib.suppress(FileNotFoundError):
                files.append(opened.enter_context(part.open("rb")))
        if len(files) > 1 and os.path.sameopenfile(files[0].fileno(), files[1].fileno()):
            files.pop()
        return _whole_lines(b"".join(part.read() for part in reversed(files)), file)


def _before(file: Path) -> Path:
    """Where the full file before this one is."""
    return file.with_suffix(f".1{file.suffix}")


def _end_of(file: Path) -> bytes:
    """Whole lines."""
    try:
        with open(file, "rb") as lines:
            if lines.seek(max(0, lines.seek(0, os.SEEK_END) - TAIL_BYTES)):
                lines.readline()  # it may begin before what we look at
            return lines.read()
    except FileNotFoundError:
        return b""


def _whole_lines(data: bytes, file: Path) -> list[dict[str, Any]]:
    """The lines of `data` that can be read, without one at the end that is being written."""
    noted = [_read(line) for line in data.split(b"\n")[:-1]]
    if torn := noted.count(None):
        _say_torn(file, torn)
    return [line for line in noted if line is not None]


def _read(line: bytes) -> dict[str, Any] | None:
    try:
        noted = json.loads(line)
    except ValueError:
        return None
    whole = isinstance(noted, dict) and _FIELDS.get(str(noted.get("kind")), {"kind"}) <= noted.keys()
    return noted if whole else None


def _ends_with_a_line(file: FileIO) -> bool:
    """Whether nothing, or a whole line, comes before the end."""
    if not file.seek(0, os.SEEK_END):
        return True
    file.seek(-1, os.SEEK_END)
    return file.read(1) == b"\n"


@lru_cache(maxsize=64)  # once for each file
def _say_torn(file: Path, lines: int) -> None:
    log.warning("%s: %d of its lines cannot be read, after a power cut perhaps; left out", file.name, lines)
