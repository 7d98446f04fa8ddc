"""Which path a peer should train: the one with the fewest peers; of those, the one with the least progress."""

import hashlib
import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from dipaco_swarm.algorithm.paths import ModuleId, PathIndex, PathTable


def neediest_path(
    table: PathTable,
    staffing: Mapping[PathIndex, int],
    progress: Mapping[PathIndex, float],
    seed: int,
    resting: Collection[int] = (),
) -> PathIndex:
    """The path with the fewest peers; of those, the one with the least progress; of those, one chosen by `seed`.

    `staffing`: peers per path; `progress`: how far a path has come, in any one unit (tokens, rounds). Paths that are
    not mentioned have zero; `resting` ones are never chosen; what is not in the table is ignored. `seed`: the
    newcomer's own number (from its peer id), so that newcomers who see the same swarm at the same time spread over
    equally needy paths.
    """

    def need(path: PathIndex) -> tuple[int, float, bytes]:
        lot = hashlib.sha256(f"dipaco assignment {seed} {path}".encode()).digest()
        return staffing.get(path, 0), progress.get(path, 0.0), lot

    return min((PathIndex(path) for path in range(table.num_paths) if path not in resting), key=need)


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
    resting: Collection[int] = ()
    """Paths that nobody trains."""


def path_to_be_on(table: PathTable, staffing: Staffing, name: str, stays: Mapping[PathIndex, int] | None) -> PathIndex:
    """The path that the moving peer `name`, which is on some path now, should train next.

    `stays`: how often it has stayed on each path in this stage; None: its stay on the current path is not over. A path
    is open while one of its modules has not reached the stage's end, and lonely when no staying peer trains it. All
    peers that see the same swarm compute the same moves:

    - Nothing is open: stay.
    - As many movers as lonely paths or more, or the stay is not over: spread evenly, with few moves (`settled`).
    - Fewer movers: each has a fixed rotation of paths and takes the lonely one on which it has stayed least. Rotations
      begin at the mover's rank and step by the number of movers. So all paths progress alike, and at any time the
      movers are on paths that share few modules. (Paths take turns on fewer workers in the paper too; section 3.)
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
    # closed paths keep their places, so that no rotation changes when a path is done
    places = [path for path in _by_turns(table) if path not in stayed_on and path not in staffing.resting]
    turns = range(len(places) // math.gcd(len(places), len(movers)))
    round_of_paths = [places[(movers.index(name) + turn * len(movers)) % len(places)] for turn in turns]
    return min([path for path in round_of_paths if path in lonely] or lonely, key=lambda path: stays.get(path, 0))


def settled(
    paths: Sequence[PathIndex], staying: Mapping[str, PathIndex], moving: Mapping[str, PathIndex | None], name: str
) -> PathIndex:
    """The path of the moving peer `name` when all have spread evenly: its own, or one with at least two peers fewer.

    Newcomers who chose at the same time did not see each other and may crowd one path. All that see the same swarm
    compute the same moves. First, movers whose path is not among `paths` go to the emptiest. Then movers go from the
    fullest path to the emptiest, greatest name first, until the two differ by less than two peers.
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
    if path in staffing.resting:
        return False
    return last is None or any(staffing.versions.get(module, 0) < last for module in table.modules_of(path))


def _by_turns(table: PathTable) -> list[PathIndex]:
    """All paths in an order in which neighbours share few modules: the diagonals of a grid, one after the other."""
    width = max(max(row) for row in table.rows) + 1
    return sorted((PathIndex(path) for path in range(table.num_paths)), key=lambda p: (sum(table.rows[p]) % width, p))
