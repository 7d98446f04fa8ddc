"""What hivemind keeps for ever about requests and peers that are no more."""

from hivemind.dht import DHTNode
from hivemind.p2p import P2P


def let_go(p2p: P2P, dht: DHTNode) -> None:
    """Drop it; to be called every few seconds.

    A bucket of the routing table keeps as many spare peers as it has places.
    """
    answering = p2p._client.control._handler_tasks
    for call in [call for call, task in answering.items() if task.done()]:  # its peer did not wait for the answer
        del answering[call]
    blacklist, searches, table = dht.blacklist, dht.pending_get_requests, dht.protocol.routing_table
    for peer in [peer for peer in blacklist.ban_counter if peer not in blacklist]:
        del blacklist.ban_counter[peer]
    for key in [key for key, searching in searches.items() if not searching]:
        del searches[key]
    for bucket in table.buckets:
        for spare in list(bucket.replacement_nodes)[: -bucket.size]:
            del table[spare]
