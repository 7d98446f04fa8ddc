"""When a round that its leader does not end is given up."""

from itertools import count

import pytest

from dipaco_swarm.swarm.round.overdue import Overdue
from dipaco_swarm.swarm.timing import Timing

TIMING = Timing()
STILL = TIMING.standstill + TIMING.silence


def lasts(overdue: Overdue, moved: dict[int, int], ready_from: float = float("inf")) -> int:
    """Seconds until it is given up. `moved`: second -> pieces that have moved by then."""
    so_far = 0
    for now in count():
        so_far = max(so_far, moved.get(now, 0))
        try:
            overdue.check(float(now), so_far, is_ready=now >= ready_from)
        except TimeoutError:
            return now
    raise AssertionError


def test_a_round_in_which_no_piece_moves_is_given_up() -> None:
    assert lasts(Overdue(0.0, 3.0, TIMING, whole=False), {}) == STILL + 1
    assert lasts(Overdue(0.0, 300.0, TIMING, whole=False), {}) == 301, "on slow lines rounds take longer"


def test_pieces_that_move_give_it_four_times_what_they_took() -> None:
    assert lasts(Overdue(0.0, 3.0, TIMING, whole=False), {2: 1, 20: 2}) == 20 + 80 + 1
    assert lasts(Overdue(0.0, 3.0, TIMING, whole=False), {2: 1}) == 2 + STILL + 1


def test_that_pieces_go_and_come_again_is_no_movement() -> None:
    overdue = Overdue(0.0, 3.0, TIMING, whole=False)
    for now in range(int(STILL)):
        overdue.check(float(now), 3 + now % 2, is_ready=False)
    with pytest.raises(TimeoutError, match="decides nothing"):
        overdue.check(2 + STILL, 3, is_ready=False)


@pytest.mark.parametrize(("whole", "more"), [(False, 10 * 4 + TIMING.leader_grace), (True, 600.0)])
def test_who_is_ready_waits_ten_times_as_long_as_it_took(whole: bool, more: float) -> None:
    overdue = Overdue(0.0, 600.0, TIMING, whole=whole)
    assert lasts(overdue, {n: n for n in range(4)}, ready_from=4) == 4 + more + 1
