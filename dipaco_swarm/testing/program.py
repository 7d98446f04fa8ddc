"""Programs in virtual time: ordinary blocking code, as a real peer's is, each in a greenlet of its own.

What a program has done beside its own is in another greenlet.

The loop and the programs take turns, in one thread: the loop hands over to one program, which hands back when it waits.
So a run repeats itself exactly, and a turn costs a microsecond, where threads that wait for each other take fifty.
"""

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Generic, TypeVar

from greenlet import getcurrent, greenlet

from dipaco_swarm.machine.beside import Work
from dipaco_swarm.testing.virtual_time import VirtualLoop, context_of

T = TypeVar("T")


class Killed(BaseException):
    """The program was killed; it unwinds, and nobody hears of it."""


class _Strand:
    """What a program does after each other."""

    def __init__(self) -> None:
        self.turns: greenlet | None = None
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
    """Blocking code in virtual time; also its `transport.Portal` into the loop, and how it has work done beside its own
    (`machine.beside.Beside`).
    """

    def __init__(self, loop: VirtualLoop, owner: str) -> None:
        self._loop = loop
        self._context = context_of(owner)
        self._strands: dict[greenlet, _Strand] = {}
        """Those that go on; the first is the program's own."""
        self._killed = False
        self.ended: asyncio.Future[BaseException | None] = loop.create_future()
        """Done when the program has ended; its result is what the program raised."""

    def start(self, life: Callable[[], object]) -> None:
        """Begin, when the loop gets to it."""
        self._start(life, lambda strand: self._loop.call_soon(self._end, strand.error, context=self._context))

    def begin(self, work: Callable[[], T], name: str) -> Work[T]:
        """Called by the program: work beside it, until it or the program ends."""
        return _VirtualWork(self._start(work, lambda strand: None))

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Called by the program: run in the loop, and wait in virtual time."""
        ours = getcurrent()
        strand = self._strands[ours]
        if self._killed or strand.killed:
            work.close()
            raise Killed
        strand.work = work
        assert ours.parent is not None
        ours.parent.switch()
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
        """Called by the simulation: the program never goes on; it unwinds now."""
        self._killed = True
        for strand in list(self._strands.values()):
            self._unwind(strand)
        if not self.ended.done():
            self.ended.set_result(None)

    def _start(self, work: Callable[[], object], over: Callable[[_Strand], object]) -> _Strand:
        """A new strand. `over`: called in it at its end, unless the program was killed."""
        strand = _Strand()

        def run() -> None:
            try:
                if not (self._killed or strand.killed):
                    strand.result = work()
            except Killed:
                strand.error = None
            except BaseException as raised:  # noqa: BLE001  # whatever it is, whoever asks for the result is told
                strand.error = raised
            strand.work = None
            strand.is_over = True
            del self._strands[turns]
            if not (self._killed or strand.killed):
                over(strand)

        strand.turns = turns = greenlet(run)
        self._strands[turns] = strand
        self._loop.call_soon(self._let_it_run, strand, context=self._context)
        return strand

    def _let_it_run(self, strand: _Strand, task: "asyncio.Task[Any] | None" = None) -> None:
        if self._killed or strand.killed:
            return
        strand.task = task
        self._hand_over(strand)
        if strand.work is not None:
            work, strand.work = strand.work, None
            waiting = self._loop.create_task(work, context=self._context)
            strand.task = waiting
            waiting.add_done_callback(partial(self._let_it_run, strand), context=self._context)

    def _unwind(self, strand: _Strand) -> None:
        strand.killed = True
        if not strand.is_over:
            self._hand_over(strand)

    @staticmethod
    def _hand_over(strand: _Strand) -> None:
        """Returns when it waits, or is over."""
        assert strand.turns is not None
        strand.turns.parent = getcurrent()
        strand.turns.switch()

    def _end(self, error: BaseException | None) -> None:
        """The program's own strand is over, and so is its process: nobody does what is beside any more."""
        for strand in list(self._strands.values()):
            self._unwind(strand)
            if strand.task is not None:
                strand.task.cancel()
        self._loop.call_soon(self._say_it_has_ended, error)  # once what was beside has heard that it is cancelled

    def _say_it_has_ended(self, error: BaseException | None) -> None:
        if not self.ended.done():
            self.ended.set_result(error)
