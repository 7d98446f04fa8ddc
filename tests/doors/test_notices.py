"""Faults that last, and clocks that jump, as a volunteer reads about them."""

import errno
from pathlib import Path

import pytest

from dipaco_swarm.errors import cannot_write
from dipaco_swarm.events.event import Event
from dipaco_swarm.events.volunteer import BootstrapSilent, CannotWrite, ClockSet, Recovered, Slept
from dipaco_swarm.events.words import how_long
from dipaco_swarm.machine.notices import Notices
from dipaco_swarm.machine.sleep import SleepDetector


class SetClock:
    """A clock that stands where the test has set it."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.wall_now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def boottime(self) -> float:
        return self.now

    def wall(self) -> float:
        return self.wall_now


def test_a_fault_that_lasts_is_said_once_a_minute_and_once_when_it_is_over() -> None:
    said: list[Event] = []
    clock = SetClock()
    notices = Notices(said.append, clock)
    full = CannotWrite(error="the disk is full")
    for _ in range(180):
        notices.failing("disk", full)
        clock.now += 1
    notices.recovered("disk", Recovered("disk"))
    notices.recovered("disk", Recovered("disk"))
    assert said == [full, full.after(60), full.after(120), Recovered("disk")]
    assert list(map(str, said)) == [
        "the disk is full; training goes on",
        "the disk is full; training goes on (for 60 s now)",
        "the disk is full; training goes on (for 2 min now)",
        "the disk has room again",
    ]


def test_a_fault_that_passes_soon_is_not_said_at_all() -> None:
    said: list[Event] = []
    clock = SetClock()
    notices = Notices(said.append, clock)
    for _ in range(2):
        notices.failing("bootstrap", BootstrapSilent(alone=True), after=10)
        clock.now += 9
        notices.failing("bootstrap", BootstrapSilent(alone=True), after=10)
        notices.recovered("bootstrap", Recovered("bootstrap"))
    assert said == []


def test_durations_are_for_people() -> None:
    assert [how_long(seconds) for seconds in (9.6, 99, 180, 5400, 10_800)] == ["10 s", "99 s", "3 min", "90 min", "3 h"]


def test_time_that_passed_without_us_is_told_from_a_clock_that_was_set() -> None:
    clock = SetClock()
    detector = SleepDetector(clock)

    def pass_time(seconds: float, *, wall_too: float | None = None) -> None:
        clock.now += seconds
        clock.wall_now += seconds if wall_too is None else wall_too

    for _ in range(60):  # as long as somebody looks each second, a minute is no sleep
        pass_time(1)
        assert detector.missed() is None
    pass_time(180)
    missed = detector.missed()
    assert missed is not None
    assert missed.events == (Slept(180),)
    assert detector.missed() is None

    pass_time(1, wall_too=-3599)
    missed = detector.missed()
    assert missed is not None
    assert missed.events == (ClockSet(-3600),)
    pass_time(7200, wall_too=7200 + 3600)  # asleep, and set right while it slept
    missed = detector.missed()
    assert missed is not None
    assert missed.events == (Slept(7200), ClockSet(3600))


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device"), ValueError("I/O (os error 28)")])
def test_a_full_disk_is_named_with_what_to_do(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    assert (
        str(cannot_write("the checkpoint", Path("/home/me/.local/share/dipaco/small/peer"), error))
        == "the disk of ~/.local/share/dipaco/small/peer is full: make room there for the checkpoint"
    )
    other = str(cannot_write("a module", Path("/data"), OSError(errno.EROFS, "Read-only file system")))
    assert other.startswith("a module cannot be written to /data: Read-only file system; make room there")
