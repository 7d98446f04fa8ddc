"""How long peers are waited for, by how they have answered."""

import pytest

from dipaco_swarm.swarm.round.failure_detector import FailureDetector
from dipaco_swarm.swarm.timing import Timing
from dipaco_swarm.swarm.transport import NotAnswering
from tests.clocks import HandClock

TIMING = Timing()


def clocked() -> tuple[HandClock, FailureDetector]:
    clock = HandClock()
    return clock, FailureDetector(clock, TIMING)


def test_who_is_silent_twice_is_missed_until_it_speaks() -> None:
    clock, detector = clocked()
    assert detector.allowed("a") == TIMING.answer
    asked, clock.now = clock.now, clock.now + 4
    detector.silent("a", asked)
    assert detector.doubts("a")
    assert not detector.misses("a")
    assert detector.allowed("a") == 2 * TIMING.answer
    detector.silent("a", asked)  # of another module, at the same time: the same silence
    assert not detector.misses("a")
    asked, clock.now = clock.now + 1, clock.now + 9
    detector.silent("a", asked)
    assert detector.misses("a")
    assert not detector.doubts("b")
    detector.heard("a")
    assert not detector.doubts("a")


def test_silence_is_forgotten_or_two_that_were_parted_would_never_speak_again() -> None:
    clock, detector = clocked()
    for _ in range(3):
        clock.now += 10
        detector.silent("a", clock.now - 5)
    assert detector.misses("a")
    clock.now += TIMING.forget_silence
    assert not detector.doubts("a")
    detector.silent("a", clock.now - 5)
    assert not detector.misses("a")


def test_a_silence_is_known_for_long_of_those_who_are_asked_once() -> None:
    clock, detector = clocked()
    clock.now += 10
    assert not detector.was_silent("a")
    detector.silent("a", clock.now - 1)
    clock.now += 10 * TIMING.forget_silence
    assert detector.was_silent("a")
    assert not detector.doubts("a")
    detector.heard("a")
    assert not detector.was_silent("a")
    detector.silent("b", clock.now - 1)
    clock.now += TIMING.long_ago
    assert not detector.was_silent("b")


def test_who_left_in_silence_is_not_remembered_for_ever() -> None:
    clock, detector = clocked()
    for i in range(1000):
        clock.now += 10
        detector.silent(f"peer {i}", clock.now - 5)
    assert len(detector._silences) <= TIMING.long_ago / 10
    assert detector.doubts("peer 999")


@pytest.mark.parametrize(
    ("errors", "gone"),
    [
        ([ConnectionRefusedError] * 4, True),
        ([ConnectionRefusedError, NotAnswering, NotAnswering, ConnectionRefusedError], True),
        ([ConnectionRefusedError] * 3, False),  # not for long enough
        ([NotAnswering] * 100, False),  # slow, as far as anybody knows
        ([ConnectionRefusedError, ConnectionRefusedError, TimeoutError, ConnectionRefusedError], False),  # was there
    ],
)
def test_gone_is_who_cannot_be_dialled_and_not_who_is_silent(errors: list[type[Exception]], gone: bool) -> None:
    clock, detector = clocked()
    for error in errors:
        clock.now += TIMING.max_silence / 3
        detector.silent("a", clock.now - 1, error("no answer"))
    assert detector.is_gone("a") == gone
    detector.heard("a")
    assert not detector.is_gone("a")


def test_patience_follows_the_slowest_answers_of_late() -> None:
    _, detector = clocked()
    detector.answered("a", 3.0)
    assert detector.allowed("b") == pytest.approx(9.0)
    detector.answered("a", 0.1)
    assert TIMING.answer < detector.allowed("b") < 9.0
    detector.answered("a", 60.0)
    assert detector.allowed("b") == TIMING.max_answer
