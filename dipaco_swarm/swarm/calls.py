"""Calls of a program's thread into the event loop. All that wait can be interrupted, for Ctrl+C."""

import asyncio
from collections.abc import Coroutine
from concurrent.futures import CancelledError
from typing import Any, Generic, TypeVar

from dipaco_swarm.swarm.transport import Portal

T = TypeVar("T")


class Begun(Generic[T]):
    """Work in the loop that a program has begun, and asks after now and then."""

    def __init__(self, portal: Portal) -> None:
        self._portal = portal
        self._over = asyncio.Event()
        self._task: asyncio.Task[T] | None = None

    def result(self, timeout: float | None) -> T | None:
        """What came of it; None while it goes on, and when it was cancelled. Raises what it raised.

        `timeout`: seconds to wait for it; None: until it is over.
        """
        if not self.is_over and timeout != 0.0:
            self._portal.run(self._wait(timeout))
        return self._result_of_task() if self.is_over else None

    @property
    def is_over(self) -> bool:
        return self._over.is_set()

    def cancel(self) -> None:
        """Whatever it gives back then is its result."""
        self._portal.soon(self._cancel)

    def follow(self, task: "asyncio.Task[T] | None") -> None:
        """In the loop: this is the work. None: it is over before it began."""
        self._task = task
        if task is None:
            self._over.set()
        else:
            task.add_done_callback(lambda done: self._over.set())

    async def _wait(self, timeout: float | None) -> None:
        try:
            async with asyncio.timeout(timeout):
                await self._over.wait()
        except TimeoutError:
            return

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def _result_of_task(self) -> T | None:
        return None if self._task is None or self._task.cancelled() else self._task.result()


class Calls:
    """What a program waits for in the loop. Used from any thread but the loop's."""

    def __init__(self, portal: Portal) -> None:
        self._portal = portal
        self._pending: dict[asyncio.Task[Any], None] = {}
        self._interrupted = False

    def run(self, work: Coroutine[Any, Any, T], timeout: float | None) -> T | None:
        """Run in the loop and wait; None when time is up or we were interrupted."""

        begun = False

        async def tracked() -> T | None:
            nonlocal begun
            begun, task = True, self._start(work)
            try:
                async with asyncio.timeout(timeout):
                    return None if task is None else await task
            except TimeoutError:
                return None

        try:
            return self._portal.run(tracked())
        except (CancelledError, asyncio.CancelledError):
            return None
        finally:
            if not begun:  # the loop has ended, or we have: nobody runs it any more
                work.close()

    def begin(self, work: Coroutine[Any, Any, T]) -> Begun[T]:
        """Begin it in the loop, and return at once. Interrupted, it is cancelled."""
        begun: Begun[T] = Begun(self._portal)
        self._portal.soon(lambda: begun.follow(self._start(work)))
        return begun

    def _start(self, work: Coroutine[Any, Any, T]) -> "asyncio.Task[T] | None":
        """In the loop: begin it, to be cancelled when we are interrupted; None when we were before."""
        if self._interrupted:
            work.close()
            return None
        task = asyncio.ensure_future(work)
        self._pending[task] = None
        task.add_done_callback(lambda done: self._pending.pop(done, None))
        return task

    def interrupt(self) -> None:
        """Let every call that waits, now or later, return at once with nothing."""

        def interrupt() -> None:
            self._interrupted = True
            for task in list(self._pending):
                task.cancel()

        self._portal.soon(interrupt)
