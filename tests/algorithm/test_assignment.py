from collections import Counter

from dipaco_swarm.algorithm.assignment import neediest_path, settled
from dipaco_swarm.algorithm.paths import PathIndex, grid

TABLE = grid((2, 2))
P0, P1, P2, P3 = (PathIndex(i) for i in range(4))


def test_the_path_with_the_fewest_peers_comes_first() -> None:
    staffing = {P0: 2, P1: 1, P2: 2, P3: 2}
    assert neediest_path(TABLE, staffing, {P1: 1e9}, seed=0) == P1


def test_a_path_that_nobody_mentions_has_nobody() -> None:
    assert neediest_path(TABLE, {P0: 1, P1: 1, P3: 1}, {}, seed=0) == P2


def test_of_equally_staffed_paths_the_least_trained_comes_first() -> None:
    progress = {P0: 30.0, P1: 20.0, P2: 10.0, P3: 20.0}
    assert {neediest_path(TABLE, {}, progress, seed) for seed in range(20)} == {P2}


def test_simultaneous_newcomers_spread_over_equally_needy_paths() -> None:
    chosen = Counter(neediest_path(TABLE, {P0: 5}, {}, seed) for seed in range(300))
    assert set(chosen) == {P1, P2, P3}
    assert min(chosen.values()) > 70


def test_the_same_newcomer_always_chooses_the_same() -> None:
    assert neediest_path(TABLE, {}, {}, seed=2**70) == neediest_path(TABLE, {}, {}, seed=2**70)


def test_paths_outside_the_table_do_not_matter() -> None:
    assert neediest_path(grid((1,)), {PathIndex(7): 0}, {PathIndex(7): -1.0}, seed=0) == P0


def test_newcomers_who_chose_the_same_path_end_on_different_ones() -> None:
    taken = dict.fromkeys("abcd", P0)
    assert [settled(TABLE, taken, name) for name in "abcd"] == [P0, P3, P2, P1]


def test_nobody_moves_where_paths_differ_by_one_peer() -> None:
    taken = {"a": P0, "b": P0, "c": P1, "d": P2, "e": P3}
    assert {name: settled(TABLE, taken, name) for name in taken} == taken


def test_after_everybody_moved_nobody_moves_again() -> None:
    taken = {f"peer {i}": PathIndex(i % 2) for i in range(10)} | {"stranger": PathIndex(9)}
    moved = {name: settled(TABLE, taken, name) for name in taken if name != "stranger"}
    assert sorted(Counter(moved.values()).values()) == [2, 2, 3, 3]
    assert {name: settled(TABLE, moved, name) for name in moved} == moved
