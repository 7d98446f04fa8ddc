"""How a node starts: the daemon, whether others can dial us, whether we relay as we were told, the DHT.

A daemon is told at its start what it is to be, and only shows afterwards what it is. Whoever relays with the wrong
limits starts it again.
"""

import asyncio
import contextlib
import logging
import tempfile
from collections.abc import AsyncIterator, Coroutine, Sequence
from pathlib import Path
from typing import Any

from hivemind.dht import DHTNode
from hivemind.p2p import P2P
from hivemind.utils.multiaddr import Multiaddr

from dipaco_swarm.errors import NodeError, UnreachableError, nobody_answers
from dipaco_swarm.swarm.addresses import address_of, is_on_this_machine, name_in
from dipaco_swarm.swarm.libp2p import reachability as reach
from dipaco_swarm.swarm.libp2p import relay, whereabouts
from dipaco_swarm.swarm.libp2p.bounded_dht import bound_requests, node_id_of
from dipaco_swarm.swarm.libp2p.connections import REFUSED, UNREACHED
from dipaco_swarm.swarm.libp2p.daemon import running_daemon
from dipaco_swarm.swarm.libp2p.dht import SignedRecords
from dipaco_swarm.swarm.libp2p.identity import Identity, load_identity
from dipaco_swarm.swarm.libp2p.node import Node
from dipaco_swarm.swarm.libp2p.settings import NodeSettings
from dipaco_swarm.swarm.libp2p.storage import bound_storage

log = logging.getLogger(__name__)

CLOSE_SECONDS = 2.0
"""What hivemind needs to close its part; it waits for ever for a daemon that has ended."""
LOOKS = 4
LOOK_AGAIN_SECONDS = 2.0
"""A knock that nobody answers takes three."""
RELAY_ATTEMPTS = 3
"""Starts again of a daemon that relays with the wrong limits. None was seen to need one (`relay.ENVIRONMENT`)."""
VISITS = 3
"""On a busy machine a visitor now and then does not come in, which says nothing about the limits."""


@contextlib.asynccontextmanager
async def open_node(
    identity: Identity, bootstraps: Sequence[str], settings: NodeSettings, doors: Sequence[str] = ()
) -> AsyncIterator[Node]:
    """Start the daemon, join the DHT, and yield the node; everything ends with the block.

    Raises NodeError when this machine is the reason (port in use, no daemon), UnreachableError when no bootstrap node
    answers.
    """
    async with contextlib.AsyncExitStack() as opened:
        node = await opened.enter_async_context(open_door(identity, bootstraps, settings, doors))
        if bootstraps and settings.reachable is not False:
            await _find_out(node, bootstraps)
        attempts = 0
        while not bootstraps and not await _relays_as_told(node):
            if attempts == RELAY_ATTEMPTS:
                log.warning(
                    "this node cuts what it relays after 128 KiB, after %d starts of the network daemon: peers behind "
                    "routers will lose each other in every round; start the node again",
                    attempts + 1,
                )
                break
            attempts += 1
            await opened.aclose()
            node = await opened.enter_async_context(open_door(identity, bootstraps, settings, doors))
        if not node.reachable:
            await node.reserve(bootstraps)
        if doors and not bootstraps:
            await node.meet(doors)  # a daemon of a bootstrap node looks for nobody by itself
        node.whereabouts.roots = tuple(map(name_in, (*doors, *bootstraps)))
        node.dht = await _join(node, doors or bootstraps)
        opened.push_async_callback(lambda: _in_time(node.dht.shutdown()))
        if not bootstraps:
            await node.serve(reach.PROTOCOL, reach.ReachabilityService().answer)
        yield node


async def _find_out(node: Node, bootstraps: Sequence[str]) -> None:
    """Whether others can dial us; several times, where the bootstrap nodes are busy: later it is too late."""
    for _ in range(LOOKS - 1):
        if await node.look(bootstraps):
            return
        await asyncio.sleep(LOOK_AGAIN_SECONDS)
    await node.look(bootstraps)


