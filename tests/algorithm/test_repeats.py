"""Who contributes once more what it has contributed before."""

import pytest
import torch
from torch import Generator, Tensor

from dipaco_swarm.algorithm import repeats
from dipaco_swarm.algorithm.paths import ModuleId
from dipaco_swarm.algorithm.repeats import KEPT, Earlier, repeated

MODULE, OTHER = ModuleId(0, 0), ModuleId(0, 1)
COUNT = 50_000
EVERYBODY = {"a", "x"}


def numbers(seed: int) -> Tensor:
    return torch.randn(COUNT, generator=Generator().manual_seed(seed))


def given(vectors: dict[str, Tensor], *places: slice) -> dict[str, list[tuple[slice, Tensor]]]:
    wanted = places or (slice(0, COUNT),)
    return {name: [(place, vector[place]) for place in wanted] for name, vector in vectors.items()}


@pytest.fixture
def earlier() -> Earlier:
    return Earlier(Generator().manual_seed(0))


def test_of_the_first_round_nothing_is_known(earlier: Earlier) -> None:
    assert earlier.repeats(MODULE, COUNT, given({"a": numbers(1)}), EVERYBODY) == {}
    assert earlier.repeats(OTHER, COUNT, given({"a": numbers(1)}), EVERYBODY) == {}


def test_what_is_sent_again_is_known_whatever_its_length_and_under_a_little_noise(earlier: Earlier) -> None:
    stale = numbers(1)
    earlier.repeats(MODULE, COUNT, given({"a": numbers(2), "x": stale}), EVERYBODY)
    found = earlier.repeats(MODULE, COUNT, given({"a": numbers(3), "x": 0.1 * stale + 0.03 * numbers(4)}), EVERYBODY)
    assert found["a"] == pytest.approx(0, abs=0.1)
    assert found["x"] == pytest.approx(1 / (1 + 0.09) ** 0.5, abs=0.02)


def test_who_takes_turns_with_two_is_known_as_well(earlier: Earlier) -> None:
    for round_number in range(KEPT):
        earlier.repeats(MODULE, COUNT, given({"x": numbers(round_number)}), EVERYBODY)
    assert earlier.repeats(MODULE, COUNT, given({"x": numbers(0)}), EVERYBODY)["x"] == pytest.approx(1)
    for round_number in range(10, 10 + KEPT):
        earlier.repeats(MODULE, COUNT, given({"x": numbers(round_number)}), EVERYBODY)
    assert earlier.repeats(MODULE, COUNT, given({"x": numbers(0)}), EVERYBODY)["x"] < 0.1  # nothing older is kept


def test_pieces_are_compared_where_both_were_ours(earlier: Earlier) -> None:
    stale = numbers(1)
    earlier.repeats(MODULE, COUNT, given({"x": stale}, slice(0, 20_000), slice(30_000, 40_000)), EVERYBODY)
    found = earlier.repeats(MODULE, COUNT, given({"x": stale}, slice(10_000, 35_000)), EVERYBODY)
    assert found["x"] == pytest.approx(1)
    assert earlier.repeats(MODULE, COUNT, given({"x": stale}, slice(45_000, COUNT)), EVERYBODY) == {}  # nothing shared


def test_what_did_not_count_is_brought_again_by_the_honest_as_well(earlier: Earlier) -> None:
    late = numbers(1)
    earlier.repeats(MODULE, COUNT, given({"a": numbers(2), "x": late}), {"a"})
    assert "x" not in earlier.repeats(MODULE, COUNT, given({"a": numbers(3), "x": late}), EVERYBODY)
    found = earlier.repeats(MODULE, COUNT, given({"a": numbers(4), "x": late}), {"a"})
    assert found["x"] == pytest.approx(1), "it has counted by now"
    assert earlier.repeats(MODULE, COUNT, given({"x": late}), {"a"})["x"] == pytest.approx(1), "however often"


def test_of_so_many_names_the_one_that_came_last_is_remembered(
    earlier: Earlier, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repeats, "MOST_MEMBERS", 3)
    stale = numbers(1)
    for name in "xabxcd":
        earlier.repeats(MODULE, COUNT, given({name: stale}), {*"xabcd"})
    earlier.repeats(MODULE, COUNT, given({f"late {i}": stale for i in range(9)}), EVERYBODY)  # which do not count
    assert list(earlier._kept) == [(MODULE, "x"), (MODULE, "c"), (MODULE, "d")]
    assert earlier.repeats(MODULE, COUNT, given({"x": stale}), EVERYBODY)["x"] == pytest.approx(1)
    assert earlier.repeats(MODULE, COUNT, given({"a": stale}), EVERYBODY) == {}


def test_nothing_at_all_repeats_nothing(earlier: Earlier) -> None:
    for _ in range(2):
        assert earlier.repeats(MODULE, COUNT, given({"x": torch.zeros(COUNT)}), EVERYBODY) == {}


@pytest.mark.parametrize(
    ("found", "cosines"),
    [
        ({"x"}, {"us": 0.1, "a": 0.2, "x": 0.99}),
        ({"x", "y"}, {"us": 0.1, "a": 0.2, "b": 0.1, "x": 0.99, "y": 1.0}),
        (set(), {"us": 0.1, "a": 0.2, "x": 0.8}),
        ({"x"}, {"us": 0.55, "a": 0.6, "b": 0.5, "x": 1.0}),
        (set(), {"us": 0.98, "a": 0.985, "x": 0.994}),  # the first rounds of a model
        (set(), {"us": 1.0, "a": 1.0, "x": 1.0 + 1e-16}),
        (set(), {"us": 1.0 - 2e-16, "a": 1.0 - 2e-16, "x": 1.0}),  # as they are rounded
        (set(), {"us": 0.99, "a": 0.1, "b": 0.1}),
        (set(), {"us": 0.1, "x": 0.99}),  # one other says nothing of what is usual
        (set(), {}),
    ],
)
def test_who_repeats_itself_far_more_than_others_do_is_found(found: set[str], cosines: dict[str, float]) -> None:
    assert repeated(cosines, dict.fromkeys(cosines, 4000), "us") == found


@pytest.mark.parametrize(
    ("tokens", "cosine", "found"),
    [
        (4000, 0.91, True),
        (2000, 0.91, False),
        (2000, 0.96, True),
        (100, 0.95, False),  # one step of forty goes where the momentum goes
        (100, 0.999, True),
        (1 << 40, 0.91, True),
        (0, 1.0, False),
    ],
)
def test_of_whom_little_counts_it_must_be_the_same_more_exactly(tokens: int, cosine: float, found: bool) -> None:
    cosines = {"us": 0.2, "a": 0.3, "b": 0.1, "x": cosine}
    said = repeated(cosines, {"us": 4000, "a": 4000, "b": 6000, "x": tokens}, "us")
    assert said == ({"x"} if found else set())
