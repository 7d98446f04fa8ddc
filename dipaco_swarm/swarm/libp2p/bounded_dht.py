"""hivemind's DHT protocol, with bounds on what one request may cost: hivemind answers whatever it is asked.

In 4 MiB there is room for 190,000 keys, for each of which it looks for neighbours, or packs all that stands there; and
of every node that is new to it, by a name that anybody may choose, it asks itself for each record whether that node
should have it. All of that is done without a pause, in the loop that rounds live in.
"""

import asyncio

import hivemind.dht.node
from hivemind.dht.protocol import DHTProtocol
from hivemind.dht.routing import DHTID
from hivemind.p2p import P2PContext, PeerID
from hivemind.proto import dht_pb2

from dipaco_swarm.swarm.libp2p.together import MAX_QUESTIONS

MAX_ANSWER_BYTES = 1 << 20
"""After which the rest of the keys are not looked up; one alone may have more. We ask for less at once."""


class BoundedProtocol(DHTProtocol):  # type: ignore[misc]  # hivemind is untyped
    """`DHTProtocol` under the same name on the network."""

    @classmethod
    def _get_handle_name(cls, namespace: str | None, method_name: str) -> str:
        return str(DHTProtocol._get_handle_name(namespace, method_name))

    async def rpc_find(self, request: dht_pb2.FindRequest, context: P2PContext) -> dht_pb2.FindResponse:
        response = dht_pb2.FindResponse(results=[], peer=self.node_info)
        if len(request.keys) > MAX_QUESTIONS:
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
        # whole dictionaries come from nobody: each writer repeats its own records
        if len(request.keys) > MAX_QUESTIONS or self.IS_DICTIONARY in request.subkeys:
            return dht_pb2.StoreResponse(store_ok=[], peer=self.node_info)
        return await super().rpc_store(request, context)

    async def update_routing_table(self, node_id: DHTID | None, peer_id: PeerID, responded: bool = True) -> None:
        """Without a look at all records for what a new node should have: they are repeated within seconds."""
        node_id = self.routing_table.get(peer_id=peer_id) if node_id is None else node_id
        if responded:
            oldest = self.routing_table.add_or_update_node(node_id, peer_id)
            if oldest is not None:  # its place is full: is who was heard of longest ago still there?
                await self.call_ping(oldest[1])
        elif node_id is not None and node_id in self.routing_table:
            del self.routing_table[node_id]


def bound_requests() -> None:
    """Have the nodes that this process makes from now on speak that protocol."""
    hivemind.dht.node.DHTProtocol = BoundedProtocol
