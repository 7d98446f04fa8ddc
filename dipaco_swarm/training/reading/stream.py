"""What training sees of a shard that is read beside it: batches, as far as they have come."""

import json
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from time import monotonic
from typing import IO, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from dipaco_swarm.errors import DataError
from dipaco_swarm.events.event import Event
from dipaco_swarm.events.reading import AwaitingDocuments, CorpusEnded, FirstSequences, ReaderRestarted
from dipaco_swarm.events.volunteer import ReadingDocuments
from dipaco_swarm.files import replace_whole
from dipaco_swarm.machine.stopping import Stopped
from dipaco_swarm.training.inner import Batches
from dipaco_swarm.training.pieces import EvaluationSet
from dipaco_swarm.training.reading.reader import Job
from dipaco_swarm.training.reading.store import BlockStore

log = logging.getLogger(__name__)

LOOK_SECONDS = 0.2
"""Whoever waits for a block looks up so often."""
TOLD_SECONDS = 60.0
"""Between two lines about how far reading has come."""
PATIENCE_SECONDS = 10.0
"""Training waits for so long before it says so."""
LOG = "reader.log"
"""In the folder of a stream: what its last reader has said to nobody."""
RESTARTS = 3
"""A reader that ends so often without a new block is not started again."""


class Beside(Protocol):
    """A reader that works beside training."""

    def come_to(self, block: int) -> None:
        """Training has come to this block."""
        ...

    def rest(self, *, resting: bool) -> None:
        """Do nothing from now on, or go on; where it is. Returns at once."""
        ...

    def close(self) -> None: ...


Hear = Callable[[dict[str, object]], None]
"""What a reader says; `{"over": status}` is the last."""
Start = Callable[[Hear], Beside]


class ReaderProcess:
    """`Beside` as a process, which ends with this one."""

    def __init__(self, job: Job, hear: Hear) -> None:
        file = Path(job.folder) / "job.json"
        replace_whole(file, json.dumps(asdict(job)).encode(), durable=False)
        root = str(Path(__file__).parents[3])  # a checkout that is not installed
        searched = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
        with open(Path(job.folder) / LOG, "wb") as log_file:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "dipaco_swarm.training.reading.reader", str(file)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log_file,  # what libraries say would tear a screen
                env={**os.environ, "PYTHONPATH": searched},
                text=True,
                process_group=0,  # Ctrl+C is for this process; it ends the other
            )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._to = self._process.stdin
        self._writing = threading.Lock()
        self._listening = threading.Thread(target=self._listen, args=(self._process.stdout, hear), daemon=True)
        self._listening.start()

    def tell(self, line: Mapping[str, object]) -> None:
        """What the reader should know."""
        self._write(json.dumps(line))

    @property
    def pid(self) -> int:
        return self._process.pid

    def come_to(self, block: int) -> None:
        self._write(str(block))

    def rest(self, *, resting: bool) -> None:
        if sys.platform != "win32":  # what others send it meanwhile waits in pipes; `close` kills it asleep or awake
            self._process.send_signal(signal.SIGSTOP if resting else signal.SIGCONT)

    def _write(self, line: str) -> None:
        try:
            with self._writing:
                self._to.write(f"{line}\n")
                self._to.flush()
        except (BrokenPipeError, ValueError):
            log.debug("the reader has ended")  # it is heard at its other end

    def close(self) -> None:
        self._process.kill()  # what it has written is whole up to its last note
        self._process.wait()
        self._listening.join()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            try:
                pipe.close()
            except BrokenPipeError:
                log.debug("the reader has ended")

    def _listen(self, lines: IO[str], hear: Hear) -> None:
        for line in lines:
            hear(json.loads(line))
        hear({"over": self._process.wait()})


