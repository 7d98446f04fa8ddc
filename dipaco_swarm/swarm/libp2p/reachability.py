"""Whether others can dial us: the one thing about a peer that it cannot find out alone.

    we -- Hello(ports) ----------> bootstrap node      on the connection that we have anyway
                                   knocks at the address we come from, at these ports: is the peer of our name there?
    we <---------- Welcome ------- where it sees us, where it found us, its time, its version

A node knocks only where the question comes from, at few ports, and not often, so it is no use for looking into other
people's machines. A knock ends with the TLS handshake, in which whoever listens there proves its name; nothing is said.
"""

import asyncio
import contextlib
import functools
import importlib.metadata
import re
import ssl
import time
from collections import Counter
from collections.abc import Sequence

from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509 import ExtensionNotFound, ObjectIdentifier, UnrecognizedExtension, load_der_x509_certificate

from dipaco_swarm.errors import RemoteDataError
from dipaco_swarm.swarm.addresses import is_relayed, site_of
from dipaco_swarm.swarm.greetings import MAX_PORTS, Hello, Welcome
from dipaco_swarm.swarm.libp2p.identity import is_signed_by
from dipaco_swarm.swarm.transport import Stream
from dipaco_swarm.swarm.wire import NotHere

PROTOCOL = "dipaco/1/hello"
QUESTION_SECONDS = 8.0
KNOCK_SECONDS = 3.0
"""A home router that lets nobody in says nothing; who is there opens in one round trip and proves its name in two."""
MAX_KNOCKS = 64
"""Knocks going on at once, for all who ask."""
KNOCKS_A_SITE = 16
"""Of these for one site (`site_of`)."""
KNOCKS_PER_MINUTE = 60
"""For one site: enough for a school behind one router."""
MAX_ASKING = 4096

_PLACE = re.compile(r"/(ip4|ip6)/([^/]+)/tcp/(\d+)(?:/|$)")
_SELECT = b"\x13/multistream/1.0.0\n\x0b/tls/1.0.0\n"
"""How libp2p's connections begin: what we speak, and how we want it to be secured. The answer repeats it."""
_PROOF = ObjectIdentifier("1.3.6.1.4.1.53594.1.1")
"""libp2p's extension of a certificate: the peer's public key, and its signature of the certificate's key."""


def host_of(address: str) -> str | None:
    """The /ip4/... or /ip6/... of a peer's address; None where a relay or another transport is in between."""
    found = _PLACE.match(address)
    return None if found is None or is_relayed(address) else f"/{found[1]}/{found[2]}"


def ports_of(addresses: Sequence[str]) -> tuple[int, ...]:
    """The TCP ports that we listen on, or that our router has mapped for us."""
    found = (_PLACE.match(address) for address in addresses if not is_relayed(address))
    return tuple(dict.fromkeys(int(place[3]) for place in found if place is not None))[:MAX_PORTS]


@functools.cache
def our_version() -> str:
    try:
        return importlib.metadata.version("dipaco-swarm")
    except importlib.metadata.PackageNotFoundError:  # run from a checkout
        return "unknown"


class ReachabilityService:
    """Answers who asks how it looks from here."""

    def __init__(self) -> None:
        self._going_on: Counter[str] = Counter()
        """Knocks, by site."""
        self._minute = 0
        self._asked: Counter[str] = Counter()
        """Knocks in this minute, by site."""

    async def answer(self, stream: Stream) -> None:
        async with asyncio.timeout(QUESTION_SECONDS):
            message = await stream.receive()
        if not isinstance(message, Hello):
            await stream.send(NotHere())
            raise RemoteDataError(stream.peer, f"says {type(message).__name__} instead of hello")
        host, site = host_of(stream.address), site_of(stream.address)
        reached = None
        if host is not None and message.ports and self._has_time_for(site, len(message.ports)):
            self._going_on[site] += len(message.ports)
            try:
                there = await asyncio.gather(*(is_there(host, port, stream.peer) for port in message.ports))
            finally:
                self._going_on[site] -= len(message.ports)
                self._going_on += Counter()  # without the sites that have none
            reached = tuple(port for port, found in zip(message.ports, there, strict=True) if found)
        await stream.send(Welcome(seen_at=host or "", reached=reached, time=time.time(), version=our_version()))

    def _has_time_for(self, site: str, knocks: int) -> bool:
        minute = int(time.monotonic() // 60)
        if minute != self._minute:
            self._minute = minute
            self._asked.clear()
        if self._going_on[site] + knocks > KNOCKS_A_SITE or self._going_on.total() + knocks > MAX_KNOCKS:
            return False
        if self._asked[site] + knocks > KNOCKS_PER_MINUTE or len(self._asked) >= MAX_ASKING:
            return False
        self._asked[site] += knocks
        return True


async def is_there(host: str, port: int, peer: str) -> bool:
    """Whether this peer, and nobody else, can be dialled at a port of an /ip4/... or /ip6/... address."""
    try:
        async with asyncio.timeout(KNOCK_SECONDS):
            reader, writer = await asyncio.open_connection(host.rpartition("/")[2], port)
            try:
                writer.write(_SELECT)
                if await reader.readexactly(len(_SELECT)) != _SELECT:
                    return False
                await writer.start_tls(_tls())
                shown = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
                return _is_name_of(peer, shown)
            finally:
                writer.transport.abort()
    except (OSError, EOFError, TimeoutError, ValueError):  # ssl.SSLError is an OSError
        return False


def _tls() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # libp2p's certificates are nobody's; what they prove is checked here
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.set_alpn_protocols(["libp2p"])
    return context


def _is_name_of(peer: str, shown: bytes) -> bool:
    """Whether a certificate carries the signature of this peer."""
    with contextlib.suppress(ExtensionNotFound):
        certificate = load_der_x509_certificate(shown)
        proof = certificate.extensions.get_extension_for_oid(_PROOF).value
        signed = certificate.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        if isinstance(proof, UnrecognizedExtension):
            return is_signed_by(peer, b"libp2p-tls-handshake:" + signed, proof.value[-64:])
    return False
