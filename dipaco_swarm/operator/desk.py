"""Long work of a bootstrap node, beside its loop: a thing at a time, asked after with every tick."""

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from dipaco_swarm.machine.beside import Beside, Work
from dipaco_swarm.machine.clock import Clock

T = TypeVar("T")


@dataclass(frozen=True)
class Done(Generic[T]):
    """Work is over, and this came of it."""

    result: T


class Desk:
    """Where one thing is worked at."""

    def __init__(self, beside: Beside, clock: Clock) -> None:
        self._beside = beside
        self._clock = clock
        self._work: Work[Any] | None = None
        self._key: Hashable = None
        self._since = 0.0

    @property
    def seconds(self) -> float:
        """For how long it has been worked at what is on the desk; 0: nothing is."""
        return self._clock.monotonic() - self._since if self._work is not None else 0.0

    def is_at(self, key: Hashable) -> bool:
        """Whether this is what is worked at, or was and is to be taken."""
        return self._work is not None and self._key == key

    def done(self, key: Hashable, work: Callable[[], T]) -> Done[T] | None:
        """What came of the work that goes by this key; None while it goes on. It is begun when it is asked after first.

        Raises what it raised. Work that went by another key is given up.
        """
        if not self.is_at(key):
            self._key, self._since = key, self._clock.monotonic()
            self._work = self._beside.begin(work, "beside")
        if self._work is None or not self._work.is_over:
            return None
        over, self._work = self._work, None
        return Done(over.result())

    def clear(self) -> None:
        """Give up what is worked at: nobody asks for it any more."""
        self._work = None
