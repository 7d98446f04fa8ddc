"""How the work of a reduce is divided among lines of different speed."""

import pytest

from dipaco_swarm.swarm.round.reduction import MOST_OF_A_REDUCER, piece_owners, reducer_shares
from dipaco_swarm.swarm.traffic import UPLINK_BYTES, Meter, Purpose
from tests.clocks import HandClock


def seconds(shares: dict[int, float], uplinks: dict[int, float], members: int) -> list[float]:
    """How long each reducer sends, for a vector of one byte."""
    return [(1 + share * (members - 2)) / uplinks[i] for i, share in shares.items()]


@pytest.mark.parametrize(
    "uplinks",
    [
        dict.fromkeys(range(4), 5.0),
        {0: 1.0, 1: 2.0, 2: 10.0},
        {0: 2.5, 1: 5.0, 2: 12.5, 3: 12.5, 4: 0.1},
        {i: 1.0 + i for i in range(50)},
    ],
)
def test_reducers_are_done_at_the_same_time_and_slow_lines_reduce_nothing(uplinks: dict[int, float]) -> None:
    members = len(uplinks) + 2  # two that nobody can dial
    shares = reducer_shares(uplinks, members)
    assert sum(shares.values()) == pytest.approx(1)
    times = seconds(shares, uplinks, members)
    most = MOST_OF_A_REDUCER / len(uplinks)
    assert max(shares.values()) <= most * 1.001
    reducing = [time for time, share in zip(times, shares.values(), strict=True) if 0 < share < 0.999 * most]
    assert max(reducing) == pytest.approx(min(reducing))
    # whoever reduces nothing needs longer for its own contribution alone
    assert all(1 / uplinks[i] >= max(reducing) * 0.999 for i, share in shares.items() if share == 0)
    equal = seconds(dict.fromkeys(uplinks, 1 / len(uplinks)), uplinks, members)
    assert max(reducing) <= max(equal) * 1.001


def test_who_says_that_its_line_has_no_end_reduces_twice_its_part_and_no_more() -> None:
    shares = reducer_shares({0: 1.0, 1: 1e12, 2: 1.0, 3: 1.0, 4: 1.0}, 5)
    assert shares[1] == pytest.approx(2 / 5)
    assert [shares[i] for i in (0, 2, 3, 4)] == pytest.approx([3 / 20] * 4)


def test_lines_of_unknown_speed_count_as_usual_ones() -> None:
    assert reducer_shares({0: 0.0, 1: 0.0, 2: 0.0}, 3) == pytest.approx(dict.fromkeys(range(3), 1 / 3))
    shares = reducer_shares({0: 0.0, 1: 8.0, 2: 8.0, 3: 0.5}, 4)
    assert shares[0] == pytest.approx(shares[1])
    assert shares[3] == 0


def test_pieces_follow_the_shares_and_come_in_turns() -> None:
    owners = piece_owners(100 * 1024, 1024, {0: 0.5, 2: 0.3, 5: 0.2})
    assert [owners.count(i) for i in (0, 2, 5)] == [50, 30, 20]
    assert [owners[:10].count(i) for i in (0, 2, 5)] == [5, 3, 2]
    assert piece_owners(3000, 1024, {1: 0.5, 4: 0.5}) == (1, 4, 1)
    assert piece_owners(5000, 1024, {1: 0.0, 4: 1.0}) == (4,) * 5


def test_the_speed_of_the_line_is_what_it_took_lately() -> None:
    clock = HandClock()
    meter = Meter(clock)

    def send(size: int, seconds: float) -> None:
        with meter.sending(), meter.sending():  # two streams at once share the line
            clock.now += seconds
            meter.note_sent(Purpose.ROUND, size)
        clock.now += 100  # nobody waits for the line then

    send(UPLINK_BYTES // 2, 0.001)
    assert meter.uplink == 0  # all of it may still be in buffers
    for _ in range(40):
        send(4_000_000, 2.0)
    assert meter.uplink == pytest.approx(2e6, rel=0.05)
    for _ in range(40):
        send(4_000_000, 8.0)
    assert meter.uplink == pytest.approx(5e5, rel=0.1)
