"""Whose averages are looked at for what they are: who makes something else of what it was sent; hardly anybody else."""

import itertools
from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from dipaco_swarm.swarm.round.suspecting import LONGEST_WAIT, Fit, Restraint, fit_of, odd_piece
from dipaco_swarm.testing import sabotage

PIECE = 4096
OWNERS = tuple(range(4)) * 4
"""Sixteen pieces, dealt out in turns."""
OURS, LIAR = 0, 2

Bend = Callable[[Tensor], Tensor]


def contributions(seed: int, alike: float) -> list[Tensor]:
    """Of four members. `alike`: what they have in common, of a length of one."""
    random = torch.Generator().manual_seed(seed)
    common = torch.randn(PIECE * len(OWNERS), generator=random)
    own = [torch.randn(len(common), generator=random) for _ in range(4)]
    return [alike * common + (1 - alike**2) ** 0.5 * each for each in own]


def fits_of(given: Sequence[Tensor], bend: Bend) -> dict[int, Fit]:
    """What we see where one reducer bends what it makes."""
    found = {}
    for piece, owner in enumerate(OWNERS):
        place = slice(piece * PIECE, (piece + 1) * PIECE)
        average = torch.stack([each[place] for each in given]).mean(0)
        found[piece] = fit_of(given[OURS][place], bend(average) if owner == LIAR else average)
    return found


@pytest.mark.parametrize("alike", [0.0, 0.3, 0.8])
@pytest.mark.parametrize("bend", [sabotage.flipped, sabotage.scaled, sabotage.partly_wrong, torch.zeros_like])
def test_who_makes_something_else_of_what_it_was_sent_is_odd(bend: Bend, alike: float) -> None:
    piece = odd_piece(fits_of(contributions(1, alike), bend), OWNERS, OURS)
    assert piece is not None
    assert OWNERS[piece] == LIAR


@pytest.mark.parametrize("alike", [0.0, 0.3, 0.8])
def test_who_makes_what_it_should_is_not(alike: float) -> None:
    for seed in range(20):
        assert odd_piece(fits_of(contributions(seed, alike), lambda average: average), OWNERS, OURS) is None


def test_of_its_pieces_the_oddest_is_looked_at() -> None:
    fits = dict.fromkeys(range(12), Fit(1.0, 4.0)) | {5: Fit(-2.0, 4.0), 9: Fit(-9.0, 4.0)}
    assert odd_piece(fits, tuple(range(4)) * 3, OURS) == 9


def test_of_two_reducers_we_know_that_we_are_honest_ourselves() -> None:
    owners, fits = (0, 1, 0, 1), {0: Fit(1.0, 2.0), 1: Fit(3.0, 2.0), 2: Fit(1.0, 2.0), 3: Fit(3.0, 2.0)}
    assert odd_piece(fits, owners, 0) == 1
    assert odd_piece(fits, owners, 1) == 0, "who lies suspects the other one, which costs a piece"
    assert odd_piece({1: fits[1], 3: fits[3]}, owners, 2) is None, "nothing to compare with"


def test_who_goes_against_all_others_can_say_nothing() -> None:
    assert odd_piece(dict.fromkeys(range(8), Fit(-1.0, 2.0)), tuple(range(4)) * 2, OURS) is None
    assert odd_piece({}, (0, 1), OURS) is None, "it is in no average"
    assert odd_piece(dict.fromkeys(range(8), Fit(0.0, 0.0)), tuple(range(4)) * 2, OURS) is None, "it sent nothing"


def test_what_was_suspected_in_vain_waits_longer_and_longer_and_not_for_ever() -> None:
    restraint, looked = Restraint(), []
    for number in range(100):
        if restraint.next_round():
            looked.append(number)
            restraint.followed()
    pauses = [after - before - 1 for before, after in itertools.pairwise(looked)]
    assert pauses[:5] == [1, 2, 4, 8, 16]
    assert set(pauses[5:]) <= {LONGEST_WAIT}


def test_it_is_ready_again_where_there_was_nothing_odd() -> None:
    restraint = Restraint()
    for _ in range(6):
        while not restraint.next_round():
            pass
        restraint.followed()
    for _ in range(LONGEST_WAIT):
        assert not restraint.next_round()
    assert all(restraint.next_round() for _ in range(5))
