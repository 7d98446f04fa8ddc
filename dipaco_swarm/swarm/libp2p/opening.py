"""Join a run over libp2p: open the node by some door, keep in touch, say goodbye."""

import asyncio
import contextlib
import itertools
import logging
import random
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import CancelledError
from pathlib import Path
from typing import Any

from dipaco_swarm.errors import NodeError, UnreachableError
from dipaco_swarm.machine.stopping import Stopped, Stopping
from dipaco_swarm.run.address import RunAddress
from dipaco_swarm.swarm.addresses import name_in
from dipaco_swarm.swarm.bans import Bans, bans_file
from dipaco_swarm.swarm.circle import Circle, circle_file
from dipaco_swarm.swarm.libp2p.address_book import AddressBook
from dipaco_swarm.swarm.libp2p.connections import UNREACHED
from dipaco_swarm.swarm.libp2p.identity import Identity, load_identity
from dipaco_swarm.swarm.libp2p.node import Node
from dipaco_swarm.swarm.libp2p.pipe import is_answering
from dipaco_swarm.swarm.libp2p.settings import NodeSettings
from dipaco_swarm.swarm.libp2p.starting import open_node
from dipaco_swarm.swarm.networked import NetworkedSwarm, networked_swarm
from dipaco_swarm.swarm.states.blobs import BlobStore
from dipaco_swarm.swarm.tasks import Tasks
from dipaco_swarm.swarm.threads import LoopPortal

log = logging.getLogger(__name__)

ANSWER_SECONDS = 10.0
MISSED_ANSWERS = 6
"""So many in a row, each awaited for so long, and our own daemon hangs."""
LOOK_EVERY = 6
"""Every so many times that we are in touch, we ask whether we can be dialled."""


