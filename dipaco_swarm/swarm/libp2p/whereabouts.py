"""Where a node is that we know by name alone: the nodes of the DHT tell each other names, and no addresses.

    we -- AskPlaces(peer) -----> who has named it to us, the bootstrap nodes, those near it in the DHT
                                 are connected to it, and ask it over that
    we <-- PlacesAre ----------- where it says that it can be dialled

libp2p's daemon has a search of its own for that, IPFS's Kademlia, and does not run it: whoever answers there sets aside
4 MiB for a stream with a byte on it, and keeps all that anybody says it provides.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence

from hivemind.dht.routing import RoutingTable
from hivemind.p2p import PeerID

from dipaco_swarm.algorithm.forgetting import put_last
from dipaco_swarm.errors import RemoteDataError
from dipaco_swarm.machine.clock import Clock
from dipaco_swarm.swarm.addresses import address_of, place_in
from dipaco_swarm.swarm.greetings import MAX_PLACES, AskPlaces, PlacesAre
from dipaco_swarm.swarm.libp2p.address_book import is_dialable
from dipaco_swarm.swarm.libp2p.bounded_dht import node_id_of
from dipaco_swarm.swarm.libp2p.identity import public_key
from dipaco_swarm.swarm.transport import Stream
from dipaco_swarm.swarm.wire import NotHere

log = logging.getLogger(__name__)

PROTOCOL = "dipaco/1/where"
QUESTION_SECONDS = 8.0
ANSWER_SECONDS = 3.0
"""Two round trips, of which the second is over somebody else's line."""
MAX_ASKED = 4
MAX_REMEMBERED = 4096
"""Peers of whom we remember who named them, and where they are."""
FRESH_SECONDS = 60.0
"""So long a peer is not asked again where it is..."""
MISSED_SECONDS = 10.0
"""... and not looked for again, where nobody knew."""

Ask = Callable[[str, str], Awaitable[Sequence[str]]]
"""A peer to which there is a connection, and the one it is asked about -> places. Empty: it does not say."""


class Whereabouts:
    """Finds peers, and tells others of them."""

    def __init__(self, peer: str, clock: Clock, ask: Ask, own: Callable[[], Awaitable[Sequence[str]]]) -> None:
        """`own`: our addresses."""
        self._peer, self._clock, self._ask, self._own = peer, clock, ask, own
        self.roots: Sequence[str] = ()
        """Names of the bootstrap nodes."""
        self.table: RoutingTable | None = None
        """Of the DHT, once it is there."""
        self.told: Callable[[str], Sequence[str]] = lambda peer: ()
        """Addresses that a peer has announced."""
        self._namers: dict[str, tuple[str, ...]] = {}
        """Name -> who has named it last, the last one first."""
        self._found: dict[str, tuple[float, tuple[str, ...]]] = {}
        """Name -> when it was asked, and what it said."""
        self._missed: dict[str, float] = {}
        """Name -> when nobody knew where it is."""

    def note_named(self, by: str, names: Iterable[str]) -> None:
        """A node has said that these are there."""
        for name in names:
            others = (other for other in self._namers.get(name, ()) if other != by)
            put_last(self._namers, name, (by, *others)[:MAX_ASKED], MAX_REMEMBERED)

    async def find(self, peer: str) -> tuple[str, ...]:
        """Where others say that a peer is; empty where nobody knows."""
        now = self._clock.monotonic()
        if now - self._missed.get(peer, -MISSED_SECONDS) < MISSED_SECONDS:
            return ()
        others = (*self._namers.get(peer, ()), *self.roots, *self._near(peer))
        asked = [other for other in dict.fromkeys(others) if other not in (peer, self._peer)][: 2 * MAX_ASKED]
        answers = await asyncio.gather(*(self._ask_in_time(other, peer) for other in asked))
        places = tuple(dict.fromkeys(place for said in answers for place in said))
        if not places:
            put_last(self._missed, peer, now, MAX_REMEMBERED)
        return places

    async def answer(self, stream: Stream) -> None:
        """Say where somebody is."""
        async with asyncio.timeout(QUESTION_SECONDS):
            message = await stream.receive()
        if not isinstance(message, AskPlaces):
            await stream.send(NotHere())
            raise RemoteDataError(stream.peer, f"says {type(message).__name__} instead of asking where somebody is")
        places = await self._places_of(message.peer)
        await stream.send(PlacesAre(places=tuple(place_in(address) for address in places[:MAX_PLACES])))

    async def _places_of(self, peer: str) -> Sequence[str]:
        if peer == self._peer:
            return await self._own()
        now = self._clock.monotonic()
        asked_at, found = self._found.get(peer, (-FRESH_SECONDS, ()))
        if now - asked_at >= FRESH_SECONDS and self._is_in_table(peer):
            put_last(self._found, peer, (now, ()), MAX_REMEMBERED)  # who else asks meanwhile does without
            found = tuple(await self._ask_in_time(peer, peer))
            self._found[peer] = now, found
        return found or self.told(peer)

    async def _ask_in_time(self, other: str, peer: str) -> Sequence[str]:
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                said = await self._ask(other, peer)
        except TimeoutError:
            return ()
        return [place for place in said if is_dialable(address_of(place, peer))]

    def _near(self, peer: str) -> list[str]:
        """Nodes near a peer's place in the DHT, who may know it."""
        if self.table is None:
            return []
        found = self.table.get_nearest_neighbors(node_id_of(peer), k=MAX_ASKED)
        return [other.to_base58() for _, other in found]

    def _is_in_table(self, peer: str) -> bool:
        """Whether we would name it ourselves; of anybody else nobody has to hear from us."""
        if self.table is None or public_key(peer) is None:
            return False
        return self.table.get(peer_id=PeerID.from_base58(peer)) is not None
