"""The writers that peers are: who trains a path is asked to write with it."""

import logging
import random
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass

from dipaco_swarm.algorithm.paths import ModuleId, PathIndex, PathTable
from dipaco_swarm.gateway.asked import Origin, Over, Piece, SilentError, Task, go_on_unless
from dipaco_swarm.swarm.askers import QUESTIONS_OF_ONE
from dipaco_swarm.swarm.asking import UnansweredError
from dipaco_swarm.swarm.interface import PeerName, Swarm
from dipaco_swarm.swarm.questions import MAX_NEW, MAX_TEXT, AskText, Begins, Tokens
from dipaco_swarm.training.writing import Written

log = logging.getLogger(__name__)

CANDIDATES = 3
"""Peers that are asked for one text, one after the other, before this machine writes it."""
LOOK_SECONDS = 30.0
"""Who trains a path is found out again after so long."""
LOOK_UP_SECONDS = 10.0
PATIENCE_SECONDS = 5.0
"""A peer that says nothing for so long has fallen silent."""
PASSED_OVER_SECONDS = 30.0
"""... and is asked again after this; each time after twice as long."""
LONGEST_PAUSE_SECONDS = 10 * PASSED_OVER_SECONDS
LEAST_PAUSE_SECONDS = 0.5
"""Whoever refuses is not asked again sooner, whatever it says."""


@dataclass
class _Record:
    """What we know of a peer as a writer."""

    first_token_seconds: float = 0.0
    """A mean that forgets; 0: never asked."""
    silences: int = 0
    """In a row."""
    not_before: float = 0.0
    """Asked again then."""
    under_way: int = 0
    """Questions of ours that it is being asked."""

    @property
    def expected_seconds(self) -> float:
        """To a first token, as far as is known, where all that it writes for us takes time of the same peer."""
        return self.first_token_seconds * (1 + self.under_way)


class Peers:
    """Finds the peers of a path, the quickest first that has room for one more question. From any thread."""

    def __init__(self, swarm: Swarm, stage: int, table: PathTable, liars: Collection[PeerName]) -> None:
        """`liars`: are asked nothing; it may grow."""
        self._liars = liars
        self._swarm = swarm
        self._stage = stage
        self._table = table
        self._records: dict[PeerName, _Record] = {}
        self._looked: dict[ModuleId, float] = {}
        self._lock = threading.Lock()
        self._changed = threading.Condition()
        """Of places and pauses."""

    def writers(self, path: PathIndex) -> Iterator["PeerWriter"]:
        """Up to three, each when the one before has fallen silent. Each has a place kept for one question of ours until
        the next one is wanted, or nobody."""
        tried: set[PeerName] = set()
        while len(tried) < CANDIDATES and (name := self._take_place(path, tried)) is not None:
            tried.add(name)
            try:
                yield PeerWriter(self._swarm, name, self._stage, self._note)
            finally:
                self._give_place(name)

    def under_way(self, path: PathIndex) -> int:
        """Questions of ours that peers of the path are being asked."""
        there = self._trainers(path)
        with self._changed:
            return sum(self._record(name).under_way for name in there)

    def await_room(self, path: PathIndex, over: Callable[[], bool]) -> None:
        """Until a peer of the path may be asked, or it is `over`, which `look_again` lets it see; some seconds at
        most."""
        there, now = self._trainers(path), time.monotonic()
        pauses = [pause for name in there if (pause := self._record(name).not_before - now) > 0]
        with self._changed:
            self._changed.wait_for(
                lambda: over() or any(map(self._has_room, there)), timeout=min([LOOK_SECONDS, *pauses])
            )

    def look_again(self) -> None:
        """Let all that wait for room see whether it is over."""
        with self._changed:
            self._changed.notify_all()

    def _take_place(self, path: PathIndex, tried: Collection[PeerName]) -> PeerName | None:
        """A place at the peer that will probably be the first to write; None: all have been tried, or have no room."""
        there = self._trainers(path)
        with self._changed:
            free = [name for name in there if name not in tried and self._has_room(name)]
            if not free:
                return None
            random.shuffle(free)  # those that were never asked
            name = min(free, key=lambda name: (self._record(name).expected_seconds, self._record(name).under_way))
            self._record(name).under_way += 1
            return name

    def _give_place(self, name: PeerName) -> None:
        with self._changed:
            self._record(name).under_way -= 1
            self._changed.notify_all()

    def _has_room(self, name: PeerName) -> bool:
        """Whether it would not refuse one question more, as far as we know."""
        record = self._record(name)
        return name not in self._liars and record.under_way < QUESTIONS_OF_ONE and record.not_before <= time.monotonic()

    def _trainers(self, path: PathIndex) -> list[PeerName]:
        module = self._table.modules_of(path)[0]
        now = time.monotonic()
        with self._lock:  # who comes second reads what the first has found
            if now - self._looked.get(module, float("-inf")) > LOOK_SECONDS:
                self._swarm.look_up(self._stage, [module], timeout=LOOK_UP_SECONDS, thorough=False)
                self._looked[module] = time.monotonic()
        return [said.peer for said in self._swarm.members(self._stage, module) if said.path == path and said.trains]

    def _record(self, name: PeerName) -> _Record:
        return self._records.setdefault(name, _Record())

    def _note(self, name: PeerName, seconds: float | None, again_seconds: float) -> None:
        """`seconds`: to the first token; None: it fell silent, and may be asked again after `again_seconds`."""
        record = self._record(name)
        if seconds is None:
            if not again_seconds:  # there may be nobody behind that name: whoever has answered comes first
                record.silences += 1
                record.first_token_seconds = max(record.first_token_seconds, PATIENCE_SECONDS)
                again_seconds = PASSED_OVER_SECONDS * 2.0 ** min(record.silences - 1, 8)
            pause = min(max(LEAST_PAUSE_SECONDS, again_seconds), LONGEST_PAUSE_SECONDS)
            record.not_before = max(record.not_before, time.monotonic() + pause)
        else:
            record.silences = 0
            before = record.first_token_seconds or seconds
            record.first_token_seconds = 0.7 * before + 0.3 * seconds


