"""The streams of one round on one peer, and how much has gone over them: those that have ended are counted, not held.

Whoever is in a round may open streams and close them as often as it likes.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field

from dipaco_swarm.swarm.transport import Stream


@dataclass
class CountedStreams:
    """Bytes, of those that are open and those that were."""

    open: set[Stream] = field(default_factory=set)
    _sent: int = 0
    _received: int = 0
    _arrived: int = 0

    @contextlib.contextmanager
    def counted(self, stream: Stream) -> Iterator[None]:
        self.open.add(stream)
        try:
            yield
        finally:
            self.open.remove(stream)
            self._sent += stream.sent
            self._received += stream.received
            self._arrived += stream.arrived

    @property
    def sent(self) -> int:
        return self._sent + sum(stream.sent for stream in self.open)

    @property
    def received(self) -> int:
        return self._received + sum(stream.received for stream in self.open)

    @property
    def arrived(self) -> int:
        return self._arrived + sum(stream.arrived for stream in self.open)
