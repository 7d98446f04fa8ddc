"""Single keys of whoever sits at the terminal, heard at once and not echoed; Ctrl+C stays what it is.

The terminal is given back as it was on every way out that a program has: the end of the block, an error, a second
Ctrl+C, Ctrl+Z and Ctrl+\\. Who starts the program in the background is not disturbed: nothing is read there.
"""

import os
import select
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from types import FrameType
from typing import Any

from dipaco_swarm.machine.stopping import Stopping

if sys.platform != "win32":
    import termios
    import tty

AWAY_SECONDS = 1.0
"""Until it is looked again whether we are in the foreground, when somebody types and we are not."""
SHOW_CURSOR = b"\x1b[?25h"


class Keys:
    """What is to be done when a key is pressed; it is done in a thread of its own."""

    def __init__(self) -> None:
        self._handlers: dict[str, Callable[[], None]] = {}

    def on(self, key: str, handler: Callable[[], None]) -> None:
        self._handlers[key] = handler

    def press(self, key: str) -> None:
        """A key that nothing is known about does nothing."""
        if (handler := self._handlers.get(key)) is not None:
            handler()


@contextmanager
def listening(stop: Stopping, *, wanted: bool = True, terminal: int | None = None) -> Iterator[Keys | None]:
    """Within the block keys of this terminal are heard. None where there is no terminal, or nobody wants it.

    `stop`: of the program, which may end at once. `terminal`: a file descriptor; None: where the program's input comes
    from.
    """
    descriptor = _input() if terminal is None else terminal
    if not wanted or descriptor is None or sys.platform == "win32" or not os.isatty(descriptor):
        yield None
        return
    keys = Keys()
    with ExitStack() as stack:
        held = _Held(descriptor)
        stack.callback(held.give_back)
        held.take()
        stop.before_a_sudden_end(held.give_back_at_once)
        stack.enter_context(_signals(held))
        ended, end = os.pipe()
        stack.callback(os.close, ended)
        thread = threading.Thread(target=_listen, args=(descriptor, ended, keys), name="keys", daemon=True)
        thread.start()
        stack.callback(thread.join)
        stack.callback(os.close, end)  # which the thread sees
        yield keys


class _Held:
    """A terminal whose lines we do not wait for."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._before: list[Any] = termios.tcgetattr(descriptor)

    def take(self) -> None:
        if _in_foreground(self._descriptor):  # else we would be stopped for it
            tty.setcbreak(self._descriptor, termios.TCSADRAIN)

    def give_back(self) -> None:
        if _in_foreground(self._descriptor):
            with suppress(termios.error):  # the terminal is gone
                termios.tcsetattr(self._descriptor, termios.TCSADRAIN, self._before)

    def give_back_at_once(self) -> None:
        """Where nothing else is run any more: the cursor, too, which whoever draws has hidden."""
        self.give_back()
        with suppress(OSError):
            os.write(self._descriptor, SHOW_CURSOR)


@contextmanager
def _signals(held: _Held) -> Iterator[None]:
    """Ctrl+Z and Ctrl+\\ do what they do, with the terminal as it was before."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(number: int, frame: FrameType | None) -> None:
        held.give_back_at_once()
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)  # here we stand still, after Ctrl+Z, until we are woken
        signal.signal(number, handle)
        held.take()

    before = {number: signal.signal(number, handle) for number in (signal.SIGTSTP, signal.SIGQUIT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _listen(descriptor: int, ended: int, keys: Keys) -> None:
    while True:
        ready, _, _ = select.select([descriptor, ended], [], [])
        if ended in ready:
            return
        if not _in_foreground(descriptor):  # what is typed is for somebody else
            if select.select([ended], [], [], AWAY_SECONDS)[0]:
                return
            continue
        try:
            typed = os.read(descriptor, 64)
        except OSError:
            return  # the terminal is gone
        if not typed:
            return
        for key in typed.decode(errors="replace"):
            keys.press(key)


def _in_foreground(descriptor: int) -> bool:
    try:
        return os.tcgetpgrp(descriptor) == os.getpgrp()
    except OSError:
        return False


def _input() -> int | None:
    try:
        return sys.stdin.fileno()
    except (AttributeError, ValueError, OSError):
        return None  # closed, or not a file
