"""Work that is done once for everybody: who has done which part of it, and asking for that.

A peer says under a topic of the directory which parts it has, in some bytes that the topic's readers understand, and
where it can be dialled: it may be of no group of ours. Whoever wants a part asks that peer for it. What comes is that
peer's word and nobody else's (streams are authenticated); whether to believe it is for the caller to find out.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping
from typing import Annotated

import msgpack
from pydantic import Field, ValidationError

from dipaco_swarm.errors import RemoteDataError
from dipaco_swarm.swarm.calls import Calls
from dipaco_swarm.swarm.directory import Directory
from dipaco_swarm.swarm.fields import Message
from dipaco_swarm.swarm.interface import PeerName
from dipaco_swarm.swarm.parts import AskPart, PartFollows
from dipaco_swarm.swarm.records import MAX_ADDRESSES, Place
from dipaco_swarm.swarm.states.store import Store, store_protocol
from dipaco_swarm.swarm.tasks import Tasks
from dipaco_swarm.swarm.traffic import Purpose
from dipaco_swarm.swarm.transport import Portal, Stream, Transport
from dipaco_swarm.swarm.wire import NotHere

log = logging.getLogger(__name__)

MAX_OFFER_BYTES = 300
"""Of what a peer says about its parts; its addresses have the rest of a statement."""
MAX_STATEMENT_BYTES = 512
CHUNK = 1 << 18

Answer = Callable[[str], bytes | None]
"""A part by its name; None: it is not here. Called beside the loop, in any thread."""


class Offer(Message):
    """A statement: which parts a peer has, and where it is."""

    places: tuple[Place, ...] = Field(max_length=MAX_ADDRESSES)
    said: Annotated[bytes, Field(max_length=MAX_OFFER_BYTES)]


class Sharing:
    """Of one peer. Its methods may be called from any thread but the loop's."""

    def __init__(self, portal: Portal, transport: Transport, directory: Directory, store: Store, run: str) -> None:
        """`run`: its fingerprint."""
        self._portal = portal
        self._calls = Calls(portal)
        self._transport = transport
        self._directory = directory
        self._protocol = store_protocol(run)
        self._answers: dict[str, Answer] = {}
        self._tasks = Tasks()
        self._is_over = False
        self._compute = transport.executor()
        store.on_asked_part = self._on_asked

    def serve(self, topic: str, answer: Answer | None) -> None:
        """Give parts under this topic to whoever asks; None: no more."""
        self._answers.pop(topic, None)
        if answer is not None:
            self._answers[topic] = answer

    def offer(self, topic: str, said: bytes | None) -> None:
        """Say which parts we have, until we say something else; None: none any more. Returns at once."""
        assert said is None or len(said) <= MAX_OFFER_BYTES
        self._portal.soon(lambda: self._tasks.start(self._offer(topic, said)))

    def offers(self, topic: str, *, timeout: float) -> Mapping[PeerName, bytes]:
        """What the others say that they have; their addresses are known from then on."""
        return {} if self._is_over else self._calls.run(self._offers(topic), timeout) or {}

    def ask(self, peer: str, topic: str, name: str, *, timeout: float, limit: int) -> bytes | None:
        """A part of at most `limit` bytes from a peer; None when it does not come."""
        if self._is_over:
            return None
        return self._calls.run(self._ask(peer, AskPart(topic=topic, name=name), limit), timeout)

    def interrupt(self) -> None:
        """Let every call that waits, now or later, return at once with nothing."""
        self._calls.interrupt()

    # in the loop -----------------------------------------------------------------------------------------------------

    async def stop(self) -> None:
        """Threads may go on asking; they get nothing any more."""
        self._is_over = True
        self._calls.interrupt()
        await self._tasks.end()

    async def _offer(self, topic: str, said: bytes | None) -> None:
        if said is None:
            self._directory.state(topic, None)
            return
        ending = f"/p2p/{self._transport.peer}"
        places = [place.removesuffix(ending) for place in (await self._transport.addresses())[:MAX_ADDRESSES]]
        while len(statement := _packed(places, said)) > MAX_STATEMENT_BYTES:
            places.pop()
        self._directory.state(topic, statement)

    async def _offers(self, topic: str) -> dict[PeerName, bytes]:
        found = {}
        for peer, statement in (await self._directory.statements(topic)).items():
            offer = None if peer == self._transport.peer else _unpacked(statement)
            if offer is not None:
                addresses = [f"{place}/p2p/{peer}" for place in offer.places]
                self._transport.remember(peer, addresses, reachable=not any("p2p-circuit" in a for a in addresses))
                found[peer] = offer.said
        return found

    async def _ask(self, peer: str, asked: AskPart, limit: int) -> bytes | None:
        timing = self._transport.timing
        try:
            async with self._transport.dial(peer, self._protocol) as stream:
                stream.purpose = Purpose.READING
                await stream.send(asked)
                async with asyncio.timeout(timing.dial):
                    answer = await stream.receive()
                if not isinstance(answer, PartFollows):
                    return None
                if answer.size > limit:
                    raise RemoteDataError(peer, f"offers a part of {answer.size} bytes where {limit} are the most")
                data = bytearray()
                while len(data) < answer.size:  # memory is taken as bytes come in
                    chunk = bytearray(min(CHUNK, answer.size - len(data)))
                    await stream.receive_into(memoryview(chunk))
                    data += chunk
                return bytes(data)
        except RemoteDataError as error:
            self._transport.border.note(error, "does not take what it shares")
        except (ConnectionError, EOFError, TimeoutError) as error:
            log.debug("peer %s does not send %s of %s: %s", peer[-8:], asked.name, asked.topic, error)
        return None

    async def _on_asked(self, stream: Stream, asked: AskPart) -> None:
        answer = self._answers.get(asked.topic)
        data = None if answer is None else await self._compute.aside(answer, asked.name)
        if data is None:
            await stream.send(NotHere())
            return
        stream.purpose = Purpose.READING
        await stream.send(PartFollows(size=len(data)))
        for at in range(0, len(data), CHUNK):
            await stream.send_raw(memoryview(data)[at : at + CHUNK])


def _packed(places: list[str], said: bytes) -> bytes:
    return bytes(msgpack.packb([places, said], use_bin_type=True))


def _unpacked(statement: bytes) -> Offer | None:
    """None: it is no offer."""
    with contextlib.suppress(ValueError, TypeError, ValidationError, msgpack.exceptions.UnpackException):
        places, said = msgpack.unpackb(statement, raw=False, use_list=False, strict_map_key=True)
        return Offer(places=places, said=said)
    return None
