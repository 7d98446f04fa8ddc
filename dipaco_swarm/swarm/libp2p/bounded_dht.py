"""hivemind's DHT protocol, with bounds on what one request may cost: hivemind answers whatever it is asked.

In 4 MiB there is room for 190,000 keys, for each of which it looks for neighbours, or packs all that stands there; and
of every node that is new to it, by a name that anybody may choose, it asks itself for each record whether that node
should have it. All of that is done without a pause, in the loop that rounds live in. The same with answers: a name of
100 kB among the neighbours in one takes thirteen seconds to be written in letters.

A node's place follows from its name, and who says another one is not believed: else one name is every node, and is what
everybody finds near every key.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import lru_cache, partial
from typing import Any
from weakref import WeakValueDictionary

import hivemind.dht.node
from google.protobuf.message import DecodeError
from hivemind.dht.protocol import DHTProtocol
from hivemind.dht.routing import DHTID
from hivemind.dht.storage import DictionaryDHTValue
from hivemind.p2p import P2PContext, PeerID
from hivemind.p2p.p2p_daemon_bindings.utils import P2PDaemonError
from hivemind.proto import dht_pb2

from dipaco_swarm.errors import RemoteDataError
from dipaco_swarm.swarm.libp2p.connections import speaks_not
from dipaco_swarm.swarm.libp2p.serializing import RecordSerializer
from dipaco_swarm.swarm.libp2p.together import MAX_QUESTIONS

MAX_NAME_BYTES = 64
"""Of a peer, as a hash of its key."""
AT_ONCE = 4
"""Questions of ours to one node: half of what it hears (`incoming.py`)."""
MAX_ANSWER_BYTES = 1 << 20
"""After which the rest of the keys are not looked up; one alone may have more. We ask for less at once."""


class BoundedProtocol(DHTProtocol):  # type: ignore[misc]  # hivemind is untyped
    """`DHTProtocol` under the same name on the network."""

    serializer = RecordSerializer

    def __init__(self, **how: Any) -> None:
        super().__init__(**how)
        self._lines: WeakValueDictionary[PeerID, asyncio.Semaphore] = WeakValueDictionary()
        """Of questions to each node that we ask now."""

    @classmethod
    def _get_handle_name(cls, namespace: str | None, method_name: str) -> str:
        return str(DHTProtocol._get_handle_name(namespace, method_name))

    async def add_p2p_handlers(self, p2p: Any, wrapper: Any = None, **_: Any) -> None:
        """Questions come over streams of ours, and not over the daemon's own: see `questions.py`."""
        self._collect_rpc_handlers()
        for handler in self._rpc_handlers:
            name = self._get_handle_name(None, handler.method_name)
            respond = getattr(wrapper or self, handler.method_name)
            await p2p.answer(name, partial(self._answered, name, handler.request_type, respond))

    async def remove_p2p_handlers(self, p2p: Any, **_: Any) -> None:
        """The node ends them."""

    async def _answered(self, name: str, kind: Any, respond: Any, peer: str, data: bytes) -> bytes:
        """Raises RemoteDataError for what is no question."""
        try:
            request = kind.FromString(data)
        except DecodeError:
            raise RemoteDataError(peer, f"asks {name} something malformed") from None
        if len(request.peer.node_id) != DHTID.HASH_NBYTES:
            request.ClearField("peer")  # hivemind reads it where nothing is caught
        context = P2PContext(name, self.p2p.peer_id, PeerID.from_base58(peer))
        return bytes((await respond(request, context)).SerializeToString())

    async def rpc_find(self, request: dht_pb2.FindRequest, context: P2PContext) -> dht_pb2.FindResponse:
        response = dht_pb2.FindResponse(results=[], peer=self.node_info)
        if not _may_be_asked(request.keys):
            return response
        size = 0
        for key in request.keys:
            if size > MAX_ANSWER_BYTES:
                response.results.append(dht_pb2.FindResult(type=dht_pb2.NOT_FOUND))
                continue
            found = await super().rpc_find(dht_pb2.FindRequest(keys=[key], peer=request.peer), context)
            response.results.extend(found.results)
            size += found.ByteSize()
            await asyncio.sleep(0)  # there is no pause in it
        return response

    async def rpc_store(self, request: dht_pb2.StoreRequest, context: P2PContext) -> dht_pb2.StoreResponse:
        parts = (request.subkeys, request.values, request.expiration_time, request.in_cache)
        is_whole = all(len(part) == len(request.keys) for part in parts)
        # whole dictionaries come from nobody: each writer repeats its own records
        if not (is_whole and _may_be_asked(request.keys)) or self.IS_DICTIONARY in request.subkeys:
            return dht_pb2.StoreResponse(store_ok=[], peer=self.node_info)
        return await super().rpc_store(request, context)

    def _validate_dictionary(self, key_bytes: bytes, dictionary: DictionaryDHTValue) -> bool:
        """hivemind refuses all of it for one entry that is no record; here that one is taken out."""
        with dictionary.freeze():
            for writer, record in list(dictionary.items()):
                name = self.serializer.dumps(writer)
                if not self._validate_record(key_bytes, name, record.value, record.expiration_time):
                    del dictionary[writer]
        return True

    def get_stub(self, peer: PeerID) -> Any:
        """What asks another node; what it answers is looked at before hivemind does anything with it."""
        line, name = self._lines.setdefault(peer, asyncio.Semaphore(AT_ONCE)), peer.to_base58()
        asked = _InTurn(super().get_stub(peer), line, partial(self.p2p.reach, name))
        return _Asked(asked, self.bucket_size, partial(self.p2p.note_named, name))

    async def update_routing_table(self, node_id: DHTID | None, peer_id: PeerID, responded: bool = True) -> None:
        """Without a look at all records for what a new node should have: they are repeated within seconds."""
        node_id = self.routing_table.get(peer_id=peer_id) if node_id is None else node_id
        if responded:
            if node_id is None or node_id.to_bytes() != place_of(peer_id.to_bytes()):
                return
            oldest = self.routing_table.add_or_update_node(node_id, peer_id)
            self._forget_replacements(node_id)
            if oldest is not None:  # its place is full: is who was heard of longest ago still there?
                await self.call_ping(oldest[1])
        elif node_id is not None and node_id in self.routing_table:
            del self.routing_table[node_id]

    def _forget_replacements(self, node_id: DHTID) -> None:
        """Of those who would take places beside this node, if there were any, only the last are remembered."""
        table = self.routing_table
        bucket = table.buckets[table.get_bucket_index(node_id)]
        for oldest in list(bucket.replacement_nodes)[: -bucket.size]:
            del table[oldest]


