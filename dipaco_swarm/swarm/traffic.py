"""What goes over this machine's line, by purpose: counted where streams carry it. And how fast the line takes it.

A stream knows what its bytes are for (`Stream.purpose`); whoever opens or serves it says so. What hivemind's directory
sends is not in here: it goes from hivemind's code straight to the daemon. Nor are headers of packets, encryption, and
what a node relays for others. `benchmarks.utilisation` has all of that from the network interface.
"""

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from dipaco_swarm.machine.clock import Clock

UPLINK_BYTES = 1 << 24
"""So much is sent before the speed of our line is believed; what buffers on the way take is little of it."""


class Purpose(StrEnum):
    """What bytes are for."""

    ROUND = "round"
    """Outer gradients on their way to reducers, and averages on their way back."""
    VERSIONS = "versions"
    """Averages of rounds for those who were not in them: members that catch up, and the bootstrap node, which keeps."""
    JOINING = "joining"
    """Whole states and the run's files: for newcomers, and for who is too far behind for averages."""
    READING = "reading"
    """Parts of the corpus that others have routed (`sharing.py`)."""
    MESSAGES = "messages"
    """What is said about all these, over libp2p; within a process messages have no length."""


@dataclass(frozen=True)
class Traffic:
    """Bytes since the node was opened."""

    sent_for: Mapping[Purpose, int]
    """Each purpose has a number."""
    received_for: Mapping[Purpose, int]

    @property
    def sent(self) -> int:
        """Modules, outer gradients and blobs, without messages."""
        return _payload(self.sent_for)

    @property
    def received(self) -> int:
        return _payload(self.received_for)


class Meter:
    """Counts the bytes of all streams of a node."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._sent_for = dict.fromkeys(Purpose, 0)
        self._received_for = dict.fromkeys(Purpose, 0)
        self._sending = 0
        self._since = 0.0
        self._busy = 0.0
        self._counted = 0

    def note_sent(self, purpose: Purpose, size: int) -> None:
        self._sent_for[purpose] += size

    def note_received(self, purpose: Purpose, size: int) -> None:
        self._received_for[purpose] += size

    def traffic(self) -> Traffic:
        """So far; from any thread."""
        return Traffic(self._sent_for.copy(), self._received_for.copy())

    @contextlib.contextmanager
    def sending(self) -> Iterator[None]:
        """While somebody is waiting for our line to take bytes."""
        if not self._sending:
            self._since = self._clock.monotonic()
        self._sending += 1
        try:
            yield
        finally:
            self._sending -= 1
            if not self._sending:
                self._busy += self._clock.monotonic() - self._since
                sent = _payload(self._sent_for)
                if sent - self._counted > UPLINK_BYTES:  # half of what was, so that it follows the line
                    self._busy, self._counted = self._busy / 2, (sent + self._counted) // 2

    @property
    def uplink(self) -> float:
        """Bytes a second that our line has taken lately; 0 before it is known: buffers take the first megabytes."""
        sent = _payload(self._sent_for)
        return (sent - self._counted) / self._busy if sent > UPLINK_BYTES and self._busy else 0.0


def _payload(of: Mapping[Purpose, int]) -> int:
    return sum(size for purpose, size in of.items() if purpose is not Purpose.MESSAGES)
