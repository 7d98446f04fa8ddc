"""Keys at a terminal of its own: a program hears them, and gives the terminal back on every way out."""

import os
import pty
import select
import signal
import subprocess
import sys
import termios
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass

import pytest

from dipaco_swarm.machine.keys import Keys, listening
from dipaco_swarm.machine.stopping import Stopping

ALONE = """
import fcntl, os, termios
os.setsid()
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
"""
PROGRAM = """
import os, signal, sys
from dipaco_swarm.machine.keys import listening
from dipaco_swarm.machine.stopping import stopping_on_signals
def say(word): os.write(1, (word + "\\n").encode())
with stopping_on_signals() as stop, listening(stop) as keys:
    keys.on("d", lambda: say("details"))
    keys.on("q", stop.request)
    say("ready")
    stop.wait(60)
    say("stops")
    {then}
"""


SHELL = """
import fcntl, os, signal, termios
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
os.setsid()
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
if job := os.fork():
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    os.setpgid(job, job)
    os.tcsetpgrp(0, job)
    os.waitpid(job, os.WUNTRACED)
    os.write(1, b"asleep")
    signal.sigwait([signal.SIGUSR1])
    os.kill(job, signal.SIGCONT)
    os._exit(os.waitstatus_to_exitcode(os.waitpid(job, 0)[1]))
signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGUSR1])
os.setpgid(0, 0)
signal.signal(signal.SIGTTOU, signal.SIG_IGN)
os.tcsetpgrp(0, os.getpid())
signal.signal(signal.SIGTTOU, signal.SIG_DFL)
"""
"""What a shell does that has started a job; only such a job can be sent to sleep."""


@dataclass
class Program:
    process: "subprocess.Popen[bytes]"
    terminal: int
    """Our end of it."""
    said: str = ""

    def hears(self, keys: str) -> None:
        os.write(self.terminal, keys.encode())

    def says(self, word: str) -> None:
        while word not in self.said:
            assert select.select([self.terminal], [], [], 60)[0], self.said
            self.said += os.read(self.terminal, 1024).decode()

    @property
    def waits_for_lines(self) -> bool:
        lines, echo = termios.ICANON, termios.ECHO
        flags: int = termios.tcgetattr(self.terminal)[3]
        return flags & (lines | echo) == lines | echo


@contextmanager
def at_a_terminal(then: str = "pass", begin: str = ALONE) -> Iterator[Program]:
    ours, its = pty.openpty()
    program = begin + PROGRAM.format(then=then)
    with closing(os.fdopen(ours, "rb", buffering=0)), closing(os.fdopen(its, "rb", buffering=0)):
        process = subprocess.Popen([sys.executable, "-c", program], stdin=its, stdout=its, stderr=its)
        try:
            yield Program(process, ours)
        finally:
            process.kill()
            process.wait()


def test_a_key_is_heard_without_enter_and_is_not_echoed() -> None:
    with at_a_terminal() as program:
        program.says("ready")
        assert not program.waits_for_lines
        program.hears("d")
        program.says("details")
        program.hears("xq")
        program.says("stops")
        assert program.process.wait(60) == 0
        assert program.waits_for_lines
        assert "x" not in program.said


@pytest.mark.parametrize(
    ("then", "keys", "code"),
    [
        ("raise RuntimeError", "q", 1),
        ("signal.pause()", "\x03\x03", 130),  # the second Ctrl+C does not wait for anything
        ("pass", "\x1c", -signal.SIGQUIT),
        ("sys.exit(3)", "\x03", 3),
    ],
)
def test_the_terminal_is_given_back_however_the_program_ends(then: str, keys: str, code: int) -> None:
    with at_a_terminal(then) as program:
        program.says("ready")
        for key in keys:
            program.hears(key)
            if code != -signal.SIGQUIT:
                program.says("stops")
        assert program.process.wait(60) == code
        assert program.waits_for_lines


def test_who_is_sent_to_sleep_gives_it_back_and_takes_it_again() -> None:
    with at_a_terminal(begin=SHELL) as program:
        program.says("ready")
        program.hears("\x1a")
        program.says("asleep")
        assert program.waits_for_lines
        program.process.send_signal(signal.SIGUSR1)
        program.hears("d")
        program.says("details")
        assert not program.waits_for_lines
        program.hears("q")
        assert program.process.wait(60) == 0
        assert program.waits_for_lines


def test_where_there_is_no_terminal_nobody_listens() -> None:
    read, write = os.pipe()
    with closing(os.fdopen(read)), closing(os.fdopen(write, "w")), listening(Stopping(), terminal=read) as keys:
        assert keys is None
    with listening(Stopping(), wanted=False) as keys:
        assert keys is None


def test_an_unknown_key_does_nothing() -> None:
    pressed: list[str] = []
    keys = Keys()
    keys.on("p", lambda: pressed.append("p"))
    keys.press("x")
    keys.press("p")
    assert pressed == ["p"]
