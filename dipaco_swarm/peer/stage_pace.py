"""When a stage ends, by how fast versions of a path's modules have come."""

from collections import deque
from statistics import fmean

from dipaco_swarm.dashboard.views import StageEnd
from dipaco_swarm.path_in_training import PathInTraining

WINDOW_SECONDS = 3600.0
"""Versions that are older do not say how fast they come now..."""
FEWEST = 3.0
"""... unless there are fewer: then it jumps with each of them."""


class StagePace:
    """Sees a path now and then, and remembers when its modules came to their versions."""

    def __init__(self) -> None:
        self._of: tuple[int, int] | None = None
        """Stage and path."""
        self._marks: deque[tuple[float, float]] = deque()
        """When, by the monotonic clock, the mean version was that."""

    def end_of(self, peer: PathInTraining) -> StageEnd | None:
        """How far the path is, and when it is done; None where the stage has no set end."""
        versions = [peer.progress[module].version for module in peer.modules]
        last = max(peer.rules.last_versions.values(), default=None)
        now, version = peer.swarm.clock.monotonic(), fmean(versions)
        self._see((peer.stage, peer.path), now, version)
        if last is None:
            return None
        (began, first), (came, newest) = self._marks[0], self._marks[-1]
        if newest - first < 1 or came <= began:
            return StageEnd(version, last)
        left = max(0.0, last - newest) * (came - began) / (newest - first)
        return StageEnd(version, last, max(0.0, left - (now - came)))

    def _see(self, of: tuple[int, int], now: float, version: float) -> None:
        if of != self._of or version < self._marks[-1][1]:
            self._of = of
            self._marks.clear()
        if not self._marks or version > self._marks[-1][1]:
            self._marks.append((now, version))
        while (
            len(self._marks) > 2 and now - self._marks[1][0] > WINDOW_SECONDS and version - self._marks[1][1] >= FEWEST
        ):
            self._marks.popleft()
