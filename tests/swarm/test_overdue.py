"""When a round that its leader does not end is given up."""

from itertools import count

import pytest

from dipaco_swarm.swarm.round.overdue import LONGEST, MOST_DROPS, USUAL_LINE, Moved, NeverEndsError, Overdue
from dipaco_swarm.swarm.timing import Timing

TIMING = Timing()
STILL = TIMING.standstill + TIMING.silence


def overdue(patience: float = 3.0, size: int = 0, *, whole: bool = False) -> Overdue:
    return Overdue(0.0, patience, size, TIMING, whole=whole)


def lasts(it: Overdue, moved: dict[int, Moved]) -> int:
    """Seconds until it is given up. `moved`: second -> how far it has come by then."""
    so_far = Moved(0, 0, is_ready=False)
    for now in count():
        so_far = moved.get(now, so_far)
        try:
            it.check(float(now), so_far)
        except NeverEndsError:
            return now
    raise AssertionError


def pieces(number: int, generation: int = 0, *, is_ready: bool = False) -> Moved:
    return Moved(number, generation, is_ready)


def test_a_round_in_which_no_piece_moves_is_given_up() -> None:
    assert lasts(overdue(), {}) == STILL + 1
    assert lasts(overdue(300.0), {}) == 301, "who trains long waits as long"
    assert lasts(overdue(size=200 * USUAL_LINE), {}) == 401, "so does who has a large module, as a newcomer too"


def test_pieces_that_move_give_it_four_times_what_they_took() -> None:
    assert lasts(overdue(), {2: pieces(1), 20: pieces(2)}) == 20 + 80 + 1
    assert lasts(overdue(), {2: pieces(1)}) == 2 + STILL + 1


def test_that_pieces_go_and_come_again_is_no_movement() -> None:
    assert lasts(overdue(), {n: pieces(3 + n % 2) for n in range(1, 1000)}) == 1 + STILL + 1


def test_who_waits_for_what_is_made_anew_waits_from_then_on() -> None:
    # ready at 80 s; at 420 s the leader drops one that is slow, and the last piece is made anew
    story = {n: pieces(n) for n in range(80)} | {80: pieces(80, is_ready=True), 420: pieces(79, generation=1)}
    assert lasts(overdue(40.0), story) > 420 + 80, "as long as it took the first time"
    twice = {n: pieces(n) for n in range(11)} | {
        40: pieces(9, generation=1),
        45: pieces(10, generation=1),
        82: pieces(8, generation=2),
    }
    assert lasts(overdue(), twice) > 82 + STILL


def test_that_somebody_is_dropped_puts_the_end_off_some_times_and_not_for_ever() -> None:
    dropping = {20 * n: pieces(0, generation=n) for n in range(1000)}
    assert lasts(overdue(), dropping) == min(20 * MOST_DROPS + STILL, LONGEST * STILL) + 1


def test_a_piece_now_and_then_puts_the_end_off_not_for_ever() -> None:
    assert lasts(overdue(), {20 * n: pieces(n) for n in range(1000)}) == LONGEST * STILL + 1


@pytest.mark.parametrize(("whole", "more"), [(False, 10 * 4 + TIMING.leader_grace), (True, 600.0)])
def test_who_is_ready_waits_ten_times_as_long_as_it_took(whole: bool, more: float) -> None:
    story = {n: pieces(n) for n in range(4)} | {4: pieces(4, is_ready=True)}
    assert lasts(overdue(600.0, whole=whole), story) == 4 + more + 1
