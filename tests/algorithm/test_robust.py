"""The robust mean: who points elsewhere than the others is left out, whatever it claims; honest members never are."""

import pytest
import torch
from torch import Tensor

from dipaco_swarm.algorithm.averaging.rule import Counted, Member, averaging_of
from dipaco_swarm.algorithm.outer import MOST_TOKENS, OuterGradient, at_most, contribution_weights
from dipaco_swarm.algorithm.weight_decay import NOTHING, WeightDecay, part_taken
from dipaco_swarm.testing.poison import POISONS, Seen

LENGTH = 1 << 16


def honest(count: int, agreement: float = 0.1, seed: int = 0) -> list[Tensor]:
    """Contributions of length 1 whose cosines are about `agreement`."""
    generator = torch.Generator().manual_seed(seed)
    common, *own = torch.randn(count + 1, LENGTH, generator=generator) / LENGTH**0.5
    return [common * agreement**0.5 + each * (1 - agreement) ** 0.5 for each in own]


def averaged(
    contributions: list[Tensor],
    paths: list[int] | None = None,
    name: str = "robust",
    tokens: list[int] | None = None,
) -> Counted:
    count = len(contributions)
    members = [
        Member(path, trained, 1.0, float(torch.linalg.vector_norm(contribution)))
        for path, trained, contribution in zip(
            paths or [0] * count, tokens or [1000] * count, contributions, strict=True
        )
    ]
    return averaging_of(name).prepare(members, 0)(dict(enumerate(contributions)))


def poisoned(others: list[Tensor], attack: str, attackers: int) -> list[Tensor]:
    random = torch.Generator().manual_seed(1)
    own = honest(1, seed=2)[0]
    return [POISONS[attack].made(Seen(own, others, torch.zeros(LENGTH), 1.0, random)) for _ in range(attackers)]


@pytest.mark.parametrize("count", [1, 2, 3, 5, 16])
@pytest.mark.parametrize("agreement", [0.0, 0.02, 0.3])
def test_among_honest_members_it_is_the_mean_bit_for_bit(count: int, agreement: float) -> None:
    contributions = honest(count, agreement)
    found, mean = averaged(contributions), averaged(contributions, name="mean")
    assert found.members == list(range(count))
    assert torch.equal(found.average, mean.average)


@pytest.mark.parametrize("attack", ["flip", "push", "noise", "drift", "zero"])
@pytest.mark.parametrize(("members", "attackers"), [(2, 1), (4, 1), (8, 2), (7, 3)])
def test_who_points_elsewhere_is_as_if_it_were_not_there(attack: str, members: int, attackers: int) -> None:
    others = honest(members)
    found = averaged([*others, *poisoned(others, attack, attackers)])
    assert found.members == list(range(members))
    assert torch.equal(found.average, averaged(others, name="mean").average)


@pytest.mark.parametrize("paths", [[0] * 5, [0, 1, 2, 3, 4]], ids=["replicas", "paths"])
@pytest.mark.parametrize("attack", ["mixed", "tenth"])
def test_who_goes_along_less_than_it_says_counts_less(attack: str, paths: list[int]) -> None:
    others = honest(4)
    common = torch.stack(others).mean(0)
    own = honest(5)[4]
    noise = torch.randn(LENGTH, generator=torch.Generator().manual_seed(5)) / LENGTH**0.5
    harmful = (own + 2 * noise) / 5**0.5 if attack == "mixed" else 0.1 * own
    found, mean, alone = (
        averaged([*others, harmful], paths), averaged([*others, harmful], paths, name="mean"), averaged(others)
    )  # fmt: skip
    assert found.members == [0, 1, 2, 3, 4], "it points with the others"
    assert float((found.average - alone.average).norm()) < 0.5 * float((mean.average - alone.average).norm())
    assert float(common @ found.average) > float(common @ mean.average)


@pytest.mark.parametrize(("takes_out", "counted"), [(False, [0, 1, 2, 3, 4]), (True, [0, 1, 2, 3])])
def test_nobody_hides_behind_weight_decay(takes_out: bool, counted: list[int]) -> None:
    before = 10 * torch.randn(LENGTH, generator=torch.Generator().manual_seed(7)) / LENGTH**0.5
    decay = WeightDecay(0.05, [(LENGTH, 1.0)])
    after = [before - part_taken(decay.amount) * before - each for each in honest(4, 0.03)]
    others = [OuterGradient(before, each, decay if takes_out else NOTHING)[:] for each in after]
    random = torch.Generator().manual_seed(1)
    hostile = POISONS["cover"].made(Seen(others[0], others, before, 1.0, random, origin=before))
    assert averaged([*others, hostile], [0, 1, 2, 3, 4]).members == counted


