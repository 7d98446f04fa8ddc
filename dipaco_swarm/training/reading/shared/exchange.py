"""In the program that trains: says what its reader has routed, gives it to others, and fetches what they have.

It fetches a bit ahead of the reader, one stretch of the run's order after the other, from where this peer began; and
looks less often when it has been around once in vain. What it brings lies in files that the reader removes.
"""

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random
from time import monotonic
from typing import Any, Protocol

from dipaco_swarm.algorithm.forgetting import put_last
from dipaco_swarm.algorithm.paths import PathIndex
from dipaco_swarm.events.event import Event
from dipaco_swarm.events.reading import RoutedByOthers, RoutesRefused
from dipaco_swarm.training.reading.shared.belief import MOST_REFUSED
from dipaco_swarm.training.reading.shared.offers import num_stretches, said_of, spans_in, stretch_of, topic_of
from dipaco_swarm.training.reading.shared.shelf import Shelf, Span
from dipaco_swarm.training.reading.shared.slices import NOWHERE, slices_in

log = logging.getLogger(__name__)

MOST_PARTS, MOST_BYTES = 32, 32 << 20
"""That wait for the reader while it is hungry..."""
SPARE_PARTS = 8
"""... and while it is not."""
PART_LIMIT = 16 << 20
"""Bytes; one slice of two paths in a language of long tokens is a few."""
LOOK_SECONDS = 20.0
ASK_SECONDS = 60.0
SOONEST, LATEST, LATEST_SATED = 0.5, 15.0, 60.0
"""Seconds between two looks: twice as many each time that we have been around in vain. The last one: while the reader
is not hungry."""
READ_BYTES_A_SECOND = 5_000.0
"""Of what others say, at most."""
SAY_SECONDS, MOST_SAY_SECONDS = 2.0, 30.0
"""Between two words about what we have: a twentieth of the time since we began, at least and at most these."""
RECORD_BYTES = 200
"""Of an offer, besides what it says."""
ALL_OF_IT = 1 << 30
"""More slices than a portion has."""
PASSED_OVER_SECONDS = 60.0
"""Who did not send what it offers is asked again after this..."""
MOST_PASSED_OVER = 1024
"""... or when so many others did not either."""


class Others(Protocol):
    """What this needs of the network: `swarm.sharing.Sharing`."""

    def serve(self, topic: str, answer: Callable[[str], bytes | None] | None) -> None: ...

    def offer(self, topic: str, said: bytes | None) -> None: ...

    def offers(self, topic: str, *, timeout: float) -> Mapping[Any, bytes]: ...

    def ask(self, peer: str, topic: str, name: str, *, timeout: float, limit: int) -> bytes | None: ...


@dataclass(frozen=True)
class Subject:
    """What is shared."""

    stage: int
    corpus: str
    """The same for all who route the same documents the same way."""
    portions: int
    start: int
    """The portion that this peer begins with."""
    path: PathIndex
    paths: int
    vocabulary: int
    """Token ids are below that."""
    tokens: bool
    """Whether tokens are given, or routes alone: of one's own path they are on the shelf anyway."""


