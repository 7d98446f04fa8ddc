"""Whether somebody whom we know was in the run not long ago: gone without a word, it may be back with what it has."""

from dipaco_swarm.algorithm.paths import ModuleId
from dipaco_swarm.swarm.circle import Circle
from dipaco_swarm.swarm.directory import Directory
from dipaco_swarm.swarm.transport import Transport


class Familiar:
    """From what one peer has heard in this life, and whom it knows from those before. From any thread."""

    def __init__(self, transport: Transport, directory: Directory, circle: Circle) -> None:
        self._us = transport.peer
        self._clock = transport.clock
        self._long_ago = transport.timing.long_ago
        self._directory = directory
        self._circle = circle
        was_last, has_others = circle.enter(), circle.has_others(transport.peer)
        self._came_back = transport.clock.boottime() if has_others and not was_last else float("-inf")
        """To others whom we know; never, in a first life, or where we were the last to leave."""

    def is_known(self, peer: str) -> bool:
        """Whether it is another one that has contributed."""
        return peer in self._circle and peer != self._us

    def somewhere(self) -> bool:
        """Whether it trained any module."""
        return self._is_just_back() or any(map(self.is_known, self._directory.trained_lately()))

    def there(self, stage: int, module: ModuleId) -> bool:
        """The same of a module, without those who train another one now."""
        moved = self._directory.training()
        lately = (peer for peer in self._directory.lately(stage, module) if peer not in moved)
        return self._is_just_back() or any(map(self.is_known, lately))

    def leave(self) -> None:
        """This life ends with a word."""
        others = any(map(self.is_known, self._directory.trained_lately(here=True)))
        self._circle.leave(alone=not (self._is_just_back() or others))

    def _is_just_back(self) -> bool:
        """Whether they may have been here a moment ago although we have not heard them: a power cut takes us all."""
        return self._clock.boottime() - self._came_back < self._long_ago
