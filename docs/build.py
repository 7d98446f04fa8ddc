"""Writes into the pages what the code says: messages, records, limits, tables of decisions, and screens.

    python -m docs.build            renews the pages
    python -m docs.build --check    exit code 1 if a page is not what the code says

A page marks where something belongs, and everything between the two lines is written anew:

    <!-- messages dipaco_swarm/swarm/wire.py -->        every value that a module's classes of messages have
    <!-- constants dipaco_swarm/swarm/wire.py MAX_ -->  constants whose names begin so, with the words below them
    <!-- table dipaco_swarm/algorithm/plan.py -->       the table in a module's docstring
    <!-- values dipaco_swarm/swarm/timing.py Timing --> fields and properties of a class, with the words below them
    <!-- screen tests.doors.examples_of_views peer_view -->   a view as a terminal of 80 x 24 shows it
    <!-- end -->

The code is parsed and not imported, but for the screens: what is written depends on its text alone.
"""

import ast
import importlib
import io
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from rich.console import Console

from dipaco_swarm.dashboard.drawing import draw
from dipaco_swarm.dashboard.peer_drawing import Look

ROOT = Path(__file__).parents[1]
PAGES = ("docs/protocol.md", "docs/volunteer.md", "docs/user.md", "docs/operator.md")
BLOCK = re.compile(
    r"(<!-- (messages|constants|table|values|screen) (\S+)(?: (\S+))? -->\n)(.*?)(<!-- end -->)", re.DOTALL
)
MESSAGE = "Message"
WIDTH = 118
BOUNDS = {
    "ge": ">= {}",
    "gt": "> {}",
    "le": "<= {}",
    "lt": "< {}",
    "min_length": "{} or more",
    "max_length": "{} at most",
    "pattern": "like {}",
}


def build(page: str) -> str:
    """A page with everything written anew that comes from the code.

    `page`: its text. Raises ValueError when a block names a file that is not there or has nothing to say.
    """

    def renewed(match: re.Match[str]) -> str:
        begin, what, file, argument, _, end = match.groups()
        lines = list(_screen(file, argument) if what == "screen" else WRITERS[what](_parsed(file), argument or ""))
        if not lines:
            raise ValueError(f"{file} has no {what} {argument or ''}; mend the line in the page, or docs/build.py")
        return "\n".join([begin + "```text", *lines, "```", end])

    return BLOCK.sub(renewed, page)


def _parsed(file: str) -> ast.Module:
    path = ROOT / file
    if not path.is_file():
        raise ValueError(f"a page speaks of {file}, which is not there; name the file that has it now")
    return ast.parse(path.read_text())


# ------------------------------------------------------------------------------------------------------------- writers


def _messages(module: ast.Module, _: str) -> Iterator[str]:
    """Each message with its fields: name, type with bounds, and the words below the field."""
    aliases = {name: node for name, node in _assignments(module) if isinstance(node, ast.Subscript)}
    for message in module.body:
        if not isinstance(message, ast.ClassDef) or not any(_name(base) == MESSAGE for base in message.bases):
            continue
        yield from _wrapped(message.name, ast.get_docstring(message) or "", 20)
        for field, words in _with_words(message.body):
            if not isinstance(field, ast.AnnAssign) or not isinstance(field.target, ast.Name):
                continue
            if field.target.id == "kind":
                continue
            yield from _wrapped(f"    {field.target.id:<24}{_type(field)}", words, 60)
        yield ""
    for name, node in aliases.items():
        if name[0].isupper() and _name(node.value) == "Annotated" and not _is_union(node):
            yield f"{name:<20}{_described(node)}"


def _constants(module: ast.Module, prefix: str) -> Iterator[str]:
    for node, words in _with_words(module.body):
        if isinstance(node, ast.Assign) and (name := _name(node.targets[0])).startswith(prefix):
            yield from _wrapped(f"{name:<28}{ast.unparse(node.value)}", words, 40)


def _table(module: ast.Module, _: str) -> Iterator[str]:
    """The block of the docstring around its ruled line: from the blank line before it to the blank line after."""
    for block in (ast.get_docstring(module) or "").split("\n\n"):
        if re.search(r"^-{20,}$", block, re.MULTILINE):
            yield from block.splitlines()


