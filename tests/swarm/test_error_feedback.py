"""What a lossy codec leaves unsent is sent with the next outer gradient, also after a restart, and never twice."""

import pytest
import torch
from torch import Tensor

from dipaco_swarm.algorithm.paths import ModuleId, PathIndex
from dipaco_swarm.swarm.interface import Agreed, Announcement, Contribution, ModuleGroup, Residual, Swarm

from .conftest import MakeSwarms

MODULE = ModuleId(0, 0)
PATH = PathIndex(0)
GROUP = ModuleGroup(0, MODULE, {PATH: 1.0})
DIGEST = "d" * 64
GRADIENTS = [torch.randn(5000, generator=torch.Generator().manual_seed(i)) for i in range(2)]


@pytest.fixture
def swarm(make_local_swarms: MakeSwarms) -> Swarm:
    return make_local_swarms(1)[0]


def begin(swarm: Swarm, codec: str) -> None:
    """A life: the rules are learned, and nothing is known of an earlier one."""
    swarm.configure_rounds(codec, 4.0)


def average(swarm: Swarm, version: int) -> Tensor:
    """A round of a peer alone, from this version."""
    swarm.announce([Announcement(swarm.peer, 0, MODULE, PATH, version, DIGEST)], [GROUP])
    part = Contribution(group=GROUP, path=PATH, version=version, gradient=GRADIENTS[version], tokens=1, digest=DIGEST)
    outcome = swarm.all_reduce([part], patience=5.0)[MODULE]
    assert isinstance(outcome, Agreed), outcome
    return outcome.mean


@pytest.mark.parametrize("codec", ["bf16", "int8", "int4", "e3m0"])
def test_what_is_left_unsent_goes_with_the_next_outer_gradient_also_after_a_restart(swarm: Swarm, codec: str) -> None:
    begin(swarm, codec)
    first = average(swarm, 0)
    kept = swarm.residuals(0, PATH)
    assert kept[MODULE].version == 1
    second = average(swarm, 1)
    left = swarm.residuals(0, PATH)[MODULE].vector
    torch.testing.assert_close(first + second + left, GRADIENTS[0] + GRADIENTS[1], rtol=0, atol=1e-5)

    begin(swarm, codec)
    assert swarm.residuals(0, PATH) == {}
    forgetful = average(swarm, 1)
    assert not torch.equal(forgetful, second)

    begin(swarm, codec)
    swarm.resume_residuals(0, PATH, kept)
    assert torch.equal(average(swarm, 1), second)


@pytest.mark.parametrize(("version", "path"), [(0, 0), (2, 0), (1, 1)], ids=["older", "newer", "of another path"])
def test_a_residual_counts_only_with_the_version_and_path_that_it_belongs_to(
    swarm: Swarm, version: int, path: int
) -> None:
    begin(swarm, "int8")
    alone = average(swarm, 1)
    begin(swarm, "int8")
    swarm.resume_residuals(0, PathIndex(path), {MODULE: Residual(version, torch.ones(5000))})
    assert torch.equal(average(swarm, 1), alone)
    assert list(swarm.residuals(0, PATH)) == [MODULE]
    assert swarm.residuals(0, PATH)[MODULE].version == 2
    assert swarm.residuals(0, PathIndex(1)) == {}  # one path is trained; of others nothing is kept


def test_an_exact_codec_leaves_nothing(swarm: Swarm) -> None:
    begin(swarm, "fp32")
    swarm.resume_residuals(0, PATH, {MODULE: Residual(0, torch.ones(5000))})
    assert torch.equal(average(swarm, 0), GRADIENTS[0])
    assert swarm.residuals(0, PATH) == {}
