"""Records in hivemind's DHT, and the rule by which every node of a swarm refuses those of others.

Every record of a run is an entry of a dictionary: the key says what it is about, the subkey is the signer's peer name,
the value is msgpack `[payload, signature]`, and the signature covers key, expiration and payload. So nobody can write
in another's name, replay a record later, overwrite a whole dictionary, or pin one for ever.
"""

import asyncio
import contextlib
import struct
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import msgpack
from hivemind.dht import DHTNode
from hivemind.dht.routing import DHTID
from hivemind.dht.storage import DictionaryDHTValue
from hivemind.dht.validation import DHTRecord, RecordValidatorBase
from hivemind.p2p import P2PHandlerError, PeerID
from hivemind.p2p.p2p_daemon_bindings.utils import ControlFailure, P2PDaemonError
from hivemind.utils import MSGPackSerializer
from hivemind.utils.timed_storage import ValueWithExpiration

from dipaco_swarm.machine.clock import Clock
from dipaco_swarm.swarm.interface import PeerName
from dipaco_swarm.swarm.libp2p.identity import MAX_NAME, Identity, is_signed_by
from dipaco_swarm.swarm.libp2p.together import MAX_BYTES, Together
from dipaco_swarm.swarm.records import (
    CLOCK_TOLERANCE_SECONDS,
    MAX_LIFETIME_SECONDS,
    MAX_RECORD_BYTES,
    OVERHEAD_BYTES,
    is_a_record,
)
from dipaco_swarm.swarm.transport import Record

HOLDERS = 4
"""Nodes that have the records of a key: those nearest to it."""
REMEMBERED = 2 * HOLDERS
"""Nodes near a key that we remember, for when some of them go."""
SILENT_SECONDS = 60.0
"""Who did not answer is not asked again for so long."""
MAX_KEYS = 1024
MAX_SUBKEY_BYTES = 4 + MAX_NAME
"""A name, packed."""


def _signed_part(key_id: bytes, expiration: float, payload: bytes) -> bytes:
    return b"dipaco record 1" + key_id + struct.pack("<d", expiration) + payload


class SignedRecords(RecordValidatorBase):  # type: ignore[misc]  # hivemind is untyped
    """Runs in every node of a swarm: refuses what is unsigned, too big, no record, or meant to live long."""

    def validate(self, record: DHTRecord) -> bool:
        if len(record.value) > MAX_RECORD_BYTES or not 0 < len(record.subkey) <= MAX_SUBKEY_BYTES:
            return False
        if not 0 < record.expiration_time <= time.time() + MAX_LIFETIME_SECONDS + CLOCK_TOLERANCE_SECONDS:
            return False  # also what is not a number: it would never expire
        try:
            peer = msgpack.unpackb(record.subkey, raw=False)
            value = msgpack.unpackb(record.value, raw=False)
        except (ValueError, msgpack.exceptions.UnpackException):
            return False
        if not (isinstance(peer, str) and isinstance(value, list) and len(value) == 2):
            return False
        payload, signature = value
        if not (isinstance(payload, bytes) and isinstance(signature, bytes) and is_a_record(payload)):
            return False
        return is_signed_by(peer, _signed_part(record.key, record.expiration_time, payload), signature)


@dataclass(frozen=True)
class _Entry:
    """What we write under a key."""

    key: DHTID
    value: bytes
    expiration: float


_Found = tuple[ValueWithExpiration[Any] | None, Mapping[DHTID, PeerID]]
"""What a node has under a key, and the nodes that are near the key."""