class Stream:
    """The sequences of a path that are read beside training; `close` ends the reader."""

    def __init__(self, store: BlockStore, start: Start, tell: Callable[[Event], None]) -> None:
        """`start`: starts a reader of this store. `tell`: is called by whoever asks for batches."""
        self.store = store
        self._start = start
        self._report = tell
        self._changed = threading.Condition()
        self._heard: dict[str, int] = {}
        """How far reading has come, as the reader last said."""
        self._work: dict[str, int] = {}
        self._events: list[Event] = []
        """That came from other threads, to be told by ours."""
        self._over: object = None
        self._error: str | None = None
        self._ended_in_vain = 0
        self._block = 0
        self._told_at = monotonic()
        self._told_end = store.end is not None
        self._is_new = not self._has_begun
        self._reader = start(self._hear)

    def close(self) -> None:
        self._reader.close()

    def rest(self, *, resting: bool) -> None:
        """Read nothing from now on, or go on; to be called by whoever asks for batches."""
        self._reader.rest(resting=resting)

    def await_first(self, stop: Callable[[], bool]) -> None:
        """Until training can begin. Raises Stopped, and DataError when the documents cannot be used."""
        while not self._has_begun or (self._is_new and "read" not in self._heard):
            if stop():
                raise Stopped
            self._look()
        if self._is_new:
            self._report(FirstSequences(self.store.size(0), self._heard["read"]))

    @property
    def progress(self) -> Mapping[str, int]:
        """How far reading has come since this program was started: numbers of a `Place`; empty at first."""
        return self._heard

    @property
    def work(self) -> Mapping[str, int]:
        """What the reader has done since then, whatever for: numbers of a `Work`; empty at first."""
        return self._work

    @property
    def _has_begun(self) -> bool:
        return self.store.place(1) is not None or self.store.end is not None

    def batches(self, batch_sequences: int, seed: int, start: int = 0) -> Batches:
        """Training batches without end, int64 (batch_sequences, T), after the first `start` of the path.

        None: the next batch is not there yet; asked again, it may be. Raises DataError when reading cannot go on.
        """
        position = (start - self.store.begun(start)) * batch_sequences
        rows: list[NDArray[np.int64]] = []
        for row in self._rows(seed, position):
            if row is None:
                yield None
                continue
            rows.append(row)
            if len(rows) == batch_sequences:
                yield torch.from_numpy(np.stack(rows))
                rows = []

    @property
    def holds_out(self) -> bool:
        """Nobody knows before the reader has looked for it."""
        return True

    def slice(self, at_most: int) -> EvaluationSet | None:
        """What is held out; None when nothing is, or it was not looked for yet."""
        held = self.store.held
        if held is None or len(held) == 0:
            return None
        return EvaluationSet(held[:at_most, 1:], held[:at_most, 0], ("",) * len(held[:at_most]))

    def _rows(self, seed: int, position: int) -> Iterator[NDArray[np.int64] | None]:
        store, waits_since = self.store, None
        while True:
            window = store.window_at(position)
            self._come_to(next((block for block in window.blocks if not store.has(block)), window.blocks[-1]))
            rows = store.shuffled(window, seed)
            if rows is None:
                waits_since = self._waiting(waits_since)
                self._look()
                yield None
                continue
            waits_since = None
            self._say_how_far()
            for row in rows:
                yield row
                position += 1

    def _come_to(self, block: int) -> None:
        if block != self._block:
            self._block = block
            self._reader.come_to(block)

    def _waiting(self, since: float | None) -> float:
        """Since when training waits; inf once that was said."""
        since = monotonic() if since is None else since
        if monotonic() - since > PATIENCE_SECONDS:
            self._report(AwaitingDocuments(self._heard.get("read", 0)))
            return float("inf")
        return since

    def _look(self) -> None:
        """Wait for the reader to say something. Raises DataError when it cannot go on; starts one that was killed."""
        with self._changed:
            if self._over is None:
                self._changed.wait(LOOK_SECONDS)
            over, error = self._over, self._error
        self._say_how_far()
        if over is None:
            return
        if error is not None:
            raise DataError(error)
        self._ended_in_vain += 1
        if self._ended_in_vain > RESTARTS:
            raise DataError(
                f"the process that reads the run's documents ended {self._ended_in_vain} times without getting on, "
                f"lastly with status {over}; is there enough memory? What it said is in {self.store.folder / LOG}"
            )
        self._report(ReaderRestarted(str(over)))
        self._reader.close()
        self._over = None
        self._reader = self._start(self._hear)
        self._reader.come_to(self._block)

    def _say_how_far(self) -> None:
        with self._changed:
            events, self._events = self._events, []
        for event in events:
            self._report(event)
        if not self._told_end and (end := self.store.end) is not None:
            self._told_end = True
            self._report(CorpusEnded(end.place.read, end.sequences))
        if monotonic() - self._told_at > TOLD_SECONDS and not self._told_end:
            self._told_at = monotonic()
            self._report(ReadingDocuments(self._heard.get("read", 0), self._heard.get("sequences", 0)))

    def _hear(self, said: dict[str, object]) -> None:
        """In the thread that listens to the reader."""
        with self._changed:
            match said:
                case {"place": dict(place)}:
                    self._heard = place
                    match said:
                        case {"work": dict(work)}:
                            self._work = work
                case {"event": Event() as event}:
                    self._events.append(event)
                case {"made": _}:
                    self._ended_in_vain = 0
                case {"error": str(error)}:
                    self._error = error
                case {"over": status}:
                    self._over = status
            self._changed.notify_all()