Note = Callable[[PeerName, float | None, float], None]


class PeerWriter:
    """`Writer` that asks a peer."""

    def __init__(self, swarm: Swarm, name: PeerName, stage: int, note: Note) -> None:
        self.name = name
        self._swarm = swarm
        self._stage = stage
        self._note = note

    def write(self, task: Task) -> Iterator[Piece]:
        sampling, asked = task.asked.sampling, task.asked
        if len(task.text) > MAX_TEXT:
            raise SilentError(f"a text of {len(task.text):,} tokens is too long for peers")
        question = AskText(
            stage=self._stage,
            path=task.path,
            text=task.text,
            written=task.written,
            drawn=task.drawn,
            most_tokens=min(task.most_tokens, MAX_NEW),
            temperature=sampling.temperature,
            top_k=sampling.top_k or 0,
            top_p=sampling.top_p,
            seed=asked.seed,
            alternatives=asked.alternatives,
        )
        yield from self._asked(question)

    def think(
        self, path: PathIndex, text: Sequence[int], alternatives: int, over: Over = lambda: False
    ) -> tuple[list[Written], Origin]:
        if len(text) > MAX_TEXT:
            raise SilentError(f"a text of {len(text):,} tokens is too long for peers")
        question = AskText(stage=self._stage, path=path, text=tuple(text), most_tokens=0, alternatives=alternatives)
        pieces = []
        with closing(self._asked(question)) as said:  # type: ignore[type-var]
            for piece in said:
                pieces.append(piece)
                go_on_unless(over)
        if [piece.written.token for piece in pieces] != list(text):
            self._note(self.name, None, 0.0)
            raise SilentError("judged another text")
        return [piece.written for piece in pieces], pieces[0].origin

    def _asked(self, question: AskText) -> Iterator[Piece]:
        began, first = time.monotonic(), True
        origin = Origin(PathIndex(question.path), {}, str(self.name))
        try:
            with closing(self._swarm.asking.ask(self.name, question, patience=PATIENCE_SECONDS)) as said:  # type: ignore[type-var]
                for word in said:
                    match word:
                        case Begins(modules=modules):
                            states = {module: f"{version}:{digest}" for module, version, digest in modules}
                            origin = Origin(PathIndex(question.path), states, str(self.name))
                        case Tokens():
                            if first:
                                first = False
                                self._note(self.name, time.monotonic() - began, 0.0)
                            last = len(word.tokens) - 1
                            yield from (Piece(each, origin, at < last) for at, each in enumerate(_written(word)))
                if first:
                    self._note(self.name, time.monotonic() - began, 0.0)
        except UnansweredError as error:
            self._note(self.name, None, error.again_seconds)
            raise SilentError(f"peer {str(self.name)[-8:]}: {error}") from None


def _written(said: Tokens) -> Iterator[Written]:
    if not said.logprobs:
        yield from (Written(token, None) for token in said.tokens)
        return
    for token, logprob, likeliest in zip(said.tokens, said.logprobs, said.likeliest, strict=True):
        yield Written(token, logprob, likeliest)
