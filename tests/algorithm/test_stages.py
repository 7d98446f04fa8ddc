"""When a stage ends that its operator wants to end."""

import pytest

from dipaco_swarm.algorithm.paths import ModuleId
from dipaco_swarm.algorithm.stages import soonest_end

MODULES = (ModuleId(0, 0), ModuleId(0, 1), ModuleId(1, 0), ModuleId(1, 1))


@pytest.mark.parametrize(
    ("versions", "trained", "ends"),
    [
        pytest.param((7, 7, 8, 8), "1111", 10, id="all are trained: with the rounds that are under way"),
        pytest.param((7, 3, 8, 5), "1010", 3, id="what nobody trains comes no further"),
        pytest.param((3, 7, 8, 5), "0111", 3, id="nor does one module"),
        pytest.param((7, 7, 8, 8), "0000", 7, id="nobody is there"),
        pytest.param((7, 0, 8, 5), "1010", 1, id="what was never trained has to be, once"),
        pytest.param((7, 0, 8, 5), "0000", 0, id="not yet"),
    ],
)
def test_a_stage_is_ended_as_soon_as_it_can(versions: tuple[int, ...], trained: str, ends: int) -> None:
    now = {module for module, mark in zip(MODULES, trained, strict=True) if mark == "1"}
    assert soonest_end(dict(zip(MODULES, versions, strict=True)), now, under_way=2) == ends
