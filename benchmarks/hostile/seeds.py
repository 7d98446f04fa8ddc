"""Many seeds of many rows in virtual time: in parallel, kept as they come, and gone on with where they were left.

A seed of a row costs 1.4 CPU seconds with two members, 3.3 with four, 10 with eight: 300 seeds of all rows are days.
What is played is kept in a file, a line each; what is in it for the same code is not played again.
"""

import ast
import hashlib
import json
import multiprocessing
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import asdict
from functools import cache
from pathlib import Path

import grimp

from benchmarks.hostile.columns import Columns, line
from benchmarks.hostile.virtual import CROWDS, SIZES, play
from dipaco_swarm.testing.cast import ROLES

Row = tuple[str, int]
"""A role, and how many members the group has with it; strangers come besides."""
Played = tuple[str, int, int]
"""A row and a seed."""

ROOT = Path(__file__).parents[2]
STORIES = "benchmarks.hostile.virtual"
JUDGES = "benchmarks.hostile.columns"
"""What it says of a seed is reckoned anew from what was measured."""
BY_NAME = ("dipaco_swarm.algorithm", "dipaco_swarm.swarm.round")
"""Packages of which modules are imported by a name in a run file."""


def plan(roles: Sequence[str], sizes: Sequence[int]) -> list[Row]:
    """The rows of a table. No roles: all; no sizes: 2, 4 and 8, and what `CROWDS` names for several."""
    names = list(roles) or [
        *(role for role in ROLES if role != "dead"),
        *(role for role in CROWDS if role not in ROLES),
    ]
    own = {role: (*(SIZES if role in ROLES else ()), *CROWDS.get(role, ())) or SIZES for role in names}
    return [(role, size) for role in names for size in sizes or own[role]]


class Kept:
    """Seeds that were played, in a file."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._code = digest_of_code()
        self.found: dict[Played, Columns] = {}
        for text in file.read_text().splitlines() if file.exists() else ():
            said = json.loads(text)
            if said.pop("code") == self._code:
                role, size, seed = said.pop("role"), said.pop("size"), said.pop("seed")
                self.found[role, size, seed] = _columns(said)

    def add(self, played: Played, columns: Columns) -> None:
        self.found[played] = columns
        role, size, seed = played
        said = {"code": self._code, "role": role, "size": size, "seed": seed, **asdict(columns)}
        self._file.parent.mkdir(parents=True, exist_ok=True)
        with self._file.open("a") as file:
            file.write(json.dumps(said) + "\n")

    def rows(self, wanted: Iterable[Row]) -> dict[Row, Columns]:
        """Those of which a seed was played, over all their seeds."""
        of: dict[Row, list[Columns]] = {row: [] for row in wanted}
        for (role, size, _), columns in sorted(self.found.items()):
            if (role, size) in of:
                of[role, size].append(columns)
        return {row: Columns.of(several) for row, several in of.items() if several}


def sweep(
    wanted: Sequence[Row],
    seeds: Sequence[int],
    jobs: int,
    kept: Kept,
    *,
    seconds: float | None = None,
    tell: Callable[[str], None] = lambda line: None,
) -> dict[Row, Columns]:
    """Play what was not played yet, seed by seed over all rows; `seconds`: no seed begins after that."""
    began = time.monotonic()
    left = [(role, size, seed) for seed in seeds for role, size in wanted if (role, size, seed) not in kept.found]
    in_time = (each for each in left if seconds is None or time.monotonic() - began < seconds)
    for (role, size, seed), columns in _played(in_time, jobs):
        kept.add((role, size, seed), columns)
        tell(f"seed {seed}: {line(role, size, columns)}")
    return kept.rows(wanted)


def _played(work: Iterator[Played], jobs: int) -> Iterator[tuple[Played, Columns]]:
    if jobs == 1:
        for each in work:
            yield each, play(*each)
        return
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["benchmarks.hostile.virtual"])
    with ProcessPoolExecutor(jobs, mp_context=context) as pool:
        under_way: dict[Future[Columns], Played] = {}
        for each in work:
            under_way[pool.submit(play, *each)] = each
            if len(under_way) >= jobs:
                done = next(as_completed(under_way))
                yield under_way.pop(done), done.result()
        for done in as_completed(under_way):
            yield under_way[done], done.result()


def _columns(said: Mapping[str, object]) -> Columns:
    return Columns(**{key: tuple(value) if isinstance(value, list) else value for key, value in said.items()})  # type: ignore[arg-type]


@cache
def digest_of_code() -> str:
    """Of all code that a seed's story follows from; words for people are none of it."""
    graph = grimp.build_graph("dipaco_swarm", "benchmarks")
    modules = {STORIES, *graph.find_upstream_modules(STORIES)} - {JUDGES}
    for package in BY_NAME:
        modules |= {package, *graph.find_descendants(package)}
    whole = hashlib.sha256()
    for module in sorted(modules):
        file = ROOT / module.replace(".", "/")
        file = file / "__init__.py" if file.is_dir() else file.with_suffix(".py")
        whole.update(f"{module}\n{without_words(file.read_text())}\n".encode())
    return whole.hexdigest()[:16]


def without_words(code: str) -> str:
    """What a file of Python does: its syntax without comments, layout, and strings that stand by themselves."""
    tree = ast.parse(code)
    for node in ast.walk(tree):
        if isinstance(body := getattr(node, "body", None), list):
            node.body = [each for each in body if not _is_a_word(each)]  # type: ignore[attr-defined]
    return ast.dump(tree)


def _is_a_word(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
