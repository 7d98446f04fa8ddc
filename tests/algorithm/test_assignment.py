import random
from collections import Counter
from collections.abc import Mapping

import pytest

from dipaco_swarm.algorithm.assignment import Staffing, neediest_path, path_to_be_on, settled
from dipaco_swarm.algorithm.paths import ModuleId, PathIndex, grid

TABLE = grid((2, 2))
FOUR_BY_FOUR = grid((4, 4))
P0, P1, P2, P3 = (PathIndex(i) for i in range(4))
P9 = PathIndex(9)


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


def spread(moving: dict[str, PathIndex], staying: dict[str, PathIndex] | None = None) -> dict[str, PathIndex]:
    paths = [PathIndex(path) for path in range(TABLE.num_paths)]
    return {name: settled(paths, staying or {}, moving, name) for name in moving}


def test_newcomers_who_chose_the_same_path_end_on_different_ones() -> None:
    assert spread(dict.fromkeys("abcd", P0)) == {"a": P0, "b": P3, "c": P2, "d": P1}


def test_nobody_moves_where_paths_differ_by_one_peer() -> None:
    taken = {"a": P0, "b": P0, "c": P1, "d": P2, "e": P3}
    assert spread(taken) == taken


def test_after_everybody_moved_nobody_moves_again() -> None:
    moved = spread({f"peer {i}": PathIndex(i % 2) for i in range(10)})
    assert sorted(Counter(moved.values()).values()) == [2, 2, 3, 3]
    assert spread(moved) == moved


def test_those_who_were_told_their_path_are_counted_and_never_moved() -> None:
    moved = spread({"a": P0, "b": P0, "c": P9}, staying={"x": P0, "y": P0, "z": P1})
    assert sorted(moved) == ["a", "b", "c"]
    assert sorted(moved.values()) == [P1, P2, P3] or sorted(moved.values()) == [P2, P2, P3]
    assert spread(moved, {"x": P0, "y": P0, "z": P1}) == moved


def staffing(
    moving: Mapping[str, PathIndex | None], version: int, last: int | None = None, **versions: int
) -> Staffing:
    modules = {module: versions.get(str(module), version) for module in FOUR_BY_FOUR.modules}
    return Staffing({}, moving, modules, last)


@pytest.mark.parametrize("movers", range(1, 16))
def test_fewer_movers_than_paths_go_round_so_that_all_paths_progress_alike(movers: int) -> None:
    names = [f"{i:02}" for i in range(movers)]
    now = staffing(dict.fromkeys(names, P0), version=0)
    stays: dict[str, Counter[PathIndex]] = {name: Counter() for name in names}
    for _ in range(16):
        places = {name: path_to_be_on(FOUR_BY_FOUR, now, name, stays[name]) for name in names}
        assert len(set(places.values())) == movers
        for name, path in places.items():
            stays[name][path] += 1
    visits = sum(stays.values(), Counter())
    assert visits == Counter({PathIndex(path): movers for path in range(16)})


def test_four_movers_on_sixteen_paths_always_train_every_module() -> None:
    now = staffing(dict.fromkeys("abcd", P0), version=0)
    stays: dict[str, Counter[PathIndex]] = {name: Counter() for name in "abcd"}
    for _ in range(8):
        places = {name: path_to_be_on(FOUR_BY_FOUR, now, name, stays[name]) for name in "abcd"}
        assert {m for path in places.values() for m in FOUR_BY_FOUR.modules_of(path)} == set(FOUR_BY_FOUR.modules)
        for name, path in places.items():
            stays[name][path] += 1


def test_views_that_differ_now_and_then_leave_no_path_out() -> None:
    """A mover that does not see the others for a while takes paths of theirs, and then goes on where it was least."""
    some = random.Random(0)
    stays: dict[str, Counter[PathIndex]] = {name: Counter() for name in "abcd"}
    for _ in range(400):
        name = some.choice("abcd")
        seen = {name, *(other for other in "abcd" if some.random() < 0.8)}
        now = staffing(dict.fromkeys(sorted(seen), P0), version=0)
        stays[name][path_to_be_on(FOUR_BY_FOUR, now, name, stays[name])] += 1
    visits = sum(stays.values(), Counter())
    assert set(visits) == {PathIndex(path) for path in range(16)}
    assert max(visits.values()) <= 2 * min(visits.values())


def test_nobodys_round_of_paths_changes_when_a_path_is_done() -> None:
    names = dict.fromkeys("ab", P0)
    before = staffing(names, version=0, last=9)
    after = staffing(names, version=0, last=9, L0M0=9, L1M0=9)  # path 0 has nothing left to do
    stays: Counter[PathIndex] = Counter()
    order = []
    for _ in range(8):
        order.append(path_to_be_on(FOUR_BY_FOUR, before, "b", stays))
        stays[order[-1]] += 1
    for path in order:
        del stays[path]
        assert path_to_be_on(FOUR_BY_FOUR, after, "b", stays) == path
        stays[path] += 1


def test_who_has_just_come_stays_where_it_chose_to_be_unless_it_is_crowded() -> None:
    now = staffing({"a": P3, "b": PathIndex(7), "c": PathIndex(7)}, version=0)
    assert path_to_be_on(FOUR_BY_FOUR, now, "a", None) == P3
    assert path_to_be_on(FOUR_BY_FOUR, now, "b", None) == PathIndex(7)
    assert path_to_be_on(FOUR_BY_FOUR, now, "c", None) == P0


def test_who_is_on_the_way_counts_so_that_the_others_stay() -> None:
    everywhere: dict[str, PathIndex | None] = {f"{path:02}": PathIndex(path) for path in range(16)}
    now = staffing(everywhere | {"07": None}, version=0)
    assert [path_to_be_on(FOUR_BY_FOUR, now, f"{path:02}", {}) for path in range(16)] == list(range(16))


def test_at_the_end_of_a_stage_movers_go_to_what_is_not_done() -> None:
    now = staffing({"a": P0, "b": P1}, version=9, last=9, L1M2=7)
    open_paths = set(FOUR_BY_FOUR.paths_through(ModuleId(1, 2)))
    for stays in (None, {}, dict.fromkeys(open_paths, 3)):
        assert {path_to_be_on(FOUR_BY_FOUR, now, name, stays) for name in "ab"} <= open_paths
    assert path_to_be_on(FOUR_BY_FOUR, staffing({"a": P3}, version=9, last=9), "a", {}) == P3
