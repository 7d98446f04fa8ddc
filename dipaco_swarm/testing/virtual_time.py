"""Virtual time: an event loop that jumps from one event to the next.

Everything in a loop belongs to somebody: the *owner*, a name in a context variable. So a peer can be frozen, as by
SIGSTOP (its callbacks and timers wait), or killed, as by SIGKILL (they never run).
"""

import asyncio
import contextlib
import contextvars
import heapq
import sys
from collections import deque
from collections.abc import Callable, Coroutine, Generator, Iterator
from typing import Any, TypeVar, TypeVarTuple

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

OWNER: contextvars.ContextVar[str] = contextvars.ContextVar("owner", default="")
"""To whom a callback belongs; empty: to the simulation itself."""

EPOCH = 1_700_000_000.0
"""Wall time of a simulated machine with a right clock, when the loop stands at 0."""


END_ATTEMPTS = 100
"""A task that is cancelled may begin others; so often they are cancelled as well."""


MANY = 1000
"""Beyond that, timers that were cancelled and tasks that are done are cleared away when they are about half of all."""


CROWDED = 1_000_000
"""Callbacks in one virtual second; a thousand peers that start together need fewer."""


class Deadlock(RuntimeError):
    """Everybody waits, and nobody for time or for a message."""


class Livelock(RuntimeError):
    """Everybody is busy, and time does not go on."""


class _Handle(asyncio.Handle):
    __slots__ = ("owner",)

    def __init__(
        self, callback: Callable[..., object], args: tuple[Any, ...], loop: "VirtualLoop", context: Any
    ) -> None:
        context = context if context is not None else contextvars.copy_context()
        super().__init__(callback, args, loop, context)
        self.owner: str = context.get(OWNER, "")


class _Timer(asyncio.TimerHandle):
    __slots__ = ("owner",)

    def __init__(
        self, when: float, callback: Callable[..., object], args: tuple[Any, ...], loop: Any, context: Any
    ) -> None:
        context = context if context is not None else contextvars.copy_context()
        super().__init__(when, callback, args, loop, context)
        self.owner: str = context.get(OWNER, "")


class _Task(asyncio.Task[T]):
    """A task with a number: a set of tasks has the same order in every run, wherever in memory they are."""

    def __init__(self, coro: Coroutine[Any, Any, T], number: int, loop: "VirtualLoop", **options: Any) -> None:
        self._number = number  # first: asyncio puts the task into a set while it is made
        super().__init__(coro, loop=loop, **options)

    def __hash__(self) -> int:
        return self._number

    def __eq__(self, other: object) -> bool:
        return self is other


