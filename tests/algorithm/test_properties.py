"""What holds for all inputs, not for the ones that somebody thought of."""

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from random import Random
from typing import TypeVar

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from dipaco_swarm.algorithm.assignment import Staffing, neediest_path, path_to_be_on, settled
from dipaco_swarm.algorithm.outer import clip_factors, contribution_weights, effective_paths, trained_weights
from dipaco_swarm.algorithm.paths import ModuleId, PathIndex, PathTable, grid

PATHS = st.integers(0, 7).map(PathIndex)
TOKENS = st.floats(0, 1e12)
WEIGHTS = st.floats(1e-6, 1)
T = TypeVar("T")
Made = tuple[list[PathIndex], list[float], list[float]]


@st.composite
def contributions(draw: st.DrawFn) -> Made:
    """Paths, tokens and path weights of one to twelve contributions; replicas of a path repeat its weight."""
    paths = draw(st.lists(PATHS, min_size=1, max_size=12))
    weight_of = {path: draw(WEIGHTS) for path in sorted(set(paths))}
    tokens = draw(st.lists(TOKENS, min_size=len(paths), max_size=len(paths)))
    return paths, tokens, [weight_of[path] for path in paths]


@st.composite
def swarms(draw: st.DrawFn) -> tuple[PathTable, Staffing]:
    """A grid and some peers on it; at least one of them moves."""
    table = grid(draw(st.sampled_from([(1, 1), (2, 2), (2, 4), (4, 4)])))
    path = st.integers(0, table.num_paths - 1).map(PathIndex)
    names = st.text("abcdef", min_size=1, max_size=4)
    moving = draw(st.dictionaries(names, st.none() | path, min_size=1, max_size=20))
    staying = {name: at for name, at in draw(st.dictionaries(names, path, max_size=10)).items() if name not in moving}
    versions = {module: draw(st.integers(0, 3)) for module in table.modules}
    return table, Staffing(staying, moving, versions, draw(st.none() | st.integers(1, 3)))


# -------------------------------------------------------------------------------------------------------------- weights


@given(contributions())
def test_weights_sum_to_one_and_replicas_count_as_one_path(made: Made) -> None:
    paths, tokens, path_weights = made
    weights = contribution_weights(paths, tokens, path_weights)
    assert math.fsum(weights) == pytest.approx(1)
    assert all(weight >= 0 for weight in weights)
    total = math.fsum(dict(zip(paths, path_weights, strict=True)).values())
    for path, path_weight in zip(paths, path_weights, strict=True):
        share = math.fsum(weight for weight, of in zip(weights, paths, strict=True) if of == path)
        assert share == pytest.approx(path_weight / total)


@given(contributions(), st.randoms())
def test_the_order_of_contributions_changes_no_weight(made: Made, random: Random) -> None:
    order = list(range(len(made[0])))
    random.shuffle(order)
    paths, tokens, path_weights = made
    weights = contribution_weights(*made)
    shuffled = [paths[i] for i in order], [tokens[i] for i in order], [path_weights[i] for i in order]
    assert contribution_weights(*shuffled) == pytest.approx([weights[i] for i in order])


@given(contributions(), st.floats(0, 1e12))
def test_part_of_a_round_never_counts_for_more_than_a_whole_one(made: Made, round_tokens: float) -> None:
    reduced = trained_weights(*made, round_tokens)
    assert all(0 <= less <= weight for less, weight in zip(reduced, made[2], strict=True))


@given(contributions())
def test_there_are_as_many_effective_paths_as_paths_at_most(made: Made) -> None:
    paths, _, path_weights = made
    found = effective_paths(paths, path_weights)
    assert 1 - 1e-9 <= found <= len(set(paths)) + 1e-9
    assert effective_paths(paths, [0.5] * len(paths)) == pytest.approx(len(set(paths)))


