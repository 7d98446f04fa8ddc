"""A reader that works beside training, and what it shares with others."""

import threading
from collections.abc import Callable, Mapping
from pathlib import Path

from dipaco_swarm.algorithm.paths import PathIndex
from dipaco_swarm.training.reading.reader import Job
from dipaco_swarm.training.reading.shared.exchange import Exchange, Others, Subject
from dipaco_swarm.training.reading.shared.shelf import Shelf
from dipaco_swarm.training.reading.store import BlockStore
from dipaco_swarm.training.reading.stream import Hear, ReaderProcess

INBOX = "inbox"
"""In the folder of a stream."""


class SharingReader:
    """`Beside`: a process, and an `Exchange` from when the process says what is shared."""

    def __init__(self, job: Job, about: Callable[[Mapping[str, object]], Subject], others: Others, hear: Hear) -> None:
        """`about`: what is shared, by what the process says of it."""
        self._job = job
        self._about = about
        self._others = others
        self._hear = hear
        self._exchange: Exchange | None = None
        self._started = threading.Event()
        self._process = ReaderProcess(job, self._listen)
        self._started.set()

    def come_to(self, block: int) -> None:
        self._process.come_to(block)

    def rest(self, *, resting: bool) -> None:
        self._process.rest(resting=resting)

    def close(self) -> None:
        self._process.close()
        if self._exchange is not None:
            self._exchange.close()

    def _tell_reader(self, line: Mapping[str, object]) -> None:
        self._started.wait()
        self._process.tell(line)

    def _listen(self, said: dict[str, object]) -> None:
        """In the thread that listens to the process."""
        match said:
            case {"shared": dict(shared)}:
                subject, shelf = self._about(shared), Path(str(shared["shelf"]))
                self._exchange = Exchange(
                    self._others,
                    subject,
                    Shelf(shelf, subject.paths, subject.vocabulary),
                    Path(self._job.folder) / INBOX,
                    self._tell_reader,
                    lambda event: self._hear({"event": event}),
                )
                return
            case {"over": _} if self._exchange is not None:
                self._exchange.close()
        if self._exchange is not None:
            self._exchange.hear(said)
        self._hear(said)


def subject_of(
    stage: int, path: PathIndex, paths: int, start: int, store: BlockStore, said: Mapping[str, object]
) -> Subject:
    """`said`: by the reader."""
    portions = int(str(said["portions"]))
    tokens = bool(said["tokens"])
    return Subject(stage, str(said["corpus"]), portions, start % portions, path, paths, store.vocabulary, tokens)
