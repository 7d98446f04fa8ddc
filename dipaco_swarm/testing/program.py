"""Programs in virtual time: ordinary blocking code, as a real peer's is, each in a thread of its own.

Only one thread runs at any moment: the loop's, or that of the one program that the loop has handed over to. So a run
repeats itself exactly.
"""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from dipaco_swarm.testing.virtual_time import VirtualLoop, context_of

T = TypeVar("T")


class Killed(BaseException):
    """The program was killed; it unwinds, and nobody hears of it."""


class Program:
    """Blocking code in virtual time, in a thread of its own; also its `transport.Portal` into the loop.

    The loop and the program's thread take turns: while one runs, the other waits.
    """

    def __init__(self, loop: VirtualLoop, owner: str) -> None:
        self._loop = loop
        self._context = context_of(owner)
        self._to_program = threading.Semaphore(0)
        self._to_loop = threading.Semaphore(0)
        self._work: Coroutine[Any, Any, Any] | None = None
        """What the program waits for, when the loop has its turn."""
        self._task: asyncio.Task[Any] | None = None
        self._killed = False
        self._thread: threading.Thread | None = None
        self.ended: asyncio.Future[BaseException | None] = loop.create_future()
        """Done when the program has ended; its result is what the program raised."""

    def start(self, life: Callable[[], object]) -> None:
        """Begin, when the loop gets to it."""

        def run() -> None:
            self._to_program.acquire()
            error: BaseException | None = None
            try:
                if not self._killed:
                    life()
            except Killed:
                error = None
            except BaseException as raised:  # noqa: BLE001  # whatever it is, whoever awaits `ended` is told
                error = raised
            self._work = None
            if not self._killed:
                self._loop.call_soon(self._end, error, context=self._context)
            self._to_loop.release()

        self._thread = threading.Thread(target=run, name="program", daemon=True)
        self._thread.start()
        self._loop.call_soon(self._let_it_run, context=self._context)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Called by the program: run in the loop, and wait in virtual time."""
        if self._killed:
            work.close()
            raise Killed
        self._work = work
        self._to_loop.release()
        self._to_program.acquire()
        if self._killed:
            raise Killed
        assert self._task is not None
        result: T = self._task.result()
        return result

    def soon(self, work: Callable[..., object], *args: Any) -> None:
        if not self._killed:
            self._loop.call_soon(work, *args, context=self._context)

    def sleep(self, seconds: float) -> None:
        """Called by the program: let so much virtual time pass."""
        self.run(asyncio.sleep(seconds))

    def kill(self) -> None:
        """Called by the simulation: the program never goes on; its thread unwinds now."""
        self._killed = True
        if self._thread is not None and self._thread.is_alive():
            self._to_program.release()
            self._to_loop.acquire()
            self._thread.join()
        if not self.ended.done():
            self.ended.set_result(None)

    def _let_it_run(self, task: "asyncio.Task[Any] | None" = None) -> None:
        if self._killed:
            return
        self._task = task
        self._to_program.release()
        self._to_loop.acquire()
        if self._work is not None:
            work, self._work = self._work, None
            waiting = self._loop.create_task(work, context=self._context)
            waiting.add_done_callback(self._let_it_run, context=self._context)

    def _end(self, error: BaseException | None) -> None:
        if not self.ended.done():
            self.ended.set_result(error)
