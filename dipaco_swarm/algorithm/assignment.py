"""Which path a peer should train: the one that has the least, of people first and then of training."""

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


def settled(table: PathTable, taken: Mapping[str, PathIndex], name: str) -> PathIndex:
    """The path of the peer `name` when nobody is crowded: its own, or one with at least two peers fewer.

    Newcomers who chose at the same time did not see each other. From one view (`taken`: the path of every peer) all
    compute the same moves: from the fullest path to the emptiest, greatest name first, until none differs by two.
    Paths outside the table do not count.
    """
    peers: dict[PathIndex, list[str]] = {PathIndex(path): [] for path in range(table.num_paths)}
    for peer in sorted(taken):
        if taken[peer] in peers:
            peers[taken[peer]].append(peer)
    while True:
        fullest = max(peers, key=lambda path: (len(peers[path]), -path))
        emptiest = min(peers, key=lambda path: (len(peers[path]), path))
        if len(peers[fullest]) - len(peers[emptiest]) < 2:
            return next(path for path, names in peers.items() if name in names)
        peers[emptiest].append(peers[fullest].pop())
