"""Going ahead of a round, and coming back."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dipaco_swarm.algorithm import eager
from dipaco_swarm.algorithm.eager import come_back, way_ahead
from dipaco_swarm.algorithm.outer import OuterStep, nesterov_step, outer_gradient
from dipaco_swarm.algorithm.state import ModuleState


@given(seed=st.integers(0, 100), size=st.integers(1, 30), lr=st.floats(0.1, 1.0), momentum=st.floats(0.0, 0.95))
def test_the_way_leads_to_an_outer_step_of_ones_own_and_back(seed: int, size: int, lr: float, momentum: float) -> None:
    chance = torch.Generator().manual_seed(seed)
    params, velocity, part, moved = (torch.randn(size, generator=chance) for _ in range(4))
    base, step = ModuleState(3, params, velocity, work=1), OuterStep(lr, momentum)
    expected, _ = nesterov_step(params, velocity, outer_gradient(params, part), step)
    way = way_ahead(base, part, step)
    torch.testing.assert_close(part + way(slice(0, size)), expected, rtol=1e-5, atol=1e-5)
    ahead = part + moved + way(slice(0, size))
    torch.testing.assert_close(come_back(ahead, way), part + moved, rtol=1e-5, atol=1e-5)


def test_pieces_give_what_the_whole_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    params, velocity, part = (torch.randn(1000) for _ in range(3))
    way = way_ahead(ModuleState(3, params, velocity, work=1), part, OuterStep(0.7, 0.3))
    whole = come_back(part.clone(), way)
    monkeypatch.setattr(eager, "PIECE", 7)
    torch.testing.assert_close(come_back(part.clone(), way), whole, rtol=0, atol=1e-6)
