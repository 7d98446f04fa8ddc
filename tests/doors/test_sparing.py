"""How often something is looked at beside training: by what a look takes."""

import pytest

from dipaco_swarm.machine.sparing import Sparing
from tests.clocks import HandClock

STEP, STEPS = 0.25, 400


@pytest.mark.parametrize(
    ("a_look", "every"),
    [(0.0, 1), (0.002, 1), (0.004, 2), (0.0065, 3), (0.5, 4)],  # the last: once a second, however long it takes
)
def test_the_longer_a_look_takes_the_fewer_steps_have_one(a_look: float, every: int) -> None:
    clock, looks = HandClock(), 0
    sparing = Sparing(clock, most=1.0)

    def look() -> bool:
        nonlocal looks
        looks += 1
        clock.now += a_look
        return True

    answers = []
    for _ in range(STEPS):
        answers.append(sparing.do(look, False))
        clock.now += STEP
    assert looks == answers.count(True) == STEPS // every + bool(STEPS % every)
    assert answers[:every] == [True, *[False] * (every - 1)]


def test_what_takes_no_time_is_done_no_more_often_than_is_wanted() -> None:
    clock = HandClock()
    sparing, done = Sparing(clock, least=0.5), list[float]()
    for _ in range(10):
        sparing.do(lambda: done.append(clock.now), None)
        clock.now += STEP
    assert len(done) == 5
