"""What share of its time a peer trains, and what its line carries, as counted over its life."""

import pytest

from dipaco_swarm.events.usage import Usage, Worked
from dipaco_swarm.peer.usage import LATELY_SECONDS, MARK_SECONDS, UsageMeter
from dipaco_swarm.swarm.traffic import Meter, Purpose
from tests.clocks import HandClock


def train(meter: UsageMeter, clock: HandClock, steps: int, seconds: float, between: float = 0.0) -> list[Usage]:
    """So many steps with a pause before each; what was told meanwhile."""
    told = []
    for _ in range(steps):
        clock.now += between + seconds
        usage = meter.trained(seconds, 100)
        if usage is not None:
            told.append(usage)
    return told


def test_time_within_inner_steps_is_trained_and_the_rest_since_the_first_is_not() -> None:
    clock = HandClock()
    meter = UsageMeter(clock)
    clock.now += 1000  # joining, and reading documents
    assert meter.lately() is None
    assert meter.farewell() is None
    train(meter, clock, 30, 1.0)
    clock.now += 10
    usage = meter.so_far()
    assert (usage.seconds, usage.trained_seconds, usage.tokens) == (40.0, 30.0, 3000)
    assert usage.share == 0.75
    lately = meter.lately()
    assert lately is not None
    assert (lately.seconds, lately.share) == (40.0, 0.75)


def test_it_is_told_every_ten_seconds_of_training() -> None:
    clock = HandClock()
    told = train(UsageMeter(clock), clock, 60, 1.0)
    assert [usage.seconds for usage in told] == [MARK_SECONDS * count for count in range(1, 7)]


def test_lately_is_a_quarter_of_an_hour() -> None:
    clock = HandClock()
    meter = UsageMeter(clock)
    train(meter, clock, 600, 1.0, between=1.0)
    lately = meter.lately()
    assert lately is not None
    assert lately.share == pytest.approx(0.5, abs=0.02)
    train(meter, clock, 1000, 1.0)
    lately = meter.lately()
    assert lately is not None
    assert lately.share == 1.0
    assert LATELY_SECONDS <= lately.seconds <= LATELY_SECONDS + MARK_SECONDS
    assert meter.so_far().share == pytest.approx(1600 / 2200, abs=0.01)


def test_time_after_the_run_has_finished_counts_neither_way() -> None:
    clock = HandClock()
    meter = UsageMeter(clock)
    train(meter, clock, 90, 1.0)
    clock.now += 10
    meter.finished()
    clock.now += 36_000
    meter.finished()
    worked = meter.farewell()
    assert worked is not None
    assert worked.share == 0.9


def test_bytes_are_counted_by_purpose_over_all_openings_of_the_network() -> None:
    clock = HandClock()
    meter, first, second = UsageMeter(clock), Meter(clock), Meter(clock)
    meter.joined(first.traffic)
    first.note_received(Purpose.JOINING, 8_000)
    train(meter, clock, 100, 1.0)
    first.note_sent(Purpose.ROUND, 60_000)
    clock.now += 1.0
    lately = meter.lately()
    assert lately is not None
    assert lately.sent_per_second == pytest.approx(60_000 / 61, rel=0.2)  # of the last minute or so
    meter.joined(second.traffic)  # the daemon was lost
    second.note_sent(Purpose.ROUND, 1_000)
    second.note_sent(Purpose.VERSIONS, 500)
    usage = meter.so_far()
    assert usage.sent == {"round": 61_000, "versions": 500, "joining": 0, "reading": 0, "messages": 0}
    assert usage.received == {"round": 0, "versions": 0, "joining": 8_000, "reading": 0, "messages": 0}


def test_the_farewell_is_one_line() -> None:
    sent = {"round": 38_900_000, "versions": 2_100_000, "joining": 0, "messages": 12_000}
    worked = Worked(7500.0, 7200.0, 9_830_400, sent, {"round": 0, "joining": 8_600_000})
    assert str(worked) == (
        "trained 96 % of 2 h; sent 41.0 MB (round 38.9 MB, versions 2.1 MB, messages 12.0 kB); received joining 8.6 MB"
    )


def test_a_pause_that_the_owner_wants_counts_neither_way() -> None:
    clock = HandClock()
    meter = UsageMeter(clock)
    meter.away(is_away=True)
    clock.now += 50
    meter.away(is_away=False)
    train(meter, clock, 90, 1.0)
    clock.now += 10
    meter.away(is_away=True)
    clock.now += 3600
    assert meter.so_far().share == pytest.approx(0.9)
    meter.away(is_away=True)  # it is said again and again
    clock.now += 3600
    meter.away(is_away=False)
    assert meter.so_far().share == pytest.approx(0.9)
    train(meter, clock, 90, 1.0)
    clock.now += 10
    assert meter.so_far().share == pytest.approx(0.9)
    assert meter.so_far().seconds == pytest.approx(200)
