"""How long peers are waited for, by how they have answered."""

import time

import pytest

from dipaco_swarm.swarm.round.channels import ASK_SECONDS, FORGET_SILENCE_SECONDS, MAX_ASK_SECONDS, Promptness


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(time, "monotonic", lambda: self.now)


def test_who_is_silent_twice_is_missed_until_it_speaks(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, promptness = Clock(monkeypatch), Promptness()
    assert promptness.allowed("a") == ASK_SECONDS
    asked, clock.now = clock.now, clock.now + 4
    promptness.silent("a", asked)
    assert promptness.doubts("a")
    assert not promptness.misses("a")
    assert promptness.allowed("a") == 2 * ASK_SECONDS
    promptness.silent("a", asked)  # of another module, at the same time: the same silence
    assert not promptness.misses("a")
    asked, clock.now = clock.now + 1, clock.now + 9
    promptness.silent("a", asked)
    assert promptness.misses("a")
    assert not promptness.doubts("b")
    promptness.heard("a")
    assert not promptness.doubts("a")


def test_silence_is_forgotten_or_two_that_were_parted_would_never_speak_again(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, promptness = Clock(monkeypatch), Promptness()
    for _ in range(3):
        clock.now += 10
        promptness.silent("a", clock.now - 5)
    assert promptness.misses("a")
    clock.now += FORGET_SILENCE_SECONDS
    assert not promptness.doubts("a")
    promptness.silent("a", clock.now - 5)
    assert not promptness.misses("a")


def test_patience_follows_the_slowest_answers_of_late() -> None:
    promptness = Promptness()
    promptness.answered("a", 3.0)
    assert promptness.allowed("b") == pytest.approx(9.0)
    promptness.answered("a", 0.1)
    assert ASK_SECONDS < promptness.allowed("b") < 9.0
    promptness.answered("a", 60.0)
    assert promptness.allowed("b") == MAX_ASK_SECONDS