class _InTurn:
    """Another node, which would not hear more questions at once; looked for where our daemon knows no way to it."""

    def __init__(self, stub: Any, line: asyncio.Semaphore, reach: Callable[[], Awaitable[bool]]) -> None:
        self._line, self._reach = line, reach
        self.rpc_ping = partial(self._ask, stub.rpc_ping)
        self.rpc_find = partial(self._ask, stub.rpc_find)
        self.rpc_store = partial(self._ask, stub.rpc_store)

    async def _ask(self, rpc: Callable[..., Awaitable[Any]], request: Any, **how: Any) -> Any:
        async with self._line:
            try:
                return await rpc(request, **how)
            except P2PDaemonError as error:
                if speaks_not(error) or not await self._reach():
                    raise
            return await rpc(request, **how)


class _Asked:
    """Another node, and answers of it that hivemind can read at once."""

    def __init__(
        self, stub: Any, neighbours: int, note_named: Callable[[Iterable[str]], None] = lambda names: None
    ) -> None:
        """`neighbours`: that it may name beside each key; `note_named`: is told which it names."""
        self._note_named = note_named
        self.rpc_store = stub.rpc_store
        self._ping, self._find = stub.rpc_ping, stub.rpc_find
        self._neighbours = neighbours

    async def rpc_ping(self, request: dht_pb2.PingRequest, **how: Any) -> dht_pb2.PingResponse:
        """Raises ValueError, which counts as no answer."""
        response = await self._ping(request, **how)
        if response.peer.node_id and len(response.peer.node_id) != DHTID.HASH_NBYTES:
            raise ValueError("names a place that is none")  # hivemind reads it where nothing is caught
        return response

    async def rpc_find(self, request: dht_pb2.FindRequest, **how: Any) -> dht_pb2.FindResponse:
        """Raises ValueError, which counts as no answer."""
        response = await self._find(request, **how)
        if len(response.results) > len(request.keys):
            raise ValueError("answers what was not asked")
        for result in response.results:
            if result.type not in (dht_pb2.NOT_FOUND, dht_pb2.FOUND_DICTIONARY):
                raise ValueError(f"answers with type {result.type}, which our nodes do not have")
            only_real_neighbours(result, self._neighbours)
            self._note_named(PeerID(name).to_base58() for name in result.nearest_peer_ids)
        return response


def _may_be_asked(keys: Sequence[bytes]) -> bool:
    """Whether these are keys, and few enough. Of a longer one hivemind takes the end, and readers would refuse what was
    signed for it."""
    return len(keys) <= MAX_QUESTIONS and all(len(key) == DHTID.HASH_NBYTES for key in keys)


def only_real_neighbours(result: dht_pb2.FindResult, most: int) -> None:
    """Take those out of an answer that are not where their names are. Raises ValueError where they are too many or too
    long to look at."""
    names, places = list(result.nearest_peer_ids), list(result.nearest_node_ids)
    if len(names) != len(places) or len(names) > most or any(len(name) > MAX_NAME_BYTES for name in names):
        raise ValueError("names neighbours that there cannot be")
    real = [name for name, place in zip(names, places, strict=True) if place == place_of(name)]
    if len(real) < len(names):
        del result.nearest_peer_ids[:], result.nearest_node_ids[:]
        result.nearest_peer_ids.extend(real)
        result.nearest_node_ids.extend(map(place_of, real))


def node_id_of(peer: str) -> DHTID:
    """Where the node of a peer is among all keys: the same after every restart, as the others' tables would keep former
    ids beside the current one."""
    return DHTID.generate(source=peer)


@lru_cache(1 << 14)
def place_of(name: bytes) -> bytes:
    """The same as bytes, of a name in bytes."""
    return bytes(node_id_of(PeerID(name).to_base58()).to_bytes())


def bound_requests() -> None:
    """Have the nodes that this process makes from now on speak that protocol."""
    hivemind.dht.node.DHTProtocol = BoundedProtocol
