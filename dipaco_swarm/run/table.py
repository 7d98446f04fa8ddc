"""What a path table must be: a row per path, a module index per level."""

from collections.abc import Sequence


def path_table_problem(rows: Sequence[Sequence[int]]) -> str | None:
    """What is wrong with a path table, or None: equal rows in length, all different, modules numbered without gaps."""
    if not rows or not rows[0]:
        return "the path table is empty; it needs at least one path with at least one level"
    for path, row in enumerate(rows):
        if len(row) != len(rows[0]):
            return (
                f"path {path} has {len(row)} levels but path 0 has {len(rows[0])}; every row needs one module per level"
            )
        if min(row) < 0:
            return f"path {path} has a negative module index: {list(row)}"
    seen: dict[tuple[int, ...], int] = {}
    for path, row in enumerate(rows):
        if (first := seen.setdefault(tuple(row), path)) != path:
            return f"paths {first} and {path} take the same modules, {list(row)}; every row must be different"
    for level, column in enumerate(zip(*rows, strict=True)):
        used = set(column)
        if used != set(range(len(used))):
            missing = next(index for index in range(len(used)) if index not in used)
            return f"level {level} has no module {missing} but has {max(used)}; number them 0, 1, 2, ... without gaps"
    return None