@contextlib.contextmanager
def open_swarm(
    address: RunAddress,
    home: Path,
    settings: NodeSettings,
    stop: Stopping | None = None,
    again: Callable[[UnreachableError], bool] = lambda nobody: False,
    *,
    leads_in: bool = False,
) -> Iterator[NetworkedSwarm]:
    """Join the swarm of a run; goodbye is said when the block ends.

    `leads_in`: we are a bootstrap node, so others come in through us, and relay; those of the address are the others.

    `again`: asked whenever nobody answers, whether to try again; it may wait first. `stop` is told as well when the
    daemon ends under us (`NetworkedSwarm.lost`).

    Raises HomeError, NodeError or UnreachableError when that is not possible, and Stopped when `stop` came first.
    """
    identity, stop = load_identity(home), stop or Stopping()
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(_note_stray_error)
    thread = threading.Thread(target=loop.run_forever, name="swarm", daemon=True)
    thread.start()
    stack = contextlib.AsyncExitStack()

    async def open_all() -> NetworkedSwarm:
        address_book = AddressBook(home)
        before = address_book.addresses()
        if leads_in:
            node = await _open_bootstrap_node(stack, identity, address, settings, before)
        else:
            node = await _open_by_some_door(stack, identity, address, settings, before)
        background = Tasks()
        stack.push_async_callback(background.end)
        met_before = tuple(name_in(place) for place in before)
        for name, place in zip(met_before, before, strict=True):
            node.remember(name, [place], reachable=False)  # until it says more
        blobs = BlobStore(home / "blobs")
        circle = Circle(circle_file(home, address.fingerprint))
        bans = Bans(bans_file(home, address.fingerprint))
        joining = networked_swarm(LoopPortal(loop), node, address, blobs, met_before, circle=circle, bans=bans)
        swarm = await stack.enter_async_context(joining)
        background.start(_keep_in_touch(node, address, swarm, address_book))
        background.start(_until_lost(node, swarm, stop))
        background.start(_until_silent(node))
        stack.callback(_note_who_is_there, node, swarm, address_book)  # the bootstrap nodes may be down next time
        return swarm

    try:
        yield _unless_stopped(open_all, loop, stop, again)
    finally:
        asyncio.run_coroutine_threadsafe(_close(stack), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def _unless_stopped(
    open_all: Callable[[], Coroutine[Any, Any, NetworkedSwarm]],
    loop: asyncio.AbstractEventLoop,
    stop: Stopping,
    again: Callable[[UnreachableError], bool],
) -> NetworkedSwarm:
    opening: asyncio.Task[NetworkedSwarm] | None = None

    async def unless_stopped() -> NetworkedSwarm:
        nonlocal opening
        opening = asyncio.current_task()
        if stop():
            raise asyncio.CancelledError  # that of concurrent.futures would come out as this one, and not be caught
        return await open_all()

    def give_up() -> None:
        if opening is not None and not opening.done():
            loop.call_soon_threadsafe(opening.cancel)

    stop.tell(give_up)
    while not stop():
        try:
            return asyncio.run_coroutine_threadsafe(unless_stopped(), loop).result()
        except UnreachableError as nobody:
            if not again(nobody):
                raise
        except CancelledError:
            break
    raise Stopped


def _note_stray_error(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """What failed in a task that nobody waits for: not ours, those are supervised, but hivemind's.

    A peer that is pinged while it is still starting is one: the other side asks again.
    """
    log.debug("in the background: %s", context.get("message"), exc_info=context.get("exception"))


async def _open_by_some_door(
    stack: contextlib.AsyncExitStack,
    identity: Identity,
    address: RunAddress,
    settings: NodeSettings,
    met_before: Sequence[str],
) -> Node:
    """Through the bootstrap nodes; while all of them are down, through peers that we met before."""
    try:
        return await stack.enter_async_context(open_node(identity, address.bootstraps, settings))
    except UnreachableError:
        if not met_before:
            raise
        log.info("no bootstrap node answers; coming in through peers that we have met before")
        with contextlib.suppress(UnreachableError, NodeError):
            return await stack.enter_async_context(open_node(identity, address.bootstraps, settings, met_before))
        raise


async def _open_bootstrap_node(
    stack: contextlib.AsyncExitStack,
    identity: Identity,
    address: RunAddress,
    settings: NodeSettings,
    met_before: Sequence[str],
) -> Node:
    """Through the other bootstrap nodes, or through peers that we met before; if nobody is there, they come to us."""
    others = [place for place in address.bootstraps if name_in(place) != identity.peer]
    for doors in (others, met_before):
        if doors:
            with contextlib.suppress(UnreachableError, NodeError):  # what hinders us, hinders us below as well
                return await stack.enter_async_context(open_node(identity, (), settings, doors))
    return await stack.enter_async_context(open_node(identity, (), settings))


async def _close(stack: contextlib.AsyncExitStack) -> None:
    """Close everything, then end what hivemind left running (timers of its start-up)."""
    await stack.aclose()
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)


async def _until_lost(node: Node, swarm: NetworkedSwarm, stop: Stopping) -> None:
    """Whoever waits for the daemon, or would ask it, is told when it has gone."""
    await node.daemon.ended.wait()
    swarm.interrupt()
    stop.request()


async def _until_silent(node: Node) -> None:
    """Kill a daemon that does not answer any more: we would wait for it for ever.

    Only answers that are missed in a row count, and none while our own loop stood still: a busy machine is patient.
    """
    now, missed = asyncio.get_running_loop().time, 0
    while missed < MISSED_ANSWERS:
        await asyncio.sleep(node.timing.in_touch if not missed else 0)
        began = now()
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                await is_answering(node.daemon.socket)
            missed = 0
        except TimeoutError:
            missed += now() - began < 1.5 * ANSWER_SECONDS
        except UNREACHED as error:
            log.debug("the network daemon has ended, or says no: %s", error)
            missed = 0
    log.warning("the network daemon has not answered for %.0f s: it is ended", MISSED_ANSWERS * ANSWER_SECONDS)
    node.daemon.kill()


async def _keep_in_touch(node: Node, address: RunAddress, swarm: NetworkedSwarm, address_book: AddressBook) -> None:
    """Knock at the bootstrap nodes now and then, until cancelled: one that was down has forgotten all of us.

    And note who else is there, for the day when it is still down and we come back.
    """
    others = [place for place in address.bootstraps if name_in(place) != node.identity.peer]
    for times in itertools.count(1):
        await asyncio.sleep(node.timing.in_touch * random.uniform(0.8, 1.0))
        anyway = times % LOOK_EVERY == 0
        await asyncio.gather(*(node.greet(place, anyway=anyway) for place in others))
        await node.tidy()
        _note_who_is_there(node, swarm, address_book)
        if anyway and others and node.settings.reachable is not False:
            await node.look(others)


def _note_who_is_there(node: Node, swarm: NetworkedSwarm, address_book: AddressBook) -> None:
    known, others = list[str](), list[str]()
    for peer in swarm.known_peers():
        (others if node.border.is_strange(peer) else known).extend(node.addresses_of(peer)[:1])
    address_book.remember(known, others)