class VirtualLoop(asyncio.AbstractEventLoop):
    """An event loop without a clock and without sockets."""

    def __init__(self) -> None:
        self._now = 0.0
        self._count = 0
        self._ready: deque[_Handle | _Timer] = deque()
        self._timers: list[tuple[float, int, _Timer]] = []
        """When, and in which order they were set: a heap. Most timers are timeouts, and cancelled."""
        self._cancelled = 0
        """So many of them are cancelled."""
        self._parked: dict[str, list[_Handle | _Timer]] = {}
        """Owner that is frozen -> what would have run."""
        self._dead: set[str] = set()
        self._tasks: dict[asyncio.Task[Any], str] = {}
        """All that are not done, and some that are, and whose they are. Of the dead as well: their code must not run
        when the collector finds them."""
        self._many_tasks = MANY
        """With more of them, those that are done are let go."""
        self._running = False
        self._since_second = 0
        self.events = 0
        """Callbacks that have run."""
        self.after_each: Callable[[], None] | None = None
        """Called after every callback: invariants are looked at here."""
        self.unhandled: list[str] = []
        """What a task raised that nobody awaited."""

    # what asyncio asks of a loop -------------------------------------------------------------------------------------

    def time(self) -> float:
        return self._now

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return self._running

    def is_closed(self) -> bool:
        return False

    def create_future(self) -> "asyncio.Future[Any]":
        return asyncio.Future(loop=self)

    def create_task(self, coro: Any, **options: Any) -> "asyncio.Task[Any]":
        self._count += 1
        task: asyncio.Task[Any] = _Task(coro, self._count, self, **options)
        context = options.get("context")
        self._tasks[task] = (context.get(OWNER) if context is not None else None) or OWNER.get()
        if len(self._tasks) > self._many_tasks:
            self._tasks = {task: whose for task, whose in self._tasks.items() if not task.done()}
            self._many_tasks = 2 * len(self._tasks) + MANY
        return task

    def tasks_of(self, owner: str) -> list["asyncio.Task[Any]"]:
        """Its tasks that have not ended."""
        return [task for task, whose in self._tasks.items() if whose == owner and not task.done()]

    def call_soon(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        handle = _Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def call_soon_threadsafe(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: contextvars.Context | None = None
    ) -> asyncio.Handle:
        return self.call_soon(callback, *args, context=context)  # only one thread runs at any moment

    def call_later(
        self,
        delay: float,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        return self.call_at(self._now + delay, callback, *args, context=context)

    def call_at(
        self,
        when: float,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        self._count += 1
        timer = _Timer(when, callback, args, self, context)
        timer._scheduled = True  # type: ignore[attr-defined]
        heapq.heappush(self._timers, (when, self._count, timer))
        return timer

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        if not handle._scheduled:  # type: ignore[attr-defined]  # its turn has come already
            return
        self._cancelled += 1
        if self._cancelled > MANY and 2 * self._cancelled > len(self._timers):
            self._timers = [entry for entry in self._timers if not entry[2].cancelled()]
            heapq.heapify(self._timers)
            self._cancelled = 0

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if error is None and self._dead:
            return  # a task of somebody who was killed is gone without an end
        self.unhandled.append(f"{context.get('message')}: {error!r}")

    # running ---------------------------------------------------------------------------------------------------------

    def run_until_complete(self, future: "Generator[Any, None, T] | Coroutine[Any, Any, T] | asyncio.Future[T]") -> T:  # type: ignore[override]
        """Run until it is done. Raises Deadlock when nothing is left that could make it so."""
        with self._as_running_loop():
            task: asyncio.Future[T] = asyncio.ensure_future(future, loop=self)  # type: ignore[arg-type]
            while not task.done():
                self._run_one()
        return task.result()

    def end(self) -> None:
        """Cancel every task and let it end, those of the dead as well: nothing of a world is left behind."""
        self._dead.clear()
        for owner in list(self._parked):
            self.thaw(owner)
        self.after_each = None
        with self._as_running_loop():
            for _ in range(END_ATTEMPTS):
                left = [task for task in self._tasks if not task.done()]
                for task in left:
                    task.cancel()
                while self._ready:
                    self._run_one()
                if not left:
                    break
            for task in left:
                _unwind(task)
        self._timers.clear()

    @contextlib.contextmanager
    def _as_running_loop(self) -> Iterator[None]:
        before, hooks = asyncio._get_running_loop(), sys.get_asyncgen_hooks()
        asyncio._set_running_loop(self)
        sys.set_asyncgen_hooks(firstiter=None, finalizer=lambda generator: None)  # what the killed leave is not run
        self._running = True
        try:
            yield
        finally:
            self._running = False
            sys.set_asyncgen_hooks(*hooks)
            asyncio._set_running_loop(before)

    def _run_one(self) -> None:
        if not self._ready:
            self._jump()
        handle = self._ready.popleft()
        if handle.cancelled() or handle.owner in self._dead:
            return
        if handle.owner in self._parked:
            self._parked[handle.owner].append(handle)
            return
        self.events += 1
        self._since_second += 1
        if self._since_second > CROWDED:
            raise Livelock(f"{CROWDED:,} callbacks in the second before {self._now:.3f} s")
        handle._run()
        if self.after_each is not None:
            self.after_each()

    def _jump(self) -> None:
        while self._timers and self._timers[0][2].cancelled():
            heapq.heappop(self._timers)
            self._cancelled -= 1
        if not self._timers:
            raise Deadlock(f"nobody waits for time or for a message, at {self._now:.3f} s")
        before, self._now = self._now, max(self._now, self._timers[0][0])
        if int(self._now) > int(before):
            self._since_second = 0
        while self._timers and self._timers[0][0] <= self._now:
            timer = heapq.heappop(self._timers)[2]
            timer._scheduled = False  # type: ignore[attr-defined]
            if timer.cancelled():
                self._cancelled -= 1
            else:
                self._ready.append(timer)

    # owners ----------------------------------------------------------------------------------------------------------

    def freeze(self, owner: str) -> None:
        """Nothing of the owner runs until it is thawed; time goes on without it."""
        self._parked.setdefault(owner, [])

    def thaw(self, owner: str) -> None:
        self._ready.extend(self._parked.pop(owner, []))

    def is_frozen(self, owner: str) -> bool:
        return owner in self._parked

    def kill(self, owner: str) -> None:
        """Nothing of the owner ever runs again. Somebody who comes back needs another owner's name."""
        self._dead.add(owner)
        self._parked.pop(owner, None)


def _unwind(task: "asyncio.Task[Any]") -> None:
    """End the code of a task whose next step was dropped when its owner was killed: no loop ever gets to it.

    Else the collector would, with a warning: of what was never begun, and of what waits for something in its end.
    """
    with contextlib.suppress(BaseException):
        for _ in range(END_ATTEMPTS):
            task.get_coro().throw(asyncio.CancelledError())


def context_of(owner: str) -> contextvars.Context:
    """A context in which everything belongs to an owner."""
    context = contextvars.copy_context()
    context.run(OWNER.set, owner)
    return context


class VirtualClock:
    """The clocks of a simulated machine; `offset`: by how many seconds its wall clock is wrong."""

    def __init__(self, loop: asyncio.AbstractEventLoop, offset: float = 0.0) -> None:
        self._loop = loop
        self.offset = offset

    def monotonic(self) -> float:
        return self._loop.time()

    def boottime(self) -> float:
        return self._loop.time()

    def wall(self) -> float:
        return EPOCH + self._loop.time() + self.offset


class Inline:
    """`transport.Executor` that does its work at once; in virtual time arithmetic takes none."""

    async def in_order(self, work: Callable[..., T], *args: Any) -> T:
        await asyncio.sleep(0)
        return work(*args)

    aside = in_order

    def close(self) -> None:
        """Nothing is under way."""