@pytest.mark.parametrize("riders", [1, 2])
def test_those_who_send_the_same_have_the_weight_of_one(riders: int) -> None:
    others = honest(5)
    found = averaged([*others, *[others[0]] * riders], paths=list(range(5 + riders)))
    assert found.members == list(range(5 + riders))
    assert torch.allclose(found.average, averaged(others, name="mean").average, atol=1e-8)
    shaken = others[0] + 0.2 * honest(1, seed=9)[0]  # a little noise hides nothing
    again = averaged([*others, *[shaken] * riders], paths=list(range(5 + riders)))
    assert float((again.average - found.average).norm()) < 0.1 * float(found.average.norm())


def test_where_all_go_one_way_nobody_is_a_copy() -> None:
    first_round = honest(5, agreement=0.97)
    found = averaged([*first_round, first_round[0]], paths=[0, 1, 2, 3, 4, 5])
    assert torch.equal(found.average, averaged([*first_round, first_round[0]], [0, 1, 2, 3, 4, 5], "mean").average)


def test_who_says_that_it_has_trained_less_counts_by_that_alone() -> None:
    others, own = honest(4), honest(5)[4]
    tokens = [1000, 1000, 1000, 1000, 250]
    found, mean = (averaged([*others, 0.25 * own], tokens=tokens, name=name) for name in ("robust", "mean"))
    assert torch.equal(found.average, mean.average)


def test_who_is_alone_on_its_path_is_not_compared_with_replicas_of_another() -> None:
    of_one_path = [honest(1)[0] * 0.1**0.5 + each * 0.9**0.5 for each in honest(2, 0.3)]
    alone = honest(3, 0.1)[2]
    found, mean = (averaged([*of_one_path, alone], [0, 0, 1], name=name) for name in ("robust", "mean"))
    assert torch.equal(found.average, mean.average)


def test_where_nobody_agrees_nobody_counts_less() -> None:
    others = [each * scale for each, scale in zip(honest(5, 0.0), (1.0, 1.0, 0.3, 1.0, 1.2), strict=True)]
    assert torch.equal(averaged(others).average, averaged(others, name="mean").average)


def test_two_of_five_under_noise_do_not_make_the_others_count_less() -> None:
    others = honest(5)
    noise = torch.randn(2, LENGTH, generator=torch.Generator().manual_seed(5)) / LENGTH**0.5
    harmful = [(one + 2 * each) / 5**0.5 for one, each in zip(others[:2], noise, strict=True)]
    found = averaged([*others[2:], *harmful])
    mine = averaged(others[2:], name="mean").average
    assert float((found.average - mine).norm()) < 0.3 * float(mine.norm())


def test_two_who_flip_among_five_do_not_vouch_for_each_other() -> None:
    others = honest(3)
    found = averaged([*others, *poisoned(others, "flip", 2)])
    assert found.members == [0, 1, 2]


def test_nobody_is_framed_by_two_who_send_its_opposite() -> None:
    others = honest(6)
    found = averaged([*others, -others[0], -others[0]])
    assert found.members == [0, 1, 2, 3, 4, 5]


def test_a_path_with_many_names_has_no_more_say_than_another() -> None:
    others = honest(4)
    crowd = poisoned(others, "flip", 6)
    found = averaged([*others, *crowd], paths=[0, 1, 2, 3, *[4] * 6])
    assert found.members == [0, 1, 2, 3]


def test_of_two_nobody_is_left_out() -> None:
    one = honest(1)[0]
    assert averaged([one, -one]).members == [0, 1]


def test_few_numbers_say_too_little() -> None:
    one = torch.ones(100)
    assert averaged([one, one, one, -one]).members == [0, 1, 2, 3]


def test_no_contribution_is_concentrated_in_a_piece() -> None:
    others = honest(4, 0.3)
    found = averaged([*others, others[0] * 100]).average
    assert float(torch.linalg.vector_norm(found)) < 1.1


def test_who_claims_many_tokens_has_its_path_not_to_itself() -> None:
    weights = contribution_weights(["a", "a", "a", "a"], [2.0**60, 1000, 1000, 500], [1.0] * 4)
    assert weights[0] == pytest.approx(MOST_TOKENS / (MOST_TOKENS + 2.5))
    assert at_most([2.0**60, 10, 0], ["a", "b", "a"]) == [2.0**60, 10, 0]
    assert contribution_weights(["a", "a"], [0, 0], [1.0, 1.0]) == [0.5, 0.5]
