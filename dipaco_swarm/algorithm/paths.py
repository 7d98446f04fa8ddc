"""The path table: which module each path takes at each level.

Rows are paths, columns are levels, cells are module indices. A branching level, a fully shared level (one module) and a
path-specific level (one module per path) are just columns; `paths_through` answers for all of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import NewType

from dipaco_swarm.errors import ManifestError
from dipaco_swarm.run.table import path_table_problem

PathIndex = NewType("PathIndex", int)


@dataclass(frozen=True, order=True)
class ModuleId:
    """One module of the bank: its level, and its place within that level."""

    level: int
    index: int

    def __str__(self) -> str:
        return f"L{self.level}M{self.index}"

    @classmethod
    def parse(cls, text: str) -> "ModuleId":
        """Read `L0M1`. Raises ValueError for anything else."""
        level, separator, index = text.removeprefix("L").partition("M")
        if not (text.startswith("L") and separator and level.isdecimal() and index.isdecimal()):
            raise ValueError(f"{text!r} is not a module; modules are written like L0M1")
        return cls(int(level), int(index))


@dataclass(frozen=True)
class PathTable:
    """Rows = paths, columns = levels, cells = module index (paper section 2.1).

    Raises ManifestError when rows differ in length, repeat, or leave a module index of a level unused.
    """

    rows: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        problem = path_table_problem(self.rows)
        if problem is not None:
            raise ManifestError(problem)

    @property
    def num_paths(self) -> int:
        return len(self.rows)

    @property
    def num_levels(self) -> int:
        return len(self.rows[0])

    @cached_property
    def modules(self) -> tuple[ModuleId, ...]:
        """Every module of the bank, by level, then index."""
        return tuple(sorted({ModuleId(level, i) for row in self.rows for level, i in enumerate(row)}))

    @cached_property
    def _paths_through(self) -> dict[ModuleId, tuple[PathIndex, ...]]:
        through: dict[ModuleId, list[PathIndex]] = {module: [] for module in self.modules}
        for path, row in enumerate(self.rows):
            for level, index in enumerate(row):
                through[ModuleId(level, index)].append(PathIndex(path))
        return {module: tuple(paths) for module, paths in through.items()}

    def modules_of(self, path: PathIndex) -> tuple[ModuleId, ...]:
        """The modules of a path, in level order."""
        return tuple(ModuleId(level, index) for level, index in enumerate(self.rows[path]))

    def paths_through(self, module: ModuleId) -> tuple[PathIndex, ...]:
        """The paths that share a module, ascending: its module group, as paths."""
        return self._paths_through[module]

    def is_path_specific(self, module: ModuleId) -> bool:
        return len(self._paths_through[module]) == 1

    def index_of(self, modules: Sequence[int]) -> PathIndex:
        """The path that takes these module indices, one per level. Raises ValueError when no path does."""
        return PathIndex(self.rows.index(tuple(modules)))


def grid(modules_per_level: Sequence[int], path_specific_levels: frozenset[int] = frozenset()) -> PathTable:
    """All combinations of the branching levels; a path-specific level gets one module per path.

    `modules_per_level[l]` is ignored for a path-specific level. `grid((2, 4))` has 8 paths; path 5 is (1, 1).
    """
    choices = [
        range(1) if level in path_specific_levels else range(count) for level, count in enumerate(modules_per_level)
    ]
    rows = (
        tuple(path if level in path_specific_levels else index for level, index in enumerate(row))
        for path, row in enumerate(product(*choices))
    )
    return PathTable(tuple(rows))
