"""Many seeds of many rows in virtual time: in parallel, kept as they come, and gone on with where they were left.

A seed of a row costs 1 CPU second with two members, 2 with four, 5 with eight, and on a slow processor twice as many.
Each role has its seeds in the sizes of its groups by turns, and those that are another form of one a fifth of them: 300
are 11,740 stories, four to ten hours of two processors. What is played is kept in a file, a line each; what is in it
for the same code is not played again.
"""

import ast
import hashlib
import json
import multiprocessing
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

import grimp

from benchmarks.hostile.columns import Columns, line
from benchmarks.hostile.virtual import CROWDS, SIZES, Seen, Window, baseline, columns_of, play
from dipaco_swarm.testing.cast import ROLES

Row = tuple[str, int]
"""A role, and how many members the group has with it; strangers come besides."""
Played = tuple[str, int, int]
"""A row and a seed."""

VARIANTS = {
    *("twin", "answers", "gathers", "holds", "is-there*10", "takeover@away"),
    *("wrong-scaled", "wrong-partly", "wrong-hidden", "unsent"),
    *("mute*2", "mute-reducer*2", "equivocator*2", "staller*2", "freezer*2", "refuser*2"),
    *("mixed", "mixed*2", "drift", "shrink", "erase", "cover"),
}
"""Rows that are another form of one: of a takeover, a name that does not come, a dishonest reducer or leader, noise, a
flipped step."""
OF_VARIANTS = 5
"""They have a seed where others have so many."""
LARGE = 8
"""Groups of so many have half as many seeds as smaller ones: each costs as much as two to five of these."""

ROOT = Path(__file__).parents[2]
STORIES = "benchmarks.hostile.virtual"
JUDGES = "benchmarks.hostile.columns"
"""What it says of a seed is reckoned anew from what was measured."""
BY_NAME = ("dipaco_swarm.algorithm", "dipaco_swarm.swarm.round")
"""Packages of which modules are imported by a name in a run file."""
DRAWN = {f"dipaco_swarm.dashboard.{name}" for name in ("drawing", "fitting", "peer_drawing", "shapes")}
"""Nobody looks at a screen there."""
SILENT = (
    "dipaco_swarm.operator.scores",
    "dipaco_swarm.operator.snapshots",
    "dipaco_swarm.peer.answering",
    "dipaco_swarm.peer.shares",
    "dipaco_swarm.peer.snapshots",
    "dipaco_swarm.run.checking",
    "dipaco_swarm.run.growth",
    "dipaco_swarm.run.problems",
    "dipaco_swarm.run.reach",
    "dipaco_swarm.snapshots",
    *(f"dipaco_swarm.training.{name}" for name in ("bending", "dipaco_model", "documents", "encoding", "evaluation")),
    *(f"dipaco_swarm.training.{name}" for name in ("inference", "inner", "modules", "packing", "pieces", "scoring")),
    *(f"dipaco_swarm.training.{name}" for name in ("tokenizer", "writing", "reading", "sources")),
)
"""Modules and packages of which nothing runs there, as a test finds: neither documents nor a real model are in it. The
trainer (`testing/training.py`) says nothing of a loss, so contributions are not tried either."""


def plan(roles: Sequence[str], sizes: Sequence[int]) -> list[Row]:
    """The rows of a table. No roles: all; no sizes: 2, 4 and 8, and what `CROWDS` names for several."""
    names = list(roles) or [
        *(role for role in ROLES if role != "dead"),
        *(role for role in CROWDS if role not in ROLES),
    ]
    own = {role: (*(SIZES if role in ROLES else ()), *CROWDS.get(role, ())) or SIZES for role in names}
    return [(role, size) for role in names for size in sizes or own[role]]


def turns(wanted: Sequence[Row], seeds: int) -> Iterator[Played]:
    """So many seeds of each role, in all its sizes by turns; and before each, what it is compared with."""
    sizes: dict[str, list[int]] = {}
    for role, size in wanted:
        sizes.setdefault(role, []).append(size)
    seen, compared = Counter[Row](), set[Played]()
    for turn in range(seeds):
        for role, of in sizes.items():
            if turn >= seeds_of(role, seeds):
                continue
            order = [*(size for size in of if size < LARGE), *of]
            size = order[turn % len(order)]
            seed = seen[role, size]
            seen[role, size] += 1
            alone = (*baseline(role, size), seed)
            if alone not in compared:
                compared.add(alone)
                yield alone
            yield role, size, seed


