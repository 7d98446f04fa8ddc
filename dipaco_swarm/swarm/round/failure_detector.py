"""Who may be gone: what a peer learns from questions that come to nothing, and how long it waits for answers."""

import math
from dataclasses import dataclass

from dipaco_swarm.machine.clock import Clock
from dipaco_swarm.swarm.timing import Timing
from dipaco_swarm.swarm.transport import NotAnswering


@dataclass(frozen=True)
class Silence:
    """Questions in a row that came to nothing. Times are those of the monotonic clock."""

    questions: int = 0
    noticed: float = -math.inf
    """When the last one was given up."""
    cut_off: float = math.inf
    """Since when it cannot be dialled, or takes no part in this run; not for want of time."""


class FailureDetector:
    """Adaptive timeout of a question: three times the slowest recent answer; doubled once, after a timeout.

    So a slow line, ours or theirs, costs a question and not the round. A peer that stays silent is given no more.
    """

    def __init__(self, clock: Clock, timing: Timing) -> None:
        self._clock = clock
        self._timing = timing
        self._slowest = 0.0
        self._silences: dict[str, Silence] = {}

    @property
    def usual(self) -> float:
        """Seconds in which somebody who is there answers."""
        return min(max(self._timing.answer, 3 * self._slowest), self._timing.max_answer)

    def allowed(self, peer: str) -> float:
        """Seconds that the next question to this peer may take."""
        return min(2 * self.usual if self._unanswered(peer) == 1 else self.usual, self._timing.max_answer)

    def doubts(self, peer: str) -> bool:
        """Whether it has left our last question without an answer: somebody else is the better leader."""
        return self._unanswered(peer) > 0

    def misses(self, peer: str) -> bool:
        """Whether it has left several questions without an answer: asleep, or gone. Nobody waits for it just now."""
        return self._unanswered(peer) > 1

    def was_silent(self, peer: str) -> bool:
        """Whether it has left a question without an answer not long ago, and was not heard since."""
        silence = self._silences.get(peer, Silence())
        return self._clock.monotonic() - silence.noticed < self._timing.long_ago

    def is_gone(self, peer: str) -> bool:
        """Whether it could not be dialled for `timing.max_silence` seconds. Who is only silent may be slow."""
        silence = self._silences.get(peer, Silence())
        return silence.noticed - silence.cut_off >= self._timing.max_silence

    def answered(self, peer: str, seconds: float) -> None:
        self.heard(peer)
        self._slowest = max(seconds, 0.9 * self._slowest)

    def heard(self, peer: str) -> None:
        self._silences.pop(peer, None)

    def silent(self, peer: str, asked: float, error: Exception | None = None) -> None:
        """A question of that time was not answered; several that were asked before one silence are the same one.

        `error`: what came instead of an answer.
        """
        silence = self._silences.get(peer, Silence())
        if asked <= silence.noticed:
            return
        now, cut_off = self._clock.monotonic(), silence.cut_off
        match error:
            case None | NotAnswering():
                pass  # it may be there or not
            case ConnectionError():
                cut_off = min(cut_off, now)
            case _:  # it took the question
                cut_off = math.inf
        self._silences[peer] = Silence(self._unanswered(peer) + 1, now, cut_off)
        # most of those who leave do not say so
        known = self._timing.long_ago
        self._silences = {name: said for name, said in self._silences.items() if now - said.noticed < known}

    def _unanswered(self, peer: str) -> int:
        """Forgotten after a while: two that were parted would not speak to each other any more."""
        silence = self._silences.get(peer, Silence())
        return silence.questions if self._clock.monotonic() - silence.noticed < self._timing.forget_silence else 0
