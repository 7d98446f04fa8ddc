"""Where an error in what a peer sent ends: caught in one place, counted, said in few lines, and forgotten.

What is done for one peer, or with what it has sent, is done within `guard`; a stream that it opens, within `hear`. So
whatever a peer sends costs that peer its stream, and nobody else anything. Also where we have made a mistake: a bug
that somebody's bytes find is said as one, and can be counted, but it ends neither a round nor the program.
"""

import contextlib
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from typing import TypeVar

from dipaco_swarm.errors import RemoteDataError, in_short
from dipaco_swarm.machine.clock import Clock
from dipaco_swarm.swarm.addresses import site_of

log = logging.getLogger(__name__)

T = TypeVar("T")

WINDOW_SECONDS = 60.0
LINES_A_PEER = 3
"""About one peer in a minute; then the others are only counted."""
LINES = 12
"""About all peers in a minute."""
SHUNNED_AFTER = 30
"""Who breaks the protocol so often in a minute is not heard any more until the minute is over."""
MAX_STREAMS_A_PEER = 64
"""That one peer may have open to us at once..."""
MAX_STREAMS_A_SITE = 64
"""... and all strangers together that come from one place (`site_of`): names cost nothing, addresses do. Each stream
holds a message at most, of a MiB..."""
MAX_STREAMS_OF_STRANGERS = 2048
"""... and all strangers, so that those whom we know always find room."""


class Border:
    """What all peers have done wrong lately, as one peer sees it. Used from the loop."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.bugs = 0
        """Errors that were ours, so far."""
        self.is_strange: Callable[[str], bool] = lambda peer: False
        """Whether a peer has contributed to nothing that we know of, while others have."""
        self._open: Counter[str] = Counter()
        """Streams that peers have open to us..."""
        self._of_strangers: Counter[str] = Counter()
        """... and strangers, by where they come from."""
        self._since = clock.monotonic()
        """When the minute began; what is below is of this minute."""
        self._noted: Counter[str] = Counter()
        self._said = 0

    async def hear(self, peer: str, listen: Callable[[], Awaitable[None]], address: str = "") -> None:
        """Serve a stream that a peer has opened, unless it has too many, or has sent too much nonsense just now.

        `address`: where its connection comes from, as the transport says; empty where that is not known.
        """
        site = site_of(address) if self.is_strange(peer) else None
        if self._open[peer] >= MAX_STREAMS_A_PEER or self._is_crowded(site) or self.shuns(peer):
            log.debug("closed a stream of peer %s unheard", peer[-8:])
            return
        with counted(self._open, peer), counted(self._of_strangers, site), self.guard(peer, "ignored a peer"):
            await listen()

    def _is_crowded(self, site: str | None) -> bool:
        """Whether strangers have so many streams open to us that one more from there is too many. None: no stranger."""
        if site is None:
            return False
        from_there = self._of_strangers[site] if site else 0
        return from_there >= MAX_STREAMS_A_SITE or self._of_strangers.total() >= MAX_STREAMS_OF_STRANGERS

    @contextlib.contextmanager
    def guard(self, peer: str, doing: str) -> Iterator[None]:
        """Errors of this block end here. `doing`: what follows from one, for the log."""
        try:
            yield
        except RemoteDataError as error:
            self.note(error, doing)
        except (EOFError, ConnectionError, TimeoutError) as error:
            log.debug("a stream with peer %s ended early: %s", peer[-8:], error)
        except Exception as error:  # noqa: BLE001  # the one place that catches everything
            self._note_bug(peer, error)

    async def guarded(self, peer: str, work: Awaitable[T], otherwise: T) -> T:
        """What comes of work on what a peer sent; `otherwise` when it fails by a mistake of ours."""
        try:
            return await work
        except (RemoteDataError, EOFError, ConnectionError, TimeoutError):
            raise
        except Exception as error:  # noqa: BLE001  # as above, where the ordinary errors have another meaning
            self._note_bug(peer, error)
            return otherwise

    def note(self, error: RemoteDataError, doing: str) -> None:
        """A peer has broken the protocol. `doing`: what follows from that."""
        self._say(error.peer, f"{doing}: {error}")

    def shuns(self, peer: str) -> bool:
        """Whether it has broken the protocol too often in this minute."""
        self._begin_a_minute()
        return self._noted[peer] >= SHUNNED_AFTER

    def _note_bug(self, peer: str, error: Exception) -> None:
        self.bugs += 1
        ended = f"a mistake in this program ended what it did with peer {peer[-8:]}"
        self._say(peer, f"{ended} ({in_short(error)})", logging.ERROR)
        log.debug("where the mistake is", exc_info=error)

    def _say(self, peer: str, line: str, level: int = logging.WARNING) -> None:
        self._begin_a_minute()
        self._noted[peer] += 1
        if self._noted[peer] <= LINES_A_PEER and self._said < LINES:
            self._said += 1
        else:
            level = logging.DEBUG
        log.log(level, "%s", line)

    def _begin_a_minute(self) -> None:
        now = self._clock.monotonic()
        if now - self._since < WINDOW_SECONDS:
            return
        unsaid, peers = self._noted.total() - self._said, len(self._noted)
        if unsaid:
            log.warning("%d more messages that break the protocol came from %d peers in a minute", unsaid, peers)
        self._since, self._said = now, 0
        self._noted.clear()


@contextlib.contextmanager
def counted(counts: Counter[str], key: str | None) -> Iterator[None]:
    """Meanwhile there is one more of that; None: of nothing."""
    if key is None:
        yield
        return
    counts[key] += 1
    try:
        yield
    finally:
        counts[key] -= 1
        if not counts[key]:
            del counts[key]
