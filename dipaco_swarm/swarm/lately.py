"""Who trained which module not long ago, whether they are there still or not."""

from collections.abc import Iterable

from dipaco_swarm.algorithm.forgetting import put_last
from dipaco_swarm.algorithm.paths import ModuleId
from dipaco_swarm.swarm.interface import PeerName

Key = tuple[int, ModuleId]
"""stage, module"""


class Lately:
    """Names of each module, and when something new was heard of each last; so long ago as to be forgotten, or not.

    Times are of the clock that counts sleep. Read from any thread.
    """

    def __init__(self, seconds: float) -> None:
        """`seconds`: what is longer ago than that is not lately."""
        self._seconds = seconds
        self._heard: dict[Key, dict[PeerName, float]] = {}

    def heard(self, key: Key, peer: PeerName, now: float, most: int) -> None:
        """It trains that module. `most`: names of one module; who was heard longest ago makes room."""
        put_last(self._heard.setdefault(key, {}), peer, now, most)

    def left(self, key: Key, peer: PeerName) -> None:
        """It has said goodbye; where it was in a stage before that, nobody reads any more that it did."""
        stage, _ = key
        for other, heard in list(self._heard.items()):
            if other == key or other[0] < stage:
                heard.pop(peer, None)

    def of(self, key: Key, now: float) -> list[PeerName]:
        return [peer for peer, then in self._heard.get(key, {}).copy().items() if now - then < self._seconds]

    def of_all(self, now: float, keys: Iterable[Key] | None = None) -> set[PeerName]:
        """The same of all modules, or of these."""
        return {peer for key in (list(self._heard) if keys is None else keys) for peer in self.of(key, now)}

    def forget(self, now: float) -> None:
        """Let go of modules that nobody was in for long."""
        for key in [key for key in self._heard if not self.of(key, now)]:
            del self._heard[key]
