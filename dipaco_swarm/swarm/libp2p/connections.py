"""Connections of our daemon to other peers: where each of them says it is, and when to leave a relay."""

import contextlib
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from ipaddress import ip_address

from hivemind.p2p import P2P, PeerID
from hivemind.p2p.p2p_daemon_bindings.utils import ControlFailure, P2PDaemonError
from hivemind.utils.multiaddr import Multiaddr

from dipaco_swarm.swarm.addresses import is_relayed, place_in, site_of
from dipaco_swarm.swarm.libp2p.pipe import Pipe, connected, open_stream, weigh

_P2P, _CIRCUIT = b"\xa5\x03", b"\xa2\x02"
"""Parts of an address, as multiaddrs write them: the name that follows, and that it relays."""
_IP4, _IP6 = b"\x04", b"\x29"
MAX_REMEMBERED = 4096
"""Peers whose addresses are kept."""

KNOWN, ONE_OF_FEW = 1000, 100
"""What a connection weighs. A reservation at a relay weighs ten, streams nothing."""
FEW_AT_A_SITE = 16

REFUSED = (ControlFailure, P2PDaemonError)
"""The daemon's no."""
UNREACHED = (*REFUSED, OSError, EOFError)
"""All ways in which a peer, or our own daemon, cannot be reached. A TimeoutError is an OSError."""


@dataclass(frozen=True)
class Place:
    """An address for the daemon, which does not read a relay's name as hivemind's `Multiaddr` writes it: as a CID."""

    address: str

    def to_bytes(self) -> bytes:
        """Raises ValueError when it is none."""
        way, of_relay, relay = self.address.removesuffix("/p2p-circuit").partition("/p2p/")
        written: bytes = Multiaddr(way).to_bytes()
        if not of_relay:
            return written
        name: bytes = PeerID.from_base58(relay).to_bytes()
        return written + _P2P + bytes([len(name)]) + name + _CIRCUIT


def _written(address: bytes) -> str:
    """The host of a multiaddr, and whether a relay is in between; hivemind takes ten times as long for all of it."""
    code, host = address[:1], address[1:5] if address[:1] == _IP4 else address[1:17]
    if code not in (_IP4, _IP6) or len(host) not in (4, 16):
        return ""
    return f"/ip{'4' if code == _IP4 else '6'}/{ip_address(host)}/{'p2p-circuit' if _CIRCUIT in address else ''}"


async def _nowhere(peer: str) -> Sequence[str]:
    return ()


def speaks_not(error: Exception) -> bool:
    """Whether the daemon's no says that the peer is there, and does not speak what was asked for."""
    return "protocols not supported" in str(error)


class Connections:
    """To whom our daemon can open streams, and over what."""

    def __init__(self, p2p: P2P, daemon: str) -> None:
        """`daemon`: path of the socket at which it listens to us."""
        self._p2p = p2p
        self._daemon = daemon
        self.find: Callable[[str], Awaitable[Sequence[str]]] = _nowhere
        """Where others say that a peer is."""
        self._addresses: dict[str, tuple[str, ...]] = {}
        self._streams: Counter[str] = Counter()
        """Open ones, by peer."""
        self._by_relay: set[str] = set()
        """Peers that can be dialled and that we may be talking to through a relay all the same."""

    def remember(self, peer: str, addresses: Sequence[str], *, reachable: bool) -> None:
        """Where a peer says that it can be dialled; `reachable`: also without a relay."""
        if reachable and addresses != self._addresses.get(peer) and any(map(is_relayed, addresses)):
            self._by_relay.add(peer)  # nobody could dial it when it started
        if len(self._addresses) >= MAX_REMEMBERED and peer not in self._addresses:
            forgotten = next(iter(self._addresses))
            self._addresses.pop(forgotten)
            self._by_relay.discard(forgotten)
        self._addresses[peer] = tuple(addresses)

    def addresses_of(self, peer: str) -> tuple[str, ...]:
        """Where a peer said that it can be dialled, best first."""
        return self._addresses.get(peer, ())

    async def exists(self, peer: str) -> bool:
        """Whether the daemon has a connection to a peer. Raises UNREACHED."""
        return any(known == peer for known, _ in await connected(self._daemon))

    async def connect(self, peer: str, addresses: Sequence[str]) -> None:
        """Have the daemon connect to a peer at one of these addresses. Raises UNREACHED, and ValueError."""
        bare = [Place(place_in(address)) for address in addresses]
        # hivemind's P2P has no public way to connect to an address
        await self._p2p._client.connect(PeerID.from_base58(peer), bare)

    async def open(self, peer: str, protocol: str) -> Pipe:
        """A stream: over the connection that there is, then where the peer told that it is, then where others say so.

        Raises UNREACHED, and ValueError when `peer` is not a name.
        """
        if peer in self._by_relay and peer not in self._streams:
            self._by_relay.discard(peer)
            await self._leave_relay(peer)
        try:
            return await self.open_connected(peer, protocol)
        except REFUSED as error:
            if speaks_not(error) or not await self.reach(peer):
                raise
            return await self.open_connected(peer, protocol)

    async def open_connected(self, peer: str, protocol: str) -> Pipe:
        """A stream to a peer that the daemon is connected to, or was lately. Raises as `open`."""
        return await open_stream(self._daemon, peer, protocol)

    async def reach(self, peer: str) -> bool:
        """Connect to a peer to which the daemon knows no way; False where nobody else knows one. Raises as `open`."""
        if told := self._addresses.get(peer):
            with contextlib.suppress(*REFUSED):
                await self.connect(peer, told)
                return True
        found = await self.find(peer)
        if not found:
            return False
        await self.connect(peer, found)
        return True

    async def keep(self, is_strange: Callable[[str], bool], most: int) -> None:
        """Have the daemon know whom to part from last, where more than `most` have connected to it.

        That is whom we know, and before the others, who is one of few at a site: a crowd is mostly of one machine.
        Raises UNREACHED.
        """
        there = await connected(self._daemon)
        at = Counter[str]()
        for peer, address in there:
            site = site_of(_written(address))
            at[site] += 1
            if not is_strange(peer):
                await weigh(self._daemon, peer, KNOWN)
            elif 2 * len(there) > most and at[site] <= FEW_AT_A_SITE:
                await weigh(self._daemon, peer, ONE_OF_FEW)

    @contextlib.contextmanager
    def counted(self, peer: str) -> Iterator[None]:
        """While a stream to or from a peer is open: its connection is left alone."""
        self._streams[peer] += 1
        try:
            yield
        finally:
            self._streams[peer] -= 1
            if not self._streams[peer]:
                del self._streams[peer]

    async def _leave_relay(self, peer: str) -> None:
        """Connect anew, directly; libp2p keeps the connection that it has, however slow. A relay is found again."""
        with contextlib.suppress(*REFUSED):
            await self._p2p._client.disconnect(PeerID.from_base58(peer))
            await self.connect(peer, [place for place in self._addresses[peer] if not is_relayed(place)])
