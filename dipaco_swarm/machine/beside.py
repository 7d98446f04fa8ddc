"""Long work beside a program's own loop, which looks now and then whether it is over."""

import os
import sys
import threading
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

NICE = 10
"""More than whoever begins it: what is beside gets a tenth of a processor that training wants as well."""
LAST = 19


class Work(Protocol[T_co]):
    """Something that was begun."""

    @property
    def is_over(self) -> bool: ...

    def result(self) -> T_co:
        """What came of it, once it is over. Raises what it raised."""
        ...


class Beside(Protocol):
    """Begins work: handed in, so that the same program works in real and in virtual time."""

    def begin(self, work: Callable[[], T], name: str) -> Work[T]:
        """Returns at once. Work that is not over when the program ends is given up."""
        ...


class _ThreadWork(Generic[T]):
    def __init__(self, work: Callable[[], T], name: str) -> None:
        self._work = work
        self._result: T | None = None
        self._error: BaseException | None = None
        self._over = threading.Event()
        threading.Thread(target=self._run, name=name, daemon=True).start()

    @property
    def is_over(self) -> bool:
        return self._over.is_set()

    def result(self) -> T:
        assert self.is_over, "it is not over"
        if self._error is not None:
            raise self._error
        return self._result  # type: ignore[return-value]  # what `work` returned, which may be None

    def _run(self) -> None:
        if sys.platform == "linux":  # elsewhere it is the process that is nice, and not the thread
            ours = os.getpriority(os.PRIO_PROCESS, 0)  # of this thread: that of whoever began it
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), min(LAST, ours + NICE))
        try:
            self._result = self._work()
        except BaseException as error:  # noqa: BLE001  # whoever asks for the result is told
            self._error = error
        self._over.set()


class BesideThreads:
    """`Beside` as threads of low priority."""

    def begin(self, work: Callable[[], T], name: str) -> Work[T]:
        return _ThreadWork(work, name)


BESIDE_THREADS = BesideThreads()
