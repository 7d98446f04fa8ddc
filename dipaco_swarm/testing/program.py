"""Programs in virtual time: ordinary blocking code, as a real peer's is, each in a thread of its own.

What a program has done beside its own is in another thread.

Only one thread runs at any moment: the loop's, or that of the one program that the loop has handed over to. So a run
repeats itself exactly.
"""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Generic, TypeVar

from dipaco_swarm.machine.beside import Work
from dipaco_swarm.testing.virtual_time import VirtualLoop, context_of

T = TypeVar("T")


class Killed(BaseException):
    """The program was killed; it unwinds, and nobody hears of it."""


class _Strand:
    """A thread of a program. It runs only while the loop waits for it."""

    def __init__(self) -> None:
        self.to_strand = threading.Semaphore(0)
        self.thread: threading.Thread | None = None
        self.work: Coroutine[Any, Any, Any] | None = None
        """What it waits for, when the loop has its turn."""
        self.task: asyncio.Task[Any] | None = None
        self.killed = False
        self.result: Any = None
        self.error: BaseException | None = None
        self.is_over = False


class _VirtualWork(Generic[T]):
    """`machine.beside.Work`."""

    def __init__(self, strand: _Strand) -> None:
        self._strand = strand

    @property
    def is_over(self) -> bool:
        return self._strand.is_over

    def result(self) -> T:
        if self._strand.error is not None:
            raise self._strand.error
        result: T = self._strand.result
        return result


class Program:
    """Blocking code in virtual time, in a thread of its own; also its `transport.Portal` into the loop, and how it has
    work done beside its own (`machine.beside.Beside`).

    The loop and the program's threads take turns: while one runs, the others wait.
    """

    def __init__(self, loop: VirtualLoop, owner: str) -> None:
        self._loop = loop
        self._context = context_of(owner)
        self._to_loop = threading.Semaphore(0)
        self._strands: dict[int, _Strand] = {}
        """Those that go on, by the number of their thread; the first is the program's own."""
        self._killed = False
        self.ended: asyncio.Future[BaseException | None] = loop.create_future()
        """Done when the program has ended; its result is what the program raised."""

    def start(self, life: Callable[[], object]) -> None:
        """Begin, when the loop gets to it."""
        self._start(life, lambda strand: self._loop.call_soon(self._end, strand.error, context=self._context))

    def begin(self, work: Callable[[], T], name: str) -> Work[T]:
        """Called by the program: work in another thread, until it or the program ends."""
        return _VirtualWork(self._start(work, lambda strand: None))

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Called by the program: run in the loop, and wait in virtual time."""
        strand = self._strands[threading.get_ident()]
        if self._killed or strand.killed:
            work.close()
            raise Killed
        strand.work = work
        self._to_loop.release()
        strand.to_strand.acquire()
        if self._killed or strand.killed:
            raise Killed
        assert strand.task is not None
        result: T = strand.task.result()
        return result

    def soon(self, work: Callable[..., object], *args: Any) -> None:
        if not self._killed:
            self._loop.call_soon(work, *args, context=self._context)

    def sleep(self, seconds: float) -> None:
        """Called by the program: let so much virtual time pass."""
        self.run(asyncio.sleep(seconds))

    def kill(self) -> None:
        """Called by the simulation: the program never goes on; its threads unwind now."""
        self._killed = True
        for strand in list(self._strands.values()):
            self._unwind(strand)
        if not self.ended.done():
            self.ended.set_result(None)

    def _start(self, work: Callable[[], object], over: Callable[[_Strand], object]) -> _Strand:
        """A new thread. `over`: called in it at its end, unless the program was killed."""
        strand, known = _Strand(), threading.Event()

        def run() -> None:
            self._strands[threading.get_ident()] = strand
            known.set()
            strand.to_strand.acquire()
            try:
                if not (self._killed or strand.killed):
                    strand.result = work()
            except Killed:
                strand.error = None
            except BaseException as raised:  # noqa: BLE001  # whatever it is, whoever asks for the result is told
                strand.error = raised
            strand.work = None
            strand.is_over = True
            del self._strands[threading.get_ident()]
            if not (self._killed or strand.killed):
                over(strand)
            self._to_loop.release()

        strand.thread = threading.Thread(target=run, name="program", daemon=True)
        strand.thread.start()
        known.wait()
        self._loop.call_soon(self._let_it_run, strand, context=self._context)
        return strand

    def _let_it_run(self, strand: _Strand, task: "asyncio.Task[Any] | None" = None) -> None:
        if self._killed or strand.killed:
            return
        strand.task = task
        strand.to_strand.release()
        self._to_loop.acquire()
        if strand.work is not None:
            work, strand.work = strand.work, None
            waiting = self._loop.create_task(work, context=self._context)
            strand.task = waiting
            waiting.add_done_callback(partial(self._let_it_run, strand), context=self._context)

    def _unwind(self, strand: _Strand) -> None:
        strand.killed = True
        if strand.thread is not None and strand.thread.is_alive():
            strand.to_strand.release()
            self._to_loop.acquire()
            strand.thread.join()

    def _end(self, error: BaseException | None) -> None:
        """The program's own thread is over, and so is its process: nobody does what is beside any more."""
        for strand in list(self._strands.values()):
            self._unwind(strand)
            if strand.task is not None:
                strand.task.cancel()
        self._loop.call_soon(self._say_it_has_ended, error)  # once what was beside has heard that it is cancelled

    def _say_it_has_ended(self, error: BaseException | None) -> None:
        if not self.ended.done():
            self.ended.set_result(error)
