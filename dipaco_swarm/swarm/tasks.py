"""Background tasks that are remembered, and whose bugs are not lost."""

import asyncio
import contextlib
import logging
from collections.abc import Coroutine
from contextvars import Context
from typing import Any, TypeVar

log = logging.getLogger(__name__)

T = TypeVar("T")


class Tasks:
    """Tasks of one owner. In the order in which they were started, so that a simulated run repeats itself."""

    def __init__(self) -> None:
        self._running: dict[asyncio.Task[None], None] = {}

    def __len__(self) -> int:
        return len(self._running)

    def start(self, work: Coroutine[Any, Any, None], context: Context | None = None) -> asyncio.Task[None]:
        """Run in the background, remembered until it ends; a bug in it is logged, not lost."""
        task = asyncio.create_task(work, context=context)
        self._running[task] = None
        task.add_done_callback(self._ended)
        return task

    async def any_ended(self) -> None:
        """Wait until one of them has ended; at once when none is running."""
        if self._running:
            await asyncio.wait(list(self._running), return_when=asyncio.FIRST_COMPLETED)

    async def end(self) -> None:
        """Cancel all, and wait for them."""
        await end_all(*self._running)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._running.pop(task, None)
        if not task.cancelled() and task.exception() is not None:
            log.error("a background task ended with an error", exc_info=task.exception())


async def to_its_end(work: Coroutine[Any, Any, T]) -> T:
    """What comes of work that goes on to its end, also when whoever waits for it is cancelled."""
    task = asyncio.ensure_future(work)
    while not task.done():
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.shield(task)
    return task.result()


async def end_all(*tasks: asyncio.Task[Any]) -> None:
    """Cancel and wait."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