def seeds_of(role: str, seeds: int) -> int:
    """How many a role has, where most have so many."""
    return -(-seeds // OF_VARIANTS) if role in VARIANTS else seeds


class Kept:
    """Seeds that were played, in a file."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._code = digest_of_code()
        self.found: dict[Played, Seen] = {}
        for text in file.read_text().splitlines() if file.exists() else ():
            said = json.loads(text)
            if said.pop("code") == self._code:
                role, size, seed = said.pop("role"), said.pop("size"), said.pop("seed")
                self.found[role, size, seed] = _seen(said)

    def add(self, played: Played, seen: Seen) -> None:
        self.found[played] = seen
        role, size, seed = played
        said = {"code": self._code, "role": role, "size": size, "seed": seed, **asdict(seen)}
        self._file.parent.mkdir(parents=True, exist_ok=True)
        with self._file.open("a") as file:
            file.write(json.dumps(said) + "\n")

    def columns(self, role: str, size: int, seed: int) -> Columns | None:
        """A seed of a row; None where it, or what it is compared with, was not played."""
        seen, alone = self.found.get((role, size, seed)), self.found.get((*baseline(role, size), seed))
        return None if seen is None or alone is None else columns_of(role, alone, seen)

    def rows(self, wanted: Iterable[Row]) -> dict[Row, Columns]:
        """Those of which a seed was played, over all their seeds."""
        seeds = sorted({seed for _, _, seed in self.found})
        of = {row: [found for seed in seeds if (found := self.columns(*row, seed)) is not None] for row in wanted}
        return {row: Columns.of(several) for row, several in of.items() if several}


def sweep(
    wanted: Sequence[Row],
    seeds: int,
    jobs: int,
    kept: Kept,
    *,
    seconds: float | None = None,
    tell: Callable[[str], None] = lambda line: None,
) -> dict[Row, Columns]:
    """Play what was not played yet of so many seeds of each role; `seconds`: none begins after that."""
    began = time.monotonic()
    left = (played for played in turns(wanted, seeds) if played not in kept.found)
    in_time = (each for each in left if seconds is None or time.monotonic() - began < seconds)
    for played, seen in _played(in_time, jobs):
        kept.add(played, seen)
        if played[:2] in wanted and (columns := kept.columns(*played)) is not None:
            tell(f"seed {played[2]}: {line(*played[:2], columns)}")
    return kept.rows(wanted)


def _played(work: Iterator[Played], jobs: int) -> Iterator[tuple[Played, Seen]]:
    if jobs == 1:
        for each in work:
            yield each, play(*each)
        return
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["benchmarks.hostile.virtual"])
    with ProcessPoolExecutor(jobs, mp_context=context) as pool:
        under_way: dict[Future[Seen], Played] = {}
        for each in work:
            under_way[pool.submit(play, *each)] = each
            if len(under_way) >= jobs:
                done = next(as_completed(under_way))
                yield under_way.pop(done), done.result()
        for done in as_completed(under_way):
            yield under_way[done], done.result()


def _seen(said: Mapping[str, Any]) -> Seen:
    known: dict[str, Any] = {key: Window(**value) if isinstance(value, dict) else value for key, value in said.items()}
    return Seen(**known)


@cache
def digest_of_code() -> str:
    """Of all code that a seed's story follows from; words for people are none of it."""
    graph = grimp.build_graph("dipaco_swarm", "benchmarks")
    modules = {STORIES, *graph.find_upstream_modules(STORIES)} - {JUDGES} - DRAWN
    for package in BY_NAME:
        modules |= {package, *graph.find_descendants(package)}
    modules = {module for module in modules if not is_silent(module)}
    whole = hashlib.sha256()
    for module in sorted(modules):
        file = ROOT / module.replace(".", "/")
        file = file / "__init__.py" if file.is_dir() else file.with_suffix(".py")
        whole.update(f"{module}\n{without_words(file.read_text())}\n".encode())
    return whole.hexdigest()[:16]


def is_silent(module: str) -> bool:
    return f"{module}.".startswith(tuple(f"{silent}." for silent in SILENT))


def without_words(code: str) -> str:
    """What a file of Python does: its syntax without comments, layout, and strings that stand by themselves."""
    tree = ast.parse(code)
    for node in ast.walk(tree):
        if isinstance(body := getattr(node, "body", None), list):
            node.body = [each for each in body if not _is_a_word(each)]  # type: ignore[attr-defined]
    return ast.dump(tree)


def _is_a_word(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
