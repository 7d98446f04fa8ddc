"""Texts that one path of this machine writes for several who ask at the same time."""

import logging
import math
import threading
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from queue import SimpleQueue

from transformers import PreTrainedModel

from dipaco_swarm.gateway.asked import SilentError
from dipaco_swarm.training.writing import Batch, Text, Written

log = logging.getLogger(__name__)

PAUSE_SECONDS = 0.04
"""Between what is given out of one text: sending costs as much as writing where a path is small, and nobody reads
faster."""


@dataclass(eq=False)
class _Listener:
    text: Text
    left: int
    """Tokens that it still wants."""
    said: SimpleQueue[list[Written] | SilentError | None] = field(default_factory=SimpleQueue)
    """What is written; at the end None, or why there is no more."""
    gone: bool = False
    _kept: list[Written] = field(default_factory=list)
    """Written, and not given out."""
    _given_at: float = -math.inf

    def take(self, word: Written) -> None:
        """A token; it is given out at once unless another was a moment ago."""
        self._kept.append(word)
        if time.monotonic() >= self._given_at + PAUSE_SECONDS:
            self.give_out()

    def give_out(self) -> None:
        """What is kept."""
        if self._kept:
            self.said.put(self._kept)
            self._kept, self._given_at = [], time.monotonic()

    def end(self, why: SilentError | None = None) -> None:
        self.give_out()
        self.said.put(why)


class Scribe:
    """Writes a token of each text in turn, in a thread that lives while there is something to write. From any thread.

    It does not wait until a token is sent: whoever sends finds several where a path is quick.
    """

    def __init__(self, network: PreTrainedModel) -> None:
        self._network = network
        self._batch = Batch(network)
        self._lock = threading.Lock()
        self._new: list[_Listener] = []
        self._thread: threading.Thread | None = None

    def write(self, text: Text, most: int) -> Iterator[tuple[Written, bool]]:
        """Its next tokens, at most `most`, each with whether what follows it is there already. Raises SilentError."""
        listener = _Listener(text, most)
        with self._lock:
            self._new.append(listener)
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="scribe", daemon=True)
                self._thread.start()
        try:
            while (said := listener.said.get()) is not None:
                if isinstance(said, SilentError):
                    raise said
                for word in said:
                    yield word, word is not said[-1] or not listener.said.empty()
        finally:
            listener.gone = True

    def _work(self) -> None:
        going: dict[Text, _Listener] = {}
        while (new := self._next(going)) is not None:
            for listener in going.values() if new else ():
                listener.give_out()  # a long text takes a while to read
            try:
                going.update((each.text, each) for each in new)
                self._tell(going, [(each.text, self._batch.read(each.text)) for each in new])
                self._tell(going, self._batch.go_on())
            except Exception:  # whoever asks next may be answered
                log.exception("a text could not be written")
                for listener in going.values():
                    listener.end(SilentError("this machine could not write it"))
                going, self._batch = {}, Batch(self._network)

    def _tell(self, going: dict[Text, _Listener], said: list[tuple[Text, Written | None]]) -> None:
        for text, word in said:
            listener = going[text]
            if word is not None:
                listener.take(word)
                listener.left -= 1
            if word is None or not listener.left or listener.gone:
                listener.end()
                self._batch.remove(text)
                del going[text]

    def _next(self, going: Collection[object]) -> list[_Listener] | None:
        """Who is new, one at a time: others do not wait while many texts are read. None: there is nothing to write."""
        with self._lock:
            if not self._new and not going:
                self._thread = None
                return None
            return [self._new.pop(0)] if self._new else []
