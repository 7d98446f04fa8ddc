import pytest

from dipaco_swarm.algorithm.paths import ModuleId, PathIndex, PathTable, grid
from dipaco_swarm.errors import ManifestError


def test_a_grid_holds_every_combination_in_row_order() -> None:
    table = grid((2, 4))
    assert table.num_paths == 8
    assert table.num_levels == 2
    assert table.rows[5] == (1, 1)
    assert table.index_of((1, 1)) == 5


def test_on_a_full_grid_a_module_is_shared_by_paths_divided_by_modules_of_its_level() -> None:
    table = grid((2, 4))  # docs/paper.md#paths-through-a-module: 8 / 2 = 4 paths on level 0, 8 / 4 = 2 on level 1
    assert {len(table.paths_through(m)) for m in table.modules if m.level == 0} == {4}
    assert {len(table.paths_through(m)) for m in table.modules if m.level == 1} == {2}
    assert table.paths_through(ModuleId(1, 2)) == (2, 6)


def test_a_path_specific_level_gives_every_path_its_own_module() -> None:
    table = grid((2, 99, 2), path_specific_levels=frozenset({1}))
    assert table.rows == ((0, 0, 0), (0, 1, 1), (1, 2, 0), (1, 3, 1))
    assert all(table.is_path_specific(ModuleId(1, i)) for i in range(4))
    assert not table.is_path_specific(ModuleId(0, 0))


def test_a_fully_shared_level_is_one_module_that_all_paths_use() -> None:
    table = grid((1, 2, 2))
    assert table.paths_through(ModuleId(0, 0)) == (0, 1, 2, 3)


def test_an_irregular_table_is_just_rows() -> None:
    table = PathTable(((0, 0), (0, 1), (1, 1)))
    assert table.modules_of(PathIndex(2)) == (ModuleId(0, 1), ModuleId(1, 1))
    assert table.paths_through(ModuleId(1, 1)) == (1, 2)
    assert table.is_path_specific(ModuleId(0, 1))
    with pytest.raises(ValueError, match="not in tuple"):
        table.index_of((1, 0))


@pytest.mark.parametrize(
    ("rows", "complaint"),
    [
        ((), "empty"),
        (((),), "empty"),
        (((0, 0), (1,)), "path 1 has 1 levels but path 0 has 2"),
        (((0, 0), (0, 0)), "must be different"),
        (((0, 0), (2, 0)), r"level 0 has no module 1 but has 2"),
        (((0, 1),), r"level 1 has no module 0 but has 1"),
        (((0, -1), (0, 0)), "negative module index"),
    ],
)
def test_an_impossible_table_says_what_is_wrong(rows: tuple[tuple[int, ...], ...], complaint: str) -> None:
    with pytest.raises(ManifestError, match=complaint):
        PathTable(rows)


def test_a_module_is_written_as_it_is_read() -> None:
    assert ModuleId.parse(str(ModuleId(2, 13))) == ModuleId(2, 13)
    for wrong in ("L1", "M1L0", "L1M", "LxM1", "1M1", "L-1M0"):
        with pytest.raises(ValueError, match="not a module"):
            ModuleId.parse(wrong)