@contextlib.asynccontextmanager
async def open_door(
    identity: Identity, bootstraps: Sequence[str], settings: NodeSettings, doors: Sequence[str] = ()
) -> AsyncIterator[Node]:
    """A node without the DHT: it can dial and be dialled, and nobody knows of it. Raises as `open_node`.

    `doors`: peers through which to come in; none: the bootstrap nodes.
    """
    async with running_daemon(identity, bootstraps, settings, doors or bootstraps) as daemon:
        p2p = await _speak_to(daemon.control, doors or bootstraps)
        node = Node(p2p, identity, settings, daemon)
        try:
            yield node
        finally:
            await node.close()
            await _in_time(p2p.shutdown())


async def _in_time(closing: Coroutine[Any, Any, None]) -> None:
    """Close a part of hivemind, unless its daemon is gone already."""
    with contextlib.suppress(*UNREACHED):
        async with asyncio.timeout(CLOSE_SECONDS):
            await closing


async def _speak_to(control: Multiaddr, doors: Sequence[str]) -> P2P:
    """The daemon at this address; now and then it gives up over its first connections when it is already up."""
    try:
        return await P2P.replicate(control)
    except (OSError, EOFError) as error:
        if doors:
            raise nobody_answers(doors, "the network daemon gave up") from None
        raise NodeError(f"the network daemon ended as soon as it had started ({error}); try again") from None


async def _relays_as_told(node: Node) -> bool:
    """Whether peers behind routers can talk through this node; also where it cannot be told."""
    listen = node.settings.listen
    if is_on_this_machine(listen):
        return True  # there is no router between here and here
    places = [*await node.addresses()]
    if not listen.endswith("/tcp/0"):
        places.append(address_of(listen.replace("/0.0.0.0/", "/127.0.0.1/"), node.peer))
    for _ in range(VISITS):
        try:
            limit = await _limit_seen_by_a_visitor(node, places)
        except (UnreachableError, *UNREACHED, ValueError) as error:
            log.info("this node cannot see whether it relays for peers behind routers: %s", error)
        else:
            return limit is None or limit >= relay.DATA_LIMIT
    return True


async def _limit_seen_by_a_visitor(node: Node, places: Sequence[str]) -> int | None:
    """Bytes that the node relays for a peer that comes to it there; None: as many as there are."""
    with tempfile.TemporaryDirectory(prefix="dipaco-") as home:
        async with open_door(load_identity(Path(home)), places, NodeSettings("/ip4/127.0.0.1/tcp/0")) as visitor:
            return await relay.reserve(visitor.daemon.socket, node.identity.peer)


async def _join(node: Node, bootstraps: Sequence[str]) -> DHTNode:
    bound_requests()
    # for BoundedProtocol, which hivemind makes, and gives nothing else of ours
    node.p2p.answer, node.p2p.reach, node.p2p.note_named = node.answer, node.reach, node.whereabouts.note_named
    await node.serve(whereabouts.PROTOCOL, node.whereabouts.answer)
    try:
        dht = await DHTNode.create(
            node.p2p,
            node_id=node_id_of(node.identity.peer),
            initial_peers=list(bootstraps),
            client_mode=not node.reachable,
            record_validator=SignedRecords(),
            # what others say must be fresh: no caches between a statement and its reader
            cache_locally=False,
            cache_nearest=0,
            cache_on_store=False,
            wait_timeout=5,
            # one stall fails all requests under way, which hivemind would punish one by one: 5 s to the power of them
            blacklist_time=3.0,
            backoff_rate=1.0,
            strict=False,
            ensure_bootstrap_success=True,
        )
    except (RuntimeError, ValueError, AssertionError, *REFUSED) as error:  # also of doors that are none, or lie
        raise nobody_answers(bootstraps, str(error)) from None
    bound_storage(dht)
    node.whereabouts.table = dht.protocol.routing_table
    return dht