class Exchange:
    """Works in a thread of its own until it is closed."""

    def __init__(
        self,
        others: Others,
        subject: Subject,
        shelf: Shelf,
        inbox: Path,
        tell_reader: Callable[[dict[str, object]], None],
        tell: Callable[[Event], None],
    ) -> None:
        """`inbox`: a folder of ours. `tell`: may be called from any thread. Raises OSError."""
        self._others = others
        self._subject = subject
        self._shelf = shelf
        self._folder = inbox
        self._tell_reader = tell_reader
        self._tell = tell
        self._changed = threading.Condition()
        self._closed = False
        self._hungry = False
        self._ours: dict[int, Span] = {}
        """What we have routed."""
        self._said: dict[int, bytes] = {}
        """By stretch, what we have said of it."""
        self._begun = self._said_at = monotonic()
        self._used: dict[int, int] = {}
        self._through: set[int] = set()
        self._brought: dict[int, int] = {}
        """Portion -> slices of it that were used or are on their way."""
        self._waiting: dict[str, tuple[int, int]] = {}
        """Files that the reader has not used yet -> portion, bytes."""
        self._refused: dict[str, None] = {}
        """The newest come last."""
        self._passed_over: dict[str, float] = {}
        self._number = 0
        self._stretch = stretch_of(subject.start, subject.portions)
        self._pause = SOONEST
        self._in_vain = 0
        """Looks since something was found."""
        self._looked = 0.0
        self._bytes_read = 0
        """By the last look."""
        self._has_told = False
        self._random = Random()
        inbox.mkdir(parents=True, exist_ok=True)
        for file in inbox.iterdir():
            file.unlink()
        for stretch in range(num_stretches(subject.portions)):
            others.serve(self._topic(stretch), self._give)
        self._thread = threading.Thread(target=self._work, name="exchange", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """We have nothing to give any more."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        for stretch in range(num_stretches(self._subject.portions)):
            self._others.serve(self._topic(stretch), None)
            if stretch in self._said:
                self._others.offer(self._topic(stretch), None)

    def hear(self, said: Mapping[str, object]) -> None:
        """A line of the reader."""
        with self._changed:
            match said:
                case {"routed": [int(portion), int(first), int(end), bool(is_whole)]}:
                    self._ours[portion] = Span(first, end, is_whole)
                case {"gone": int(portion)}:
                    self._ours.pop(portion, None)
                case {"used": [int(portion), int(done), bool(is_through)]}:
                    self._used[portion] = done
                    if is_through:
                        self._through.add(portion)
                case {"hungry": bool(hungry)}:
                    self._hungry = hungry
                case {"taken": str(name)}:
                    portion, _ = self._waiting.pop(name, (-1, 0))
                    if all(portion != other for other, _ in self._waiting.values()):
                        self._brought.pop(portion, None)  # what was not used of it may come again
                case {"refused": str(peer)}:
                    self._refuse(peer, said)
                case _:
                    return
            self._changed.notify_all()

    def _refuse(self, peer: str, said: Mapping[str, object]) -> None:
        put_last(self._refused, peer, None, MOST_REFUSED)
        self._brought = dict(self._used)
        match said:
            case {"portion": int(portion), "why": str(why)}:
                self._tell(RoutesRefused(peer, portion, why))

    # in a thread --------------------------------------------------------------------------------------------------

    def _work(self) -> None:
        while True:
            with self._changed:
                if self._closed:
                    return
                now = monotonic()
                at = min(self._say_at(), self._look_at())
                if at > now:
                    self._changed.wait(min(at - now, 60.0))
                    continue
                says, looks = self._say_at() <= now, self._look_at() <= now
            if says:
                self._say()
            if looks:
                self._look()

    def _say_at(self) -> float:
        if self._words() == self._said:
            return float("inf")
        age = monotonic() - self._begun
        return self._said_at + min(MOST_SAY_SECONDS, max(SAY_SECONDS, age / 20)) * bool(self._said)

    def _look_at(self) -> float:
        parts, size = len(self._waiting), sum(size for _, size in self._waiting.values())
        if size >= MOST_BYTES or parts >= (MOST_PARTS if self._hungry else SPARE_PARTS):
            return float("inf")
        longest = LATEST if self._hungry else LATEST_SATED
        return self._looked + max(min(self._pause, longest), self._bytes_read / READ_BYTES_A_SECOND)

    def _words(self) -> dict[int, bytes]:
        """What there is to say, by stretch."""
        spans: dict[int, dict[int, Span]] = {}
        for portion, span in self._ours.items():
            spans.setdefault(stretch_of(portion, self._subject.portions), {})[portion] = span
        return {stretch: said_of(of) for stretch, of in spans.items()}

    def _say(self) -> None:
        with self._changed:
            words = self._words()
        for stretch in self._said.keys() - words.keys():
            self._others.offer(self._topic(stretch), None)
        for stretch, said in words.items():
            self._others.offer(self._topic(stretch), said)  # again also if it is the same: our addresses may be new
        self._said, self._said_at = words, monotonic()

    def _look(self) -> None:
        """Look at the next stretch, and fetch what is new there."""
        stretch, subject = self._stretch, self._subject
        self._stretch = (stretch + 1) % num_stretches(subject.portions)
        found = self._others.offers(self._topic(stretch), timeout=LOOK_SECONDS)
        spans: dict[str, dict[int, Span]] = {}
        for peer, said in found.items():
            try:
                spans[str(peer)] = spans_in(said, stretch, subject.portions)
            except ValueError as error:
                log.debug("passed over what peer %s offers: it %s", peer[-8:], error)
        claims = [[peer, p, -1 if s.is_whole else s.end] for peer, of in spans.items() for p, s in of.items()]
        self._tell_reader({"stretch": stretch, "claims": [c for c in claims if c[0] not in self._refused]})
        if self._fetch(stretch, spans):
            self._pause, self._in_vain = SOONEST, 0
        else:
            self._in_vain += 1
            if self._in_vain % num_stretches(subject.portions) == 0:
                self._pause = min(LATEST_SATED, 2 * self._pause)
        self._bytes_read = sum(len(said) + RECORD_BYTES for said in found.values())
        self._looked = monotonic()

    def _fetch(self, stretch: int, spans: Mapping[str, Mapping[int, Span]]) -> bool:
        offered = [(peer, portion, span) for peer, of in spans.items() for portion, span in of.items()]
        self._random.shuffle(offered)  # of several that have the same, each is asked by some
        offered.sort(key=lambda each: self._new_in(*each[1:]), reverse=True)  # many at once cost no more than one
        some = False
        for peer, portion, span in offered:
            while self._is_wanted(portion, peer, span):
                if self._closed or self._look_at() == float("inf"):
                    return some
                if not self._bring(stretch, portion, peer):
                    break
                some = True
        return some

    def _new_in(self, portion: int, span: Span) -> int:
        """About how many slices that we do not have."""
        return (ALL_OF_IT if span.end < 0 else span.end) - self._have(portion)

    def _have(self, portion: int) -> int:
        return max(self._used.get(portion, 0), self._brought.get(portion, 0))

    def _is_wanted(self, portion: int, peer: str, span: Span) -> bool:
        have = self._have(portion)
        if peer in self._refused or portion in self._through or not span.first <= have < ALL_OF_IT:
            return False
        if self._passed_over.get(peer, 0.0) > monotonic():
            return False
        return span.end < 0 or have < span.end

    def _bring(self, stretch: int, portion: int, peer: str) -> bool:
        """Fetch the next slices of a portion from a peer; whether they came."""
        subject, first = self._subject, self._have(portion)
        name = f"{subject.path}.{portion}.{first}"
        data = self._others.ask(peer, self._topic(stretch), name, timeout=ASK_SECONDS, limit=PART_LIMIT)
        try:
            found = [] if data is None else slices_in(data, subject.paths, subject.vocabulary)
        except ValueError as error:
            with self._changed:
                self._refuse(peer, {"portion": portion, "why": f"something that {error}"})
            return False
        if data is None or not found:
            self._pass_over(peer)
            return False
        self._number += 1
        file = self._folder / f"{self._number}.part"
        try:
            file.write_bytes(data)
        except OSError as error:  # the disk is full, or we are being closed
            log.debug("what peer %s sends cannot be written: %s", peer[-8:], error)
            self._pass_over(peer)
            return False
        with self._changed:
            if self._closed:
                return False
            self._brought[portion] = ALL_OF_IT if found[-1].is_last else first + len(found)
            self._waiting[file.name] = portion, len(data)
        self._tell_reader({"part": {"file": str(file), "peer": peer, "portion": portion, "number": first}})
        if not self._has_told:
            self._has_told = True
            self._tell(RoutedByOthers(peer))
        return True

    def _pass_over(self, peer: str) -> None:
        put_last(self._passed_over, peer, monotonic() + PASSED_OVER_SECONDS, MOST_PASSED_OVER)

    def _give(self, name: str) -> bytes | None:
        """A part that somebody asks for: path, portion, slice."""
        try:
            path, portion, number = map(int, name.split("."))
        except ValueError:
            return None
        if not 0 <= path < self._subject.paths:
            return None
        return self._shelf.part(portion, number, path if self._subject.tokens else NOWHERE)

    def _topic(self, stretch: int) -> str:
        return topic_of(self._subject.stage, self._subject.corpus, stretch)