class DhtRecords:
    """`transport.Records` in hivemind's Kademlia DHT: at the nodes that are nearest to a key, which are remembered.

    hivemind walks to a key each time, over twenty nodes, of which each names twenty. Here the walk is for when nobody
    is known there: those who answer name the nodes near the key along with its records, so that who has come nearer
    since is noticed. What is written or read in the same moment, and is at the same node, goes there in one request.
    """

    def __init__(self, node: DHTNode, identity: Identity, clock: Clock, random: Random) -> None:
        self._node = node
        self._identity = identity
        self._clock = clock
        self._random = random
        self._near: dict[DHTID, dict[DHTID, PeerID]] = {}
        """Key -> the nodes nearest to it, the nearest first."""
        self._silent: dict[DHTID, float] = {}
        """Nodes that did not answer, and when."""
        self._sizes: dict[DHTID, int] = {}
        """Key -> bytes that were found there last."""
        self._moment, self._chance = -1, 0
        self._stores = Together[_Entry, bool](self._store_at)
        self._finds = Together[DHTID, _Found](self._find_at)

    async def store(self, key: str, payload: bytes, lifetime: float) -> bool:
        key_id, expiration = DHTID.generate(source=key), self._clock.wall() + lifetime
        signature = self._identity.sign(_signed_part(key_id.to_bytes(), expiration, payload))
        value = MSGPackSerializer.dumps([payload, signature])

        async def store_at(holder: DHTID, peer: PeerID) -> bool | None:
            if holder == self._node.node_id:
                return bool(self._node.protocol.storage.store(key_id, value, expiration, subkey=self._identity.peer))
            return await self._stores.ask(peer, _Entry(key_id, value, expiration), len(value))

        with _network_of_this_machine():
            return any(await self._ask(key_id, HOLDERS, store_at))

    async def read(self, key: str, *, thorough: bool = True) -> dict[PeerName, Record]:
        """Signatures were checked on the way in."""
        key_id = DHTID.generate(source=key)
        found: dict[PeerName, Record] = {}
        size = self._sizes.pop(key_id, MAX_BYTES)  # none until it is answered: what has grown is asked for alone

        async def find_at(holder: DHTID, peer: PeerID) -> bool | None:
            if holder == self._node.node_id:
                entry = self._node.protocol.storage.get(key_id)
            else:
                said = await self._finds.ask(peer, key_id, size)
                if said is None:
                    return None
                entry, near = said
                self._learn(key_id, near)
            for writer, record in _records_in(entry):
                if writer not in found or found[writer].expiration < record.expiration:
                    found[writer] = record
            return True

        with _network_of_this_machine():
            answered = await self._ask(key_id, HOLDERS if thorough else 1, find_at)
        if answered:
            self._sizes[key_id] = sum(len(record.payload) + OVERHEAD_BYTES for record in found.values())
        return found

    async def _store_at(self, peer: PeerID, entries: Sequence[_Entry]) -> Sequence[bool] | None:
        keys, values = [entry.key for entry in entries], [entry.value for entry in entries]
        expirations, ours = [entry.expiration for entry in entries], [self._identity.peer] * len(entries)
        said: Sequence[bool] | None = await self._node.protocol.call_store(peer, keys, values, expirations, ours)
        return said if said is not None and len(said) == len(entries) else None

    async def _find_at(self, peer: PeerID, keys: Sequence[DHTID]) -> Sequence[_Found] | None:
        said: Mapping[DHTID, _Found] | None = await self._node.protocol.call_find(peer, keys)
        return None if said is None else [said[key] for key in keys]

    async def _ask(
        self, key_id: DHTID, count: int, ask: Callable[[DHTID, PeerID], Awaitable[bool | None]]
    ) -> list[bool]:
        """What so many holders of a key answer, any of them where it is fewer than all.

        Who does not answer is passed over for a while; where most do not, the key's holders are looked for anew.
        """
        for _ in range(2):
            holders = self._holders(key_id)
            if len(holders) < min(HOLDERS, self._known()):
                holders = await self._walk(key_id)
            asked = self._some(holders)[:count]
            answers = await asyncio.gather(*(ask(*holder) for holder in asked))
            for (node_id, _peer), answer in zip(asked, answers, strict=True):
                if answer is None:
                    self._silent[node_id] = self._clock.monotonic()
            answered = [answer for answer in answers if answer is not None]
            if 2 * len(answered) > len(asked):
                return answered
        return answered

    def _some(self, holders: Sequence[tuple[DHTID, PeerID]]) -> list[tuple[DHTID, PeerID]]:
        """In any order, the same for all keys that are asked for in the same moment."""
        moment = int(self._clock.monotonic())
        if moment != self._moment:
            self._moment, self._chance = moment, self._random.getrandbits(DHTID.HASH_NBYTES * 8)
        return sorted(holders, key=lambda holder: holder[0] ^ self._chance)

    def _holders(self, key_id: DHTID) -> list[tuple[DHTID, PeerID]]:
        """Those that we know of, the nearest first."""
        now = self._clock.monotonic()
        self._silent = {node_id: since for node_id, since in self._silent.items() if now - since < SILENT_SECONDS}
        near = self._near.get(key_id, {}).items()
        return [(node_id, peer) for node_id, peer in near if node_id not in self._silent][:HOLDERS]

    def _known(self) -> int:
        """How many nodes may hold something, as far as we know: ourselves, and those that hivemind knows."""
        return len(self._node.protocol.routing_table.uid_to_peer_id) + (not self._node.protocol.client_mode)

    async def _walk(self, key_id: DHTID) -> list[tuple[DHTID, PeerID]]:
        """Look for the nodes nearest to a key; who was silent may be there again, as after a break of our own line."""
        found = await self._node.find_nearest_nodes(
            [key_id], k_nearest=REMEMBERED, beam_size=REMEMBERED, exclude_self=self._node.protocol.client_mode
        )
        self._near.pop(key_id, None)
        self._silent = {node_id: since for node_id, since in self._silent.items() if node_id not in found[key_id]}
        self._learn(key_id, found[key_id])
        for oldest in list(self._near)[:-MAX_KEYS]:
            del self._near[oldest]
            self._sizes.pop(oldest, None)
        return self._holders(key_id)

    def _learn(self, key_id: DHTID, nodes: Mapping[DHTID, PeerID]) -> None:
        """Remember the nearest of these and of those that we know."""
        near = {**self._near.get(key_id, {}), **nodes}
        self._near[key_id] = {node_id: near[node_id] for node_id in sorted(near, key=key_id.xor_distance)[:REMEMBERED]}


def _records_in(entry: ValueWithExpiration[Any] | None) -> Iterator[tuple[PeerName, Record]]:
    """What a node has under a key, by writer."""
    if entry is None or not isinstance(entry.value, DictionaryDHTValue):
        return
    for writer, (value, expiration) in entry.value.items():
        said = MSGPackSerializer.loads(value)
        if isinstance(writer, str) and isinstance(said, list | tuple) and len(said) == 2:
            yield PeerName(writer), Record(said[0], expiration)


@contextlib.contextmanager
def _network_of_this_machine() -> Iterator[None]:
    """hivemind's words for a network that is gone, as one."""
    try:
        yield
    except (P2PDaemonError, P2PHandlerError, ControlFailure, OSError, EOFError) as error:
        raise ConnectionError(f"the DHT cannot be used: {error}") from None
