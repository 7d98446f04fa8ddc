"""Calls of a program's thread into the event loop. All that wait can be interrupted, for Ctrl+C."""

import asyncio
from collections.abc import Coroutine
from concurrent.futures import CancelledError
from typing import Any, TypeVar

from dipaco_swarm.swarm.transport import Portal

T = TypeVar("T")


class Calls:
    """What a program waits for in the loop. Used from any thread but the loop's."""

    def __init__(self, portal: Portal) -> None:
        self._portal = portal
        self._pending: dict[asyncio.Task[Any], None] = {}
        self._interrupted = False

    def run(self, work: Coroutine[Any, Any, T], timeout: float | None) -> T | None:
        """Run in the loop and wait; None when time is up or we were interrupted."""

        async def tracked() -> T | None:
            if self._interrupted:
                work.close()
                return None
            task = asyncio.ensure_future(work)
            self._pending[task] = None
            try:
                async with asyncio.timeout(timeout):
                    return await task
            except TimeoutError:
                return None
            finally:
                self._pending.pop(task, None)

        try:
            return self._portal.run(tracked())
        except (CancelledError, asyncio.CancelledError):
            return None

    def interrupt(self) -> None:
        """Let every call that waits, now or later, return at once with nothing."""

        def interrupt() -> None:
            self._interrupted = True
            for task in list(self._pending):
                task.cancel()

        self._portal.soon(interrupt)
