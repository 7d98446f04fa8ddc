"""The network node of this machine: a libp2p daemon, hivemind's DHT on top of it, and the streams of our protocol.

    daemon.py        the daemon's process            connections.py   to whom it is connected, and over what
    starting.py      how a node starts and ends      incoming.py      streams that others open
    visibility.py    where others can dial us        leaks.py         what hivemind would keep for ever

hivemind's own `DHT` forks a Python process around the same parts; here they live in the loop of the caller, so that a
peer is one Python process and one daemon.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Iterator, Sequence
from functools import cached_property
from random import Random, SystemRandom

from hivemind.dht import DHTNode
from hivemind.p2p import P2P, PeerID

from dipaco_swarm.errors import RemoteDataError, nobody_answers
from dipaco_swarm.machine.clock import SYSTEM_CLOCK, Clock
from dipaco_swarm.swarm.addresses import name_in
from dipaco_swarm.swarm.border import Border
from dipaco_swarm.swarm.greetings import AskPlaces, Hello, PlacesAre, Welcome
from dipaco_swarm.swarm.interface import PeerName
from dipaco_swarm.swarm.libp2p import leaks
from dipaco_swarm.swarm.libp2p import reachability as reach
from dipaco_swarm.swarm.libp2p.connections import UNREACHED, Connections, speaks_not
from dipaco_swarm.swarm.libp2p.daemon import Daemon
from dipaco_swarm.swarm.libp2p.dht import DhtRecords
from dipaco_swarm.swarm.libp2p.identity import Identity, is_signed_by
from dipaco_swarm.swarm.libp2p.incoming import Incoming
from dipaco_swarm.swarm.libp2p.pipe import Pipe
from dipaco_swarm.swarm.libp2p.questions import Answer
from dipaco_swarm.swarm.libp2p.rate_limit import RateLimit
from dipaco_swarm.swarm.libp2p.reservations import Reservations
from dipaco_swarm.swarm.libp2p.settings import NodeSettings
from dipaco_swarm.swarm.libp2p.stream import PipeStream
from dipaco_swarm.swarm.libp2p.visibility import Visibility
from dipaco_swarm.swarm.libp2p.whereabouts import PROTOCOL as WHERE
from dipaco_swarm.swarm.libp2p.whereabouts import Whereabouts
from dipaco_swarm.swarm.threads import Threads
from dipaco_swarm.swarm.timing import Timing
from dipaco_swarm.swarm.traffic import Meter
from dipaco_swarm.swarm.transport import NotAnswering, NotOfThisRun, Stream, StreamHandler

log = logging.getLogger(__name__)

MEET_ATTEMPTS = 2
ASK_SECONDS = 6.0
"""A bootstrap node that has not said by then how it sees us is not waited for."""


class Node:
    """An open node: `transport.Transport` over libp2p. `starting.open_node` makes one."""

    dht: DHTNode
    """Set by `starting.open_node`; what `starting.open_door` opens has none."""

    def __init__(self, p2p: P2P, identity: Identity, settings: NodeSettings, daemon: Daemon) -> None:
        self.p2p = p2p
        self.daemon = daemon
        self.identity = identity
        self.settings = settings
        self.clock: Clock = SYSTEM_CLOCK
        self.timing = Timing()
        self.random: Random = SystemRandom()
        self.meter = Meter(self.clock)
        self.visibility = Visibility(settings.reachable)
        self._found: list[str] = []
        """Our addresses, as the daemon said them last."""
        self._rate_limit = RateLimit(settings.bandwidth)
        self._connections = Connections(p2p, daemon.socket)
        self._reservations = Reservations(daemon.socket, self.peer, self.clock)
        self.whereabouts = Whereabouts(self.peer, self.clock, self._ask_where, self.addresses)
        self.whereabouts.told, self._connections.find = self._connections.addresses_of, self.whereabouts.find
        self.border = Border(self.clock)
        self._incoming = Incoming(daemon.socket, self._stream_over, self.border)

    @property
    def peer(self) -> PeerName:
        return self.identity.peer

    @cached_property
    def records(self) -> DhtRecords:
        return DhtRecords(self.dht, self.identity, self.clock, self.random)

    @property
    def reachable(self) -> bool:
        """Whether others can dial us, as far as we know."""
        return self.visibility.reachable

    @property
    def lost(self) -> bool:
        return self.daemon.ended.is_set()

    def executor(self) -> Threads:
        return Threads()

    def sign(self, message: bytes) -> bytes:
        return self.identity.sign(message)

    def is_signed_by(self, peer: str, message: bytes, signature: bytes) -> bool:
        return is_signed_by(peer, message, signature)

    async def addresses(self) -> tuple[str, ...]:
        """Where others can dial us, each ending in /p2p/OUR-NAME: as we are seen, through relays, near by."""
        try:
            async with asyncio.timeout(self.timing.answer):
                self._found = [str(address) for address in await self.p2p.get_visible_maddrs(latest=True)]
        except ValueError:  # hivemind's word for "none"
            self._found = []
        except TimeoutError:  # those of before
            log.debug("the network daemon does not say where it is just now")
        by_relay = [] if self.reachable else self._reservations.addresses()
        return self.visibility.addresses([*self._found, *by_relay], self.peer)

    # streams -------------------------------------------------------------------------------------------------------

    async def serve(self, protocol: str, handler: StreamHandler) -> None:
        """Call `handler` with each stream that a peer opens for `protocol`; the stream closes when it returns."""
        await self._incoming.serve(protocol, handler)

    async def answer(self, protocol: str, answer: Answer) -> None:
        """The same for questions of the DHT: each stream is one, and its answer."""
        await self._incoming.answer(protocol, answer)

    @contextlib.asynccontextmanager
    async def dial(self, peer: str, protocol: str, *, timeout: float | None = None) -> AsyncIterator[Stream]:
        """A stream to a peer. Raises ConnectionError when it cannot be reached in time."""
        try:
            async with asyncio.timeout(timeout or self.timing.dial):
                pipe = await self._connections.open(peer, protocol)
        except TimeoutError:
            raise NotAnswering(f"peer {peer[-8:]} does not answer just now") from None
        except UNREACHED as error:
            if speaks_not(error):
                raise NotOfThisRun(f"peer {peer[-8:]} is there and takes no part in this run") from None
            log.debug("peer %s cannot be reached: %s", peer[-8:], error)
            raise ConnectionError(f"peer {peer[-8:]} cannot be reached just now") from None
        except ValueError:
            raise ConnectionError(f"{peer[:80]!r} is not the name of a peer") from None
        try:
            with self._stream_over(peer, pipe) as stream:
                yield stream
        finally:
            pipe.close()

    @contextlib.contextmanager
    def _stream_over(self, peer: str, pipe: Pipe, address: str = "") -> Iterator[Stream]:
        with self._connections.counted(peer):
            yield PipeStream(peer, pipe, self.meter, self._rate_limit, self.timing, address)

    async def reach(self, peer: str) -> bool:
        """Connect to a peer to which the daemon knows no way; False where nobody says where it is."""
        try:
            async with asyncio.timeout(self.timing.dial):
                return await self._connections.reach(peer)
        except UNREACHED:
            return False

    async def _ask_where(self, other: str, peer: str) -> Sequence[str]:
        try:
            pipe = await self._connections.open_connected(other, WHERE)
            try:
                with self._stream_over(other, pipe) as stream:
                    await stream.send(AskPlaces(peer=peer))
                    answer = await stream.receive()
            finally:
                pipe.close()
        except (*UNREACHED, RemoteDataError, ValueError) as error:
            log.debug("peer %s does not say where %s is: %s", other[-8:], peer[-8:], error)
            return ()
        return answer.places if isinstance(answer, PlacesAre) else ()

    def remember(self, peer: str, addresses: Sequence[str], *, reachable: bool) -> None:
        self._connections.remember(peer, addresses, reachable=reachable)

    def addresses_of(self, peer: str) -> tuple[str, ...]:
        """Where a peer said that it can be dialled, best first."""
        return self._connections.addresses_of(peer)

    # bootstrap nodes -----------------------------------------------------------------------------------------------

    async def meet(self, bootstraps: Sequence[str]) -> None:
        """Connect to the bootstrap nodes. Raises UnreachableError when none of them answers."""

        async def connect(place: str) -> str | None:
            try:
                async with asyncio.timeout(self.timing.dial):
                    await self._connections.connect(name_in(place), [place])
            except (*UNREACHED, ValueError) as error:
                return str(error).partition("\n")[0] or "no answer"
            return None

        failures: list[str | None] = []
        for _ in range(MEET_ATTEMPTS):
            failures = list(await asyncio.gather(*(connect(place) for place in bootstraps)))
            if None in failures:
                return
        raise nobody_answers(bootstraps, str(failures[0]))

    async def greet(self, address: str, *, anyway: bool) -> None:
        """Make sure that we and the node at this address know each other, in libp2p and in the DHT.

        `anyway`: also where we are connected, and so have met.
        """
        peer = name_in(address)
        try:
            async with asyncio.timeout(self.timing.dial):
                was_there = await self._connections.exists(peer)
                if anyway or not was_there:
                    await self._connections.connect(peer, [address])
                    await self.dht.protocol.call_ping(PeerID.from_base58(peer))
        except (*UNREACHED, ValueError) as error:
            log.debug("%s does not answer: %s", address, error)
            self._reservations.forget(address)
            return
        if not self.reachable and (not was_there or self._reservations.are_due(address)):
            await self._reservations.take(address)

    async def reserve(self, bootstraps: Sequence[str]) -> bool:
        """Have others come to us through these nodes; False where none of them relays."""
        return any(await asyncio.gather(*map(self._reservations.take, bootstraps)))

    async def ask(self, bootstrap: str, ports: Sequence[int] = (), ballast: bytes = b"") -> Welcome | None:
        """How the node at this address sees us, having knocked at these ports; None when it does not say.

        `ballast`: sent along, for whoever wants to know how long that takes.
        """
        try:
            async with asyncio.timeout(ASK_SECONDS):
                await self._connections.connect(name_in(bootstrap), [bootstrap])
                async with self.dial(name_in(bootstrap), reach.PROTOCOL) as stream:
                    await stream.send(Hello(ports=tuple(ports), ballast=ballast))
                    answer = await stream.receive()
        except (*UNREACHED, ValueError, RemoteDataError) as error:
            log.debug("%s does not say how it sees us: %s", bootstrap, error)
            return None
        return answer if isinstance(answer, Welcome) else None

    async def look(self, bootstraps: Sequence[str]) -> bool:
        """Ask the bootstrap nodes at which addresses they see us and, when we do not know, whether they can dial us.

        Returns False where all that answer have too much to do to find that out.
        """
        ports = reach.ports_of(await self.addresses())
        asked = ports if self.settings.reachable is None else ()
        welcomes = await asyncio.gather(*(self.ask(place, asked) for place in bootstraps))
        told = [said for said in welcomes if said]
        self.visibility.learn(told, ports)
        return not (asked and any(said.seen_at for said in told) and all(said.reached is None for said in told))

    # keeping tidy --------------------------------------------------------------------------------------------------

    async def tidy(self) -> None:
        """Let go of what hivemind keeps for ever, and say to whom we keep a connection; for now and then."""
        leaks.let_go(self.p2p, self.dht)
        try:
            await self._connections.keep(self.border.is_strange, self.daemon.most)
        except UNREACHED as error:
            log.debug("the network daemon has ended, or says no: %s", error)

    async def close(self) -> None:
        """End what still serves others."""
        await self._incoming.close()