def _values(module: ast.Module, name: str) -> Iterator[str]:
    """Fields with their defaults, and properties with the expression that they return."""
    for node in module.body:
        if not isinstance(node, ast.ClassDef) or node.name != name:
            continue
        for member, words in _with_words(node.body):
            if isinstance(member, ast.AnnAssign) and isinstance(member.target, ast.Name) and member.value is not None:
                yield from _wrapped(f"{member.target.id:<20}{ast.unparse(member.value)}", words, 44)
            elif isinstance(member, ast.FunctionDef) and isinstance(member.body[-1], ast.Return):
                value = ast.unparse(member.body[-1].value or ast.Constant(None)).replace("self.", "")
                yield from _wrapped(f"{member.name:<20}{value}", ast.get_docstring(member) or "", 44)


def _screen(module: str, view: str) -> Iterator[str]:
    """What somebody at a keyboard sees; `view`: a function that makes it."""
    console = Console(width=80, height=24, file=io.StringIO(), record=True, force_terminal=True)
    console.print(draw(getattr(importlib.import_module(module), view)(), Look(keys=True)))
    yield from (line.rstrip() for line in console.export_text().splitlines())


WRITERS: dict[str, Callable[[ast.Module, str], Iterator[str]]] = {
    "messages": _messages,
    "constants": _constants,
    "table": _table,
    "values": _values,
}


# ------------------------------------------------------------------------------------------------------ reading syntax


def _with_words(body: list[ast.stmt]) -> Iterator[tuple[ast.stmt, str]]:
    """Statements, each with the string that stands below it."""
    for i, node in enumerate(body):
        after = body[i + 1] if i + 1 < len(body) else None
        text = after.value.value if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) else ""
        yield node, " ".join(str(text).split())


def _assignments(module: ast.Module) -> Iterator[tuple[str, ast.expr]]:
    for node in module.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            yield node.targets[0].id, node.value


def _name(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else ""


def _is_union(node: ast.Subscript) -> bool:
    return isinstance(node.slice, ast.Tuple) and isinstance(node.slice.elts[0], ast.BinOp)


def _type(field: ast.AnnAssign) -> str:
    """A field's type, its bounds and its default: `float, >= 0, else 0.0`."""
    parts = [_described(field.annotation)]
    value = field.value
    if isinstance(value, ast.Call) and _name(value.func) == "Field":
        parts += _bounds(value)
        value = next((keyword.value for keyword in value.keywords if keyword.arg == "default"), None)
    if value is not None:
        parts.append(f"else {ast.unparse(value)}")
    return ", ".join(parts)


def _described(annotation: ast.expr) -> str:
    """An annotation in words: what is inside `Annotated` and its bounds."""
    if isinstance(annotation, ast.Subscript) and _name(annotation.value) == "Annotated":
        assert isinstance(annotation.slice, ast.Tuple)
        inner, *calls = annotation.slice.elts
        bounds = [bound for call in calls if isinstance(call, ast.Call) for bound in _bounds(call)]
        return ", ".join([ast.unparse(inner), *bounds])
    return ast.unparse(annotation)


def _bounds(call: ast.Call) -> list[str]:
    given = {keyword.arg: _plain(keyword.value) for keyword in call.keywords if keyword.arg in BOUNDS}
    if "min_length" in given and given["min_length"] == given.get("max_length"):
        return [f"exactly {given['min_length']}"]
    return [BOUNDS[name].format(value) for name, value in given.items() if name is not None]


def _plain(value: ast.expr) -> str:
    return str(value.value) if isinstance(value, ast.Constant) else ast.unparse(value)


def _wrapped(head: str, words: str, column: int) -> Iterator[str]:
    """`head`, and from a column on words, in lines of a width."""
    line = f"{head:<{column}}"
    if len(head) >= column and words:  # no room beside it
        yield head
        line = " " * column
    for word in words.split():
        if len(line) + len(word) + 1 > WIDTH:
            yield line.rstrip()
            line = " " * column
        line += word if line.endswith(" ") else f" {word}"
    yield line.rstrip()


def main(arguments: list[str]) -> int:
    stale = []
    for name in PAGES:
        page = ROOT / name
        text = page.read_text()
        new = build(text)
        if new != text:
            stale.append(name)
            if "--check" not in arguments:
                page.write_text(new)
    if "--check" in arguments and stale:
        sys.stderr.write(f"{', '.join(stale)}: not what the code says; run `python -m docs.build`\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
