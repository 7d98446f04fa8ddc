"""An executor of threads, and the door from a program's thread into an event loop."""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")


class Threads:
    """`transport.Executor`: one thread for work in order, the loop's own for work aside."""

    def __init__(self) -> None:
        self._one = ThreadPoolExecutor(1, thread_name_prefix="swarm-compute")

    async def in_order(self, work: Callable[..., T], *args: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._one, work, *args)

    async def aside(self, work: Callable[..., T], *args: Any) -> T:
        return await asyncio.to_thread(work, *args)

    def close(self) -> None:
        self._one.shutdown(wait=False, cancel_futures=True)


class LoopPortal:
    """`transport.Portal` into a loop that runs in another thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def soon(self, work: Callable[..., object], *args: Any) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(work, *args)
