"""A program's calls into the loop, where there is nobody any more who runs them."""

import asyncio
import inspect
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import pytest

from dipaco_swarm.swarm.calls import Calls

T = TypeVar("T")


class NobodyThere:
    """A `Portal` into a loop that has ended, or whose owner was killed."""

    def __init__(self, error: type[BaseException]) -> None:
        self._error = error

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        work.close()
        raise self._error

    def soon(self, work: Callable[..., object], *args: Any) -> None:
        pass


class Killed(BaseException):
    pass


async def answer() -> int:
    return 42


def test_work_that_nobody_runs_is_closed() -> None:
    work = answer()
    assert Calls(NobodyThere(asyncio.CancelledError)).run(work, 1.0) is None
    assert inspect.getcoroutinestate(work) == inspect.CORO_CLOSED
    work = answer()
    with pytest.raises(Killed):
        Calls(NobodyThere(Killed)).run(work, 1.0)
    assert inspect.getcoroutinestate(work) == inspect.CORO_CLOSED
