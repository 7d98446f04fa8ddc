"""One job a file: nothing in the package grows so long that nobody reads it as a whole."""

import ast
from collections.abc import Iterator
from pathlib import Path

import dipaco_swarm

PACKAGE = Path(dipaco_swarm.__file__).parent
MOST_LINES_OF_A_FILE = 400
MOST_LINES_OF_A_CLASS = 250


def too_long(folder: Path) -> Iterator[str]:
    """Every file and class below a folder that is too long, by name and with its length."""
    for path in sorted(folder.rglob("*.py")):
        name, source = path.relative_to(folder).as_posix(), path.read_text(encoding="utf-8")
        lines = len(source.splitlines())
        if lines > MOST_LINES_OF_A_FILE:
            yield f"{name} has {lines} lines; at most {MOST_LINES_OF_A_FILE}: find its second job, and give it a file"
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.ClassDef) and (lines := _lines_of(node)) > MOST_LINES_OF_A_CLASS:
                yield f"class {node.name} in {name} has {lines} lines; at most {MOST_LINES_OF_A_CLASS}"


def _lines_of(node: ast.ClassDef) -> int:
    assert node.end_lineno is not None
    return node.end_lineno - node.lineno + 1


def test_no_file_and_no_class_of_the_package_is_too_long() -> None:
    assert "\n".join(too_long(PACKAGE)) == ""


def test_what_is_too_long_is_named(tmp_path: Path) -> None:
    body = "    x = 1\n"
    (tmp_path / "room").mkdir()
    (tmp_path / "room" / "fits.py").write_text("class Fits:\n" + body * 249 + "\n" * 150)
    (tmp_path / "room" / "long.py").write_text("class Long:\n" + body * 250 + "\n" * 150)
    assert [line.partition(";")[0] for line in too_long(tmp_path)] == [
        "room/long.py has 401 lines",
        "class Long in room/long.py has 251 lines",
    ]
