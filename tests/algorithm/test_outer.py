import math

import pytest
import torch

from dipaco_swarm.algorithm.averaging.mean import weighted_sum
from dipaco_swarm.algorithm.averaging.radial import radial_average
from dipaco_swarm.algorithm.outer import (
    OuterStep,
    clip_factors,
    contribution_weights,
    effective_paths,
    nesterov_step,
    outer_gradient,
    rescale,
    trained_weights,
)
from dipaco_swarm.algorithm.paths import ModuleId, grid


def test_paths_count_by_their_share_of_the_documents() -> None:
    assert contribution_weights([0, 1], [10, 10], [0.3, 0.1]) == pytest.approx([0.75, 0.25])


def test_replicas_of_a_path_share_its_weight_by_their_tokens() -> None:
    weights = contribution_weights(["a", "b", "a"], [30, 500, 10], [0.5, 0.5, 0.5])
    assert weights == pytest.approx([0.375, 0.5, 0.125])  # a: half of all, split 30 to 10
    assert math.fsum(weights) == pytest.approx(1.0)


def test_replicas_without_tokens_count_equally() -> None:
    assert contribution_weights(["a", "a", "b"], [0, 0, 7], [1.0, 1.0, 2.0]) == pytest.approx([1 / 6, 1 / 6, 2 / 3])


def test_a_path_that_has_done_little_of_a_round_counts_little() -> None:
    paths, tokens = ["a", "b", "a", "c"], [700.0, 100.0, 500.0, 1000.0]
    weights = trained_weights(paths, tokens, [0.2, 0.4, 0.2, 0.3], round_tokens=1000)
    assert weights == pytest.approx([0.2, 0.04, 0.2, 0.3])  # a: its replicas together have done more than a round


def test_a_full_round_counts_exactly_as_the_shards_say() -> None:
    weights = [0.1, 0.7, 1 / 3]
    assert trained_weights(["a", "b", "c"], [512.0] * 3, weights, round_tokens=512) == weights
    assert trained_weights(["a", "b", "c"], [1.0, 2.0, 3.0], weights, round_tokens=0) == weights  # nobody asks
    assert trained_weights(["a", "b", "c"], [0.0] * 3, weights, round_tokens=512) == weights


def test_lists_of_different_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match="zip"):
        contribution_weights([0, 1], [1.0], [1.0, 1.0])


def test_equal_weights_give_the_number_of_paths_and_replicas_count_once() -> None:
    assert effective_paths([0, 1, 2, 2], [0.25] * 4) == pytest.approx(3.0)
    assert effective_paths([0, 1], [0.75, 0.25]) == pytest.approx(1 / 0.625)
    assert effective_paths([0], [0.1]) == pytest.approx(1.0)


def test_a_weighted_sum_leaves_its_contributions_alone() -> None:
    first, second = torch.tensor([1.0, 2.0]), torch.tensor([3.0, -2.0])
    total = weighted_sum([first, second], [0.25, 0.75])
    assert total.tolist() == [2.5, -1.0]
    assert first.tolist() == [1.0, 2.0]
    assert second.tolist() == [3.0, -2.0]


def test_a_sum_in_one_order_has_the_same_bits_every_time() -> None:
    contributions = [torch.randn(1000, generator=torch.Generator().manual_seed(i)) for i in range(5)]
    weights = [0.1, 0.2, 0.3, 0.15, 0.25]
    assert torch.equal(weighted_sum(contributions, weights), weighted_sum(contributions, weights))


@pytest.mark.parametrize(
    ("norms", "factors"),
    [
        ([1.0, 1.0, 100.0], [1.0, 1.0, 0.04]),
        ([1.0, 100.0], [1.0, 0.04]),  # the lower median: one of two cannot raise the bound
        ([0.0, 2.0, 3.0], [1.0, 1.0, 1.0]),
        ([0.0, 0.0], [1.0, 1.0]),
        ([5.0], [1.0]),
    ],
)
def test_a_contribution_counts_for_at_most_four_median_norms(norms: list[float], factors: list[float]) -> None:
    assert clip_factors(norms, 4.0) == pytest.approx(factors)


