"""How a peer divides among askers what it gives for answers: its time, its turns, and the places in its queue.

An asker is whoever a question is counted under (`swarm/askers.py`): an address, or a name where no address is known.
Pure values; the desk has the lock.
"""

from collections import Counter
from collections.abc import Iterator
from typing import Generic, Protocol, TypeVar

from dipaco_swarm.machine.clock import Clock

SHARE = 0.04
"""Of the time beside training that answers may be computed in, in the long run: what is said and heard around them is
the rest of the twentieth that they may cost..."""
BURST_SECONDS = 20.0
"""... and so much at once, after some minutes without any; half of it for one asker alone."""
WANTS_SECONDS = 60.0
"""Whoever has asked so lately wants more."""
WAITING = 4
"""Questions that wait until one of those that are being answered is over."""


class Allowance:
    """Seconds of computing: `BURST_SECONDS` at most, refilled by a share of the time that passes.

    What askers have had is forgotten as fast, of all that want something alike. An asker gets no more while it has had
    more than is left: of a burst it takes half, and whoever comes then finds the other half. In the long run one that
    asks alone has the whole share, and several have parts that are about as large, however often each of them asks.
    """

    def __init__(self, clock: Clock, share: float = SHARE, burst: float = BURST_SECONDS) -> None:
        self._clock = clock
        self._share = share
        self._burst = burst
        self._left = burst
        self._had: dict[str, float] = {}
        """By asker, as far as it is not forgotten."""
        self._wanted: dict[str, float] = {}
        """When each asker last wanted something, in the last minute."""
        self._at = clock.monotonic()

    @property
    def left(self) -> float:
        now = self._clock.monotonic()
        refilled, self._at = self._share * (now - self._at), now
        self._left = min(self._burst, self._left + refilled)
        self._wanted = {asker: when for asker, when in self._wanted.items() if now - when < WANTS_SECONDS}
        forgotten = refilled / self._askers
        self._had = {asker: had - forgotten for asker, had in self._had.items() if had > forgotten}
        return self._left

    @property
    def _askers(self) -> int:
        """That have had something, or want it."""
        return max(1, len(self._had.keys() | self._wanted.keys()))

    def seconds_until_some(self, asker: str) -> float:
        """Until a twentieth of a burst can be taken by this one."""
        self._wanted[asker] = self._clock.monotonic()
        left = self.left
        for_all = (self._burst / 20 - left) / self._share
        for_one = (self._had.get(asker, 0.0) - left) / (self._share * (1 + 1 / self._askers))
        return max(0.0, for_all, for_one)

    def seconds_without_any(self, asker: str) -> float:
        """Until this one may have some again, where all is used up; 0: it is not."""
        return self.seconds_until_some(asker) if self.left <= 0 else 0.0

    def spend(self, seconds: float, asker: str) -> None:
        self._left = self.left - seconds
        self._had[asker] = self._had.get(asker, 0.0) + seconds


class Asked(Protocol):
    """A question, as far as it matters whose turn it is."""

    @property
    def asker(self) -> str: ...


Q = TypeVar("Q", bound=Asked)


class Turns(Generic[Q]):
    """Questions that are being answered, a token of each in one turn, and those that wait.

    Places go round askers, and so does reading, by time: who has many questions has no more of it than who has one.
    """

    def __init__(self, at_once: int) -> None:
        """`at_once`: questions that are answered at the same time."""
        self._at_once = at_once
        self._begun: list[Q] = []
        self._waiting: list[Q] = []
        self._had: dict[str, float] = {}
        """Seconds of each asker whose questions are being answered."""

    def __len__(self) -> int:
        return len(self._begun) + len(self._waiting)

    def __iter__(self) -> Iterator[Q]:
        return iter((*self._begun, *self._waiting))

    def add(self, question: Q) -> list[Q]:
        """Takes a place. Returns what has to go for it: perhaps a question of somebody who has several, perhaps this
        one."""
        self._waiting.append(question)
        gone = []
        if len(self._begun) == self._at_once and self._has_none(question.asker, self._begun):
            gone = self._one_of_several(self._begun)  # it would wait for a whole text of somebody with two
        if not gone and len(self) > self._at_once + WAITING:
            others = self._one_of_several([each for each in self if each is not question])
            gone = others if self._has_none(question.asker, [*self._begun, *self._waiting[:-1]]) else []
            gone = gone or [question]
        for each in gone:
            self.remove(each)
        return gone

    def begun(self) -> list[Q]:
        """Whose turn it is, the first of all who has had least."""
        while self._waiting and len(self._begun) < self._at_once:
            count = Counter(question.asker for question in self._begun)
            first = min(self._waiting, key=lambda question: count[question.asker])
            self._waiting.remove(first)
            if first.asker not in self._had:
                self._had[first.asker] = min(self._had.values(), default=0.0)
            self._begun.append(first)
        return sorted(self._begun, key=lambda each: self._had[each.asker])

    def spent(self, question: Q, seconds: float) -> None:
        """Its turn is over, and took so long."""
        if question.asker in self._had:
            self._had[question.asker] += seconds

    def remove(self, question: Q) -> None:
        """It is answered, or nobody listens; one that is not here any more is passed over."""
        for questions in (self._begun, self._waiting):
            if question in questions:
                questions.remove(question)
        there = {each.asker for each in self._begun}
        self._had = {asker: had for asker, had in self._had.items() if asker in there}

    @staticmethod
    def _has_none(asker: str, questions: list[Q]) -> bool:
        return all(question.asker != asker for question in questions)

    @staticmethod
    def _one_of_several(questions: list[Q]) -> list[Q]:
        """A question of the asker that has the most, if these are several."""
        counts = Counter(question.asker for question in questions)
        asker, count = max(counts.items(), key=lambda item: item[1], default=("", 0))
        return [next(each for each in reversed(questions) if each.asker == asker)] if count > 1 else []
