"""Which path a peer should train: the one that has the least, of people first and then of training."""

import hashlib
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dipaco_swarm.algorithm.paths import ModuleId, PathIndex, PathTable


def neediest_path(
    table: PathTable, staffing: Mapping[PathIndex, int], progress: Mapping[PathIndex, float], seed: int
) -> PathIndex:
    """The path with the fewest peers; of those, the one with the least progress; of those, one chosen by `seed`.

    `staffing`: peers per path; `progress`: how far a path has come, in any one unit (tokens, rounds). Paths that are
    not mentioned have zero; what is not in the table is ignored. `seed`: the newcomer's own number (from its peer
    id), so that newcomers who see the same swarm at the same time spread over equally needy paths.
    """

    def need(path: PathIndex) -> tuple[int, float, bytes]:
        lot = hashlib.sha256(f"dipaco assignment {seed} {path}".encode()).digest()
        return staffing.get(path, 0), progress.get(path, 0.0), lot

    return min((PathIndex(path) for path in range(table.num_paths)), key=need)


@dataclass(frozen=True)
class Staffing:
    """Who trains what in a stage, and how far it has come: one view of it."""

    staying: Mapping[str, PathIndex]
    """Peers that were told their path."""
    moving: Mapping[str, PathIndex | None]
    """Peers that go where they are needed; None: on the way from one path to another."""
    versions: Mapping[ModuleId, int]
    """The newest version of every module that anybody has."""
    last_version: int | None
    """The stage is over when every module has this version; None: it goes on."""


def path_to_be_on(table: PathTable, staffing: Staffing, name: str, stays: Mapping[PathIndex, int] | None) -> PathIndex:
    """Where the moving peer `name` should be for its next stay. `stays`: how often it has stayed on each path in this
    stage; None: it has not stayed long enough on this one to go on.

    Paths with a module that has not come to the stage's end are open. Movers enough for every open path that nobody
    stays on, or a mover that should stay for now: they spread evenly, moving as little as possible. Fewer: each has a
    round of paths, so many apart as there are movers, from a place by its rank, and goes to where it has been least;
    so all of these paths progress alike, and at any time movers are on paths that share little (the paper works off
    its paths in turns, too; section 3). Where everything is done everybody stays.
    """
    paths = [path for path in _by_turns(table) if _is_open(table, path, staffing)]
    now = staffing.moving[name]
    if not paths and now is not None:
        return now
    stayed_on = set(staffing.staying.values())
    lonely = [path for path in paths if path not in stayed_on]
    movers = sorted(staffing.moving)
    if stays is None or len(movers) >= len(lonely):
        return settled(paths, staffing.staying, staffing.moving, name)
    # over open and closed paths alike, so that nobody's round changes when a path is done
    places = [path for path in _by_turns(table) if path not in stayed_on]
    turns = range(len(places) // math.gcd(len(places), len(movers)))
    round_of_paths = [places[(movers.index(name) + turn * len(movers)) % len(places)] for turn in turns]
    return min([path for path in round_of_paths if path in lonely] or lonely, key=lambda path: stays.get(path, 0))


def settled(
    paths: Sequence[PathIndex], staying: Mapping[str, PathIndex], moving: Mapping[str, PathIndex | None], name: str
) -> PathIndex:
    """The path of the moving peer `name` when nobody is crowded: its own, or one with at least two peers fewer.

    Newcomers who chose at the same time did not see each other. From one view all compute the same moves: first those
    whose path is not among `paths` go to the emptiest, then movers go from the fullest path to the emptiest, greatest
    name first, until none differs by two.
    """
    stay = Counter(path for path in staying.values() if path in paths)
    movers: dict[PathIndex, list[str]] = {path: [] for path in sorted(paths)}
    homeless = []
    for peer in sorted(moving):
        at = moving[peer]
        if at is not None and at in movers:
            movers[at].append(peer)
        else:
            homeless.append(peer)

    def crowd(path: PathIndex) -> int:
        return stay[path] + len(movers[path])

    for peer in homeless:
        movers[min(movers, key=lambda path: (crowd(path), path))].append(peer)
    while True:
        fullest = max((path for path in movers if movers[path]), key=lambda path: (crowd(path), -path))
        emptiest = min(movers, key=lambda path: (crowd(path), path))
        if crowd(fullest) - crowd(emptiest) < 2:
            return next(path for path, names in movers.items() if name in names)
        movers[emptiest].append(movers[fullest].pop())


def _is_open(table: PathTable, path: PathIndex, staffing: Staffing) -> bool:
    last = staffing.last_version
    return last is None or any(staffing.versions.get(module, 0) < last for module in table.modules_of(path))


def _by_turns(table: PathTable) -> list[PathIndex]:
    """All paths in an order in which neighbours share few modules: the diagonals of a grid, one after the other."""
    width = max(max(row) for row in table.rows) + 1
    return sorted((PathIndex(path) for path in range(table.num_paths)), key=lambda p: (sum(table.rows[p]) % width, p))
