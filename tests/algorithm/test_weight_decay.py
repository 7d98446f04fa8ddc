"""What weight decay takes is no part of an outer gradient, and comes back with the average."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dipaco_swarm.algorithm.outer import OuterGradient
from dipaco_swarm.algorithm.weight_decay import NOTHING, WeightDecay, part_taken, usual_amount

PLACES = ((3, 0.0), (8, 1.0), (12, 4.0))
"""Behind the twelfth of sixteen parameters nothing decays."""


def test_what_only_decays_has_no_outer_gradient() -> None:
    before = torch.arange(1.0, 17.0)
    after = before.clone()
    after[3:8] -= before[3:8] * part_taken(0.125)
    after[8:12] -= before[8:12] * part_taken(0.5)
    gradient = OuterGradient(before, after, WeightDecay(0.125, PLACES))
    assert torch.allclose(gradient[:], torch.zeros(16), atol=1e-6)
    assert 1e4 * gradient[:].abs().sum() < OuterGradient(before, after)[:].abs().sum()


@given(
    start=st.integers(0, 16),
    length=st.integers(0, 16),
    amount=st.floats(0, 1),
    seed=st.integers(0, 1000),
)
def test_any_slice_is_a_slice_of_the_whole(start: int, length: int, amount: float, seed: int) -> None:
    before, after = torch.randn(2, 16, generator=torch.Generator().manual_seed(seed))
    decay = WeightDecay(amount, PLACES)
    here = slice(start, min(16, start + length))
    gradient = OuterGradient(before, after, decay)
    assert torch.equal(gradient[here], gradient[:][here])
    back = decay.put_on(gradient[here], before[here], start)
    assert torch.equal(back, decay.put_on(gradient[:], before, 0)[here])
    assert torch.allclose(back, (before - after)[here], atol=1e-5)


@pytest.mark.parametrize(("rate", "steps"), [(1e-5, 500), (1e-3, 100), (9e-3, 10), (9e-3, 20)])
def test_it_is_what_so_many_steps_take(rate: float, steps: int) -> None:
    assert part_taken(rate * steps) == pytest.approx(1 - (1 - rate) ** steps, rel=0.01)


def test_nobody_takes_all_of_a_weight() -> None:
    taken = WeightDecay(1.0, PLACES).put_on(torch.zeros(16), torch.ones(16), 0)
    assert taken.tolist() == pytest.approx([0.0] * 3 + [2 / 3] * 9 + [0.0] * 4)


def test_without_weight_decay_every_byte_is_as_it_was() -> None:
    before, after = torch.randn(2, 16)
    assert torch.equal(OuterGradient(before, after, WeightDecay(0.0, PLACES))[:], before - after)
    assert torch.equal(OuterGradient(before, after, NOTHING)[:], before - after)


@pytest.mark.parametrize(
    ("amounts", "voices", "usual"),
    [
        ([0.3], [1.0], 0.3),
        ([0.1, 1.0], [0.5, 0.5], 0.1),
        ([1.0, 0.1], [0.5, 0.5], 0.1),
        ([0.1, 0.2, 1.0], [1 / 3] * 3, 0.2),
        ([1.0, 1.0, 1.0, 0.1, 0.2], [0.1, 0.1, 0.1, 0.35, 0.35], 0.2),
        ([0.0, 0.2, 0.2], [0.4, 0.3, 0.3], 0.2),
    ],
)
def test_the_usual_amount_is_the_lower_median_by_voice(amounts: list[float], voices: list[float], usual: float) -> None:
    assert usual_amount(amounts, voices) == usual