@given(st.lists(st.just(0.0) | st.floats(1e-30, 1e9), min_size=1, max_size=12), st.floats(1.01, 10))
def test_after_clipping_nothing_is_longer_than_the_bound(norms: list[float], ratio: float) -> None:
    factors = clip_factors(norms, ratio)
    assert all(0 < factor <= 1 for factor in factors)
    positive = sorted(norm for norm in norms if norm > 0)
    assume(positive)
    median = positive[(len(positive) - 1) // 2]
    assert all(n * f <= ratio * median * (1 + 1e-9) for n, f in zip(norms, factors, strict=True))
    assert all(f == 1 for n, f in zip(norms, factors, strict=True) if n <= ratio * median)


# --------------------------------------------------------------------------------------------------------- who is where


@given(swarms())
def test_after_everybody_moved_no_two_paths_differ_by_two_peers_that_could_move(
    made: tuple[PathTable, Staffing],
) -> None:
    table, staffing = made
    paths = [PathIndex(path) for path in range(table.num_paths)]
    places = {name: settled(paths, staffing.staying, staffing.moving, name) for name in staffing.moving}
    crowd = Counter(staffing.staying.values()) + Counter(places.values())
    emptiest = min(crowd[path] for path in paths)
    assert all(crowd[path] - emptiest < 2 for path in set(places.values()))
    again = {name: settled(paths, staffing.staying, dict(places), name) for name in places}
    assert again == places, "a second look must move nobody"


@given(swarms(), st.randoms(use_true_random=False))
def test_all_who_see_the_same_swarm_compute_the_same_moves(made: tuple[PathTable, Staffing], random: Random) -> None:
    table, staffing = made

    def heard_in_another_order(heard: Mapping[str, T]) -> dict[str, T]:
        names = list(heard)
        random.shuffle(names)
        return {name: heard[name] for name in names}

    other = replace(
        staffing, staying=heard_in_another_order(staffing.staying), moving=heard_in_another_order(staffing.moving)
    )
    for name in staffing.moving:
        if staffing.moving[name] is not None:
            for stays in (None, {PathIndex(0): 1}):
                assert path_to_be_on(table, other, name, stays) == path_to_be_on(table, staffing, name, stays)


@given(swarms(), st.dictionaries(st.integers(0, 15).map(PathIndex), st.integers(0, 5), max_size=4))
def test_a_mover_goes_where_something_is_left_to_do(
    made: tuple[PathTable, Staffing], stays: dict[PathIndex, int]
) -> None:
    table, staffing = made
    name = min(staffing.moving)
    assume(staffing.moving[name] is not None)
    path = path_to_be_on(table, staffing, name, stays)
    assert 0 <= path < table.num_paths
    last = staffing.last_version
    is_open = [
        last is None or any(staffing.versions[module] < last for module in table.modules_of(PathIndex(at)))
        for at in range(table.num_paths)
    ]
    assert is_open[path] or not any(is_open)


@given(swarms(), st.integers(0, 2**64))
def test_nobody_is_sent_to_a_path_while_another_has_fewer_peers(made: tuple[PathTable, Staffing], seed: int) -> None:
    table, staffing = made
    staffed = Counter(staffing.staying.values())
    chosen = neediest_path(table, staffed, {}, seed)
    assert staffed[chosen] == min(staffed[PathIndex(path)] for path in range(table.num_paths))


# ---------------------------------------------------------------------------------------------------------------- names


@given(st.integers(0, 9999), st.integers(0, 999999))
def test_a_module_is_read_as_it_is_written(level: int, index: int) -> None:
    assert ModuleId.parse(str(ModuleId(level, index))) == ModuleId(level, index)


@given(st.text(max_size=12))
def test_anything_else_is_no_module(text: str) -> None:
    try:
        module = ModuleId.parse(text)
    except ValueError:
        return
    assert module == ModuleId.parse(str(module))


@given(st.lists(st.integers(1, 4), min_size=1, max_size=4))
def test_each_module_of_a_grid_has_its_share_of_the_paths(modules_per_level: list[int]) -> None:
    table = grid(modules_per_level)
    assert table.num_paths == math.prod(modules_per_level)
    for module in table.modules:
        assert len(table.paths_through(module)) * modules_per_level[module.level] == table.num_paths
    for path in range(table.num_paths):
        assert all(path in table.paths_through(module) for module in table.modules_of(PathIndex(path)))
