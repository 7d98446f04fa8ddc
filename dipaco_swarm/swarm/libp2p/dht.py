"""Records in hivemind's DHT, and the rule by which every node of a swarm refuses those of others.

Every record of a run is an entry of a dictionary: the key says what it is about, the subkey is the signer's peer name,
the value is msgpack `[payload, signature]`, and the signature covers key, expiration and payload. So nobody can write
in another's name, replay a record later, overwrite a whole dictionary, or pin one for ever.
"""

import contextlib
import struct
import time
from collections.abc import Iterator, Mapping

import msgpack
from hivemind.dht import DHTNode
from hivemind.dht.routing import DHTID
from hivemind.dht.validation import DHTRecord, RecordValidatorBase
from hivemind.p2p import P2PHandlerError
from hivemind.p2p.p2p_daemon_bindings.utils import ControlFailure, P2PDaemonError

from dipaco_swarm.machine.clock import Clock
from dipaco_swarm.swarm.interface import PeerName
from dipaco_swarm.swarm.libp2p.identity import Identity, is_signed_by
from dipaco_swarm.swarm.records import CLOCK_TOLERANCE_SECONDS, MAX_LIFETIME_SECONDS, MAX_RECORD_BYTES
from dipaco_swarm.swarm.transport import Record


def _signed_part(key_id: bytes, expiration: float, payload: bytes) -> bytes:
    return b"dipaco record 1" + key_id + struct.pack("<d", expiration) + payload


class SignedRecords(RecordValidatorBase):  # type: ignore[misc]  # hivemind is untyped
    """Runs in every node of a swarm: refuses records that are unsigned, too big, or meant to live too long."""

    def validate(self, record: DHTRecord) -> bool:
        if len(record.value) > MAX_RECORD_BYTES or not record.subkey:
            return False
        if record.expiration_time > time.time() + MAX_LIFETIME_SECONDS + CLOCK_TOLERANCE_SECONDS:
            return False
        try:
            peer = msgpack.unpackb(record.subkey, raw=False)
            value = msgpack.unpackb(record.value, raw=False)
        except (ValueError, msgpack.exceptions.UnpackException):
            return False
        if not (isinstance(peer, str) and isinstance(value, list) and len(value) == 2):
            return False
        payload, signature = value
        if not (isinstance(payload, bytes) and isinstance(signature, bytes)):
            return False
        return is_signed_by(peer, _signed_part(record.key, record.expiration_time, payload), signature)


class DhtRecords:
    """`transport.Records` in hivemind's Kademlia DHT."""

    def __init__(self, node: DHTNode, identity: Identity, clock: Clock) -> None:
        self._node = node
        self._identity = identity
        self._clock = clock

    async def store(self, key: str, payload: bytes, lifetime: float) -> bool:
        expiration = self._clock.wall() + lifetime
        signature = self._identity.sign(_signed_part(DHTID.generate(source=key).to_bytes(), expiration, payload))
        with _network_of_this_machine():
            value = [payload, signature]
            return bool(await self._node.store(key, value, expiration, subkey=self._identity.peer))

    async def read(self, key: str) -> dict[PeerName, Record]:
        """Signatures were checked on the way in."""
        with _network_of_this_machine():
            found = await self._node.get(key, latest=True)
        if found is None or not isinstance(found.value, Mapping):
            return {}
        return {
            PeerName(peer): Record(entry.value[0], entry.expiration_time)
            for peer, entry in found.value.items()
            if isinstance(peer, str) and isinstance(entry.value, list | tuple) and len(entry.value) == 2
        }


@contextlib.contextmanager
def _network_of_this_machine() -> Iterator[None]:
    """hivemind's words for a network that is gone, as one."""
    try:
        yield
    except (P2PDaemonError, P2PHandlerError, ControlFailure, OSError, EOFError) as error:
        raise ConnectionError(f"the DHT cannot be used: {error}") from None
