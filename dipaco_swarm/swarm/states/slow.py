"""Who was slow when it last sent us something. It is asked last: names cost nothing, and may be slow on purpose."""

from collections.abc import Sequence

from dipaco_swarm.algorithm.forgetting import put_last

MOST = 1024
"""Names."""


class SlowPeers:
    """What is known of those of whom one node asks states and files."""

    def __init__(self) -> None:
        self._paces: dict[str, float] = {}
        """Name -> seconds that a byte took."""

    def note(self, peer: str, pace: float) -> None:
        put_last(self._paces, peer, pace, MOST)

    def forget(self, peer: str) -> None:
        """It is slow no more."""
        self._paces.pop(peer, None)

    def last(self, peers: Sequence[str]) -> list[str]:
        """The same, in the same order, with who was slow at the end: the slowest last."""
        return sorted(peers, key=lambda peer: self._paces.get(peer, 0.0))
