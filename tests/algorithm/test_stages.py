"""When a stage ends that its operator wants to end."""

import pytest

from dipaco_swarm.algorithm.paths import ModuleId
from dipaco_swarm.algorithm.stages import soonest_end

MODULES = (ModuleId(0, 0), ModuleId(0, 1), ModuleId(1, 0), ModuleId(1, 1))


@pytest.mark.parametrize(
    ("held", "trained", "ends"),
    [
        pytest.param("7788", "7788", 10, id="all are trained: with the rounds that are under way"),
        pytest.param("7777", "7978", 11, id="versions that are on their way to the node count"),
        pytest.param("7385", "7-8-", 3, id="what nobody trains comes no further"),
        pytest.param("3785", "-785", 3, id="nor does one module"),
        pytest.param("7788", "----", 7, id="nobody is there"),
        pytest.param("7085", "7-8-", 1, id="what was never trained has to be, once"),
        pytest.param("7085", "----", 0, id="not yet"),
    ],
)
def test_a_stage_is_ended_as_soon_as_it_can(held: str, trained: str, ends: int) -> None:
    """`held`: the node's versions. `trained`: the peers'; -: nobody trains that module."""
    ours, theirs = (
        {module: int(version) for module, version in zip(MODULES, versions, strict=True) if version != "-"}
        for versions in (held, trained)
    )
    assert soonest_end(ours, theirs, under_way=2) == ends
