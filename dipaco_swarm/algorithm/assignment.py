"""Which path a newcomer should train: the one that has the least, of people first and then of training."""

import hashlib
from collections.abc import Mapping

from dipaco_swarm.algorithm.paths import PathIndex, PathTable


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