def test_the_outer_step_is_torchs_nesterov_sgd() -> None:
    generator = torch.Generator().manual_seed(0)
    ours = torch.randn(500, generator=generator)
    momentum = torch.zeros(500)
    theirs = torch.nn.Parameter(ours.clone())
    optimizer = torch.optim.SGD([theirs], lr=0.7, momentum=0.9, nesterov=True, foreach=False)
    for _ in range(8):
        gradient = torch.randn(500, generator=generator)
        theirs.grad = gradient.clone()
        optimizer.step()
        ours, momentum = nesterov_step(ours, momentum, gradient, OuterStep(0.7, 0.9))
    # not bit for bit: torch may fuse multiply and add, which is what we must not do
    torch.testing.assert_close(ours, theirs.detach(), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(momentum, optimizer.state[theirs]["momentum_buffer"], rtol=1e-5, atol=1e-6)


def test_the_outer_step_changes_nothing_in_place() -> None:
    params, momentum, gradient = torch.ones(3), torch.full((3,), 2.0), torch.full((3,), 4.0)
    after, velocity = nesterov_step(params, momentum, gradient, OuterStep(0.5, 0.5))
    assert velocity.tolist() == [5.0] * 3  # 0.5 * 2 + 4
    assert after.tolist() == [-2.25] * 3  # 1 - 0.5 * (4 + 0.5 * 5)
    assert (params.tolist(), momentum.tolist(), gradient.tolist()) == ([1.0] * 3, [2.0] * 3, [4.0] * 3)


def test_the_first_module_of_level_one_averages_exactly_the_paths_through_it() -> None:
    """docs/paper.md#checks, 3: 2x2, module (1, 0) has paths 0 and 2; sqrt(2) shows in the norm."""
    paths = grid((2, 2)).paths_through(ModuleId(1, 0))
    assert paths == (0, 2)
    before = torch.zeros(4)
    after = {0: torch.tensor([1.0, 0.0, 2.0, 0.0]), 2: torch.tensor([3.0, 0.0, 0.0, 4.0])}
    gradients = [outer_gradient(before, after[path]) for path in paths]
    mean = weighted_sum(gradients, contribution_weights(paths, [7, 9], [0.25, 0.25]))
    assert mean.tolist() == [-2.0, 0.0, -1.0, -2.0]
    scaled = rescale(mean, effective_paths(paths, [0.25, 0.25]))
    assert scaled.norm().item() == pytest.approx(math.sqrt(2) * mean.norm().item())


def test_one_inner_step_and_plain_averaging_is_synchronous_sgd_of_each_module() -> None:
    """docs/paper.md#checks, 4: tau = 1, inner SGD, outer rate 1, no momentum, no rescaling."""
    table, generator = grid((2, 2)), torch.Generator().manual_seed(1)
    modules = {module: torch.randn(2, generator=generator, dtype=torch.float64) for module in table.modules}
    data = torch.randn(4, 2, generator=generator, dtype=torch.float64)

    def loss(path: int, first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
        return ((first * second - data[path]) ** 2).sum()

    rate, together = 0.1, {module: value.clone().requires_grad_() for module, value in modules.items()}
    for path, (first, second) in enumerate(table.rows):
        # each module's loss is the mean over its two paths
        (loss(path, together[ModuleId(0, first)], together[ModuleId(1, second)]) / 2).backward()  # type: ignore[no-untyped-call]
    for module in table.modules:
        gradients = []
        for path in table.paths_through(module):
            copies = [modules[m].clone().requires_grad_() for m in table.modules_of(path)]
            loss(path, copies[0], copies[1]).backward()  # type: ignore[no-untyped-call]
            copy = copies[module.level]
            assert copy.grad is not None
            gradients.append(outer_gradient(modules[module], (copy - rate * copy.grad).detach()))
        mean = weighted_sum(gradients, contribution_weights([0, 1], [1, 1], [0.25, 0.25]))
        stepped, _ = nesterov_step(modules[module], torch.zeros_like(mean), mean, OuterStep(1.0, 0.0))
        expected = together[module].grad
        assert expected is not None
        torch.testing.assert_close(stepped, modules[module] - rate * expected)


def test_the_radial_average_has_the_mean_length_whatever_the_directions() -> None:
    right, up = torch.tensor([3.0, 0.0]), torch.tensor([0.0, 1.0])
    average = radial_average([right, up], [0.5, 0.5])
    assert torch.allclose(average, torch.full((2,), 2.0 / math.sqrt(2.0)))  # length (3 + 1) / 2, direction between
    assert torch.allclose(radial_average([right], [1.0]), right)
    assert torch.equal(radial_average([right, torch.zeros(2)], [0.5, 0.5]), torch.tensor([1.5, 0.0]))
    assert torch.equal(radial_average([right, -right], [0.5, 0.5]), torch.zeros(2))  # opposites leave no direction
