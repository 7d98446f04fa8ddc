"""What runs while pieces are exchanged: the tasks of one round, and a stream used both ways at once."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine
from typing import Any


class ExchangeTasks:
    """The tasks of one round on one peer. They start within `group`, and end with it."""

    def __init__(self) -> None:
        self._group: asyncio.TaskGroup | None = None
        self._running: dict[asyncio.Task[None], None] = {}  # in the order in which they began

    @contextlib.asynccontextmanager
    async def group(self) -> AsyncIterator[None]:
        """Cancels what still runs at the end of the block, and waits for it. An error of one ends all."""
        async with asyncio.TaskGroup() as group:
            self._group = group
            try:
                yield
            finally:
                self._group = None
                for task in list(self._running):
                    task.cancel()

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None] | None:
        """None when the round is over."""
        if self._group is None:
            work.close()
            return None
        task = self._group.create_task(work)
        self._running[task] = None
        task.add_done_callback(self._running.pop)
        return task


async def both_ways(sending: Coroutine[Any, Any, None], receiving: Coroutine[Any, Any, None]) -> None:
    """Both at once, until the other side closes its stream; a stream that takes nothing any more ends it too."""
    tasks = {asyncio.create_task(sending), asyncio.create_task(receiving)}
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.gather(*(task for task in tasks if task.done()))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        del task  # what has failed holds this frame by its traceback, and must not be held by it
        tasks.clear()
