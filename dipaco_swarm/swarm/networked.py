"""The real swarm: one thread with one asyncio loop, one libp2p daemon, whatever the number of modules.

Directory   who is there: our own announcements out, the others' in, through the DHT
Rounds      module groups (rounds.py, exchange.py)
Store       states, blobs, manifest (store.py)
"""

import asyncio
import contextlib
import itertools
import logging
import random
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from concurrent.futures import CancelledError
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import msgpack
from hivemind.p2p import P2PHandlerError
from hivemind.p2p.p2p_daemon_bindings.utils import ControlFailure, P2PDaemonError
from pydantic import ValidationError

from dipaco_swarm.algorithm.paths import ModuleId
from dipaco_swarm.algorithm.state import ModuleState
from dipaco_swarm.errors import ManifestError, RemoteDataError, UnreachableError
from dipaco_swarm.machine import clock
from dipaco_swarm.machine.clock import SYSTEM_CLOCK, Clock
from dipaco_swarm.machine.stopping import Stopped, Stopping
from dipaco_swarm.manifest import RunAddress, open_manifest
from dipaco_swarm.swarm import records
from dipaco_swarm.swarm.interface import (
    Announcement,
    Contribution,
    ModuleGroup,
    NotAgreed,
    Outcome,
    PeerName,
    Traffic,
)
from dipaco_swarm.swarm.libp2p.address_book import Acquaintances
from dipaco_swarm.swarm.libp2p.identity import Identity, load_identity
from dipaco_swarm.swarm.libp2p.node import Node, NodeSettings, NotOfThisRun, open_node
from dipaco_swarm.swarm.round.channels import end_all, supervise
from dipaco_swarm.swarm.round.codecs.codec import codec_of
from dipaco_swarm.swarm.round.leader import Standing
from dipaco_swarm.swarm.round.member import Rounds
from dipaco_swarm.swarm.states.blobs import BlobStore
from dipaco_swarm.swarm.states.store import Store

log = logging.getLogger(__name__)

HEARTBEAT_SECONDS = 5.0
"""How often a peer repeats its announcements and reads those of its groups: two small records a module."""
KEEP_IN_TOUCH_SECONDS = 10.0
LOOK_EVERY = 6
"""Every so many times that we are in touch, we ask whether we can be dialled."""
MANIFEST_SECONDS = 20.0
FIRST_MANIFEST_PAUSE_SECONDS = 0.1
MANIFEST_PAUSE_SECONDS = 3.0
"""How often we look for a newer manifest in the background, once there is one."""
MAX_MEMBERS = 256
LIFETIME_SECONDS = 30.0
"""An announcement outlives its peer by at most this; six heartbeats, so that a busy minute loses nobody."""
BUSY_LIFETIME_SECONDS = 60.0
"""... or by this, of a peer that was fetching a state: its line may have no room for a word meanwhile."""
PAUSE_DECAY = 0.9
MISSED_WORDS = 3
"""Of whom no word comes for as long as this many took before has fallen asleep, as far as anybody can tell."""

T = TypeVar("T")


@dataclass(frozen=True)
class Heard:
    """An announcement that was read, and until when it counts, whatever happens to the clock on the wall."""

    said: Announcement
    expiration: float
    """As its peer wrote it, by its own clock: another one is another record, and the peer was there to write it."""
    until: float
    """By `clock.seconds`."""
    since: float
    """When it was read first."""
    pause: float
    """Seconds from one word of it to the next, as the slowest of late came over its line and ours."""

    def is_awake(self, now: float) -> bool:
        return now - self.since < MISSED_WORDS * max(self.pause, HEARTBEAT_SECONDS)


class Directory:
    """Live announcements about the modules we are interested in."""

    def __init__(self, node: Node, run: str) -> None:
        self._node = node
        self._run = run
        self.max_members = MAX_MEMBERS
        """Announcements about one module that are listened to."""
        self._ours: tuple[Announcement, ...] = ()
        self._said: set[tuple[int, ModuleId]] = set()
        self._statements: dict[str, bytes] = {}
        self._addresses: tuple[str, ...] = ()
        self._heard: dict[tuple[int, ModuleId], dict[PeerName, Heard]] = {}
        self._changed = asyncio.Event()

    @property
    def ours(self) -> tuple[Announcement, ...]:
        return tuple(replace(said, reduces=self._node.reachable) for said in self._ours)

    def say(self, announcements: Sequence[Announcement]) -> None:
        self._ours = tuple(announcements)
        self._changed.set()

    def state(self, topic: str, statement: bytes) -> None:
        self._statements[topic] = statement
        self._changed.set()

    async def statements(self, topic: str) -> dict[PeerName, bytes]:
        """What live peers say about a topic now."""
        found = await records.read(self._node.dht, records.topic_key(self._run, topic))
        said = {peer: records.decode_statement(payload) for peer, (payload, _) in found.items()}
        return {peer: statement for peer, statement in said.items() if statement is not None}

    def members(self, stage: int, module: ModuleId) -> tuple[Announcement, ...]:
        """What was heard last, ours included, sorted by peer; who was not heard of for a lifetime is gone."""
        now = clock.seconds()
        heard = {
            peer: replace(record.said, awake=record.is_awake(now))
            for peer, record in self._holding(stage, module).items()
        }
        heard.pop(self._node.identity.peer, None)
        heard.update({said.peer: said for said in self.ours if (said.stage, said.module) == (stage, module)})
        return tuple(heard[peer] for peer in sorted(heard))

    async def run(self) -> None:
        """Repeat what we say and listen to our groups, until cancelled."""
        while True:
            self._changed.clear()
            try:
                self._addresses = await self._node.addresses()
                await asyncio.gather(self._tell(), *(self.listen(said.stage, said.module) for said in self._ours))
            except (P2PDaemonError, P2PHandlerError, ControlFailure, OSError, EOFError) as error:
                log.warning("the network of this machine cannot be used just now; trying again every few seconds")
                log.debug("the DHT cannot be used: %s", error)
            with contextlib.suppress(TimeoutError):
                # peers that started together should not speak together for ever
                async with asyncio.timeout(HEARTBEAT_SECONDS * random.uniform(0.8, 1.0)):
                    await self._changed.wait()

    async def _tell(self) -> None:
        ours = self.ours
        about = {(said.stage, said.module) for said in ours}
        await asyncio.gather(
            *(self._store(said, LIFETIME_SECONDS) for said in ours),
            *(self._store_statement(topic, statement) for topic, statement in self._statements.items()),
            *(self._goodbye(stage, module) for stage, module in self._said - about),
        )
        self._said = about

    async def _store(self, said: Announcement, lifetime: float) -> None:
        key = records.group_key(self._run, said.stage, said.module)
        record = records.encode_announcement(said, self._addresses)
        if not await records.store(self._node.dht, self._node.identity, key, record, lifetime):
            log.debug("no node of the DHT took our announcement about %s; will try again", said.module)

    async def _store_statement(self, topic: str, statement: bytes) -> None:
        key, record = records.topic_key(self._run, topic), records.Statement(statement=statement)
        if not await records.store(self._node.dht, self._node.identity, key, record, LIFETIME_SECONDS):
            log.debug("no node of the DHT took our statement about %s; will try again", topic)

    async def _goodbye(self, stage: int, module: ModuleId) -> None:
        """Displace our record by one that says we are gone: it expires later, so it wins."""
        key = records.group_key(self._run, stage, module)
        await records.store(self._node.dht, self._node.identity, key, records.Goodbye(), LIFETIME_SECONDS)

    async def listen(self, stage: int, module: ModuleId) -> None:
        """Read the announcements about one module now. One that a read misses counts until it expires."""
        found = await records.read(self._node.dht, records.group_key(self._run, stage, module))
        heard = self._heard.setdefault((stage, module), {})
        now = clock.seconds()
        for peer in [peer for peer, record in heard.items() if record.until < now and peer not in found]:
            del heard[peer]
        # whom we know comes first, so that a crowd of new names displaces nobody
        for peer, (payload, expiration) in sorted(found.items(), key=lambda entry: (entry[0] not in heard, entry[0])):
            if records.is_goodbye(payload):
                heard.pop(peer, None)
                continue
            if peer not in heard and len(heard) >= self.max_members:
                continue
            decoded = records.decode_announcement(peer, payload, stage, module)
            if decoded is None:
                log.warning("ignored a malformed announcement of peer %s about %s", peer[-8:], module)
                continue
            said, addresses = decoded
            before = heard.get(peer)
            if before is None or before.expiration != expiration:
                left = BUSY_LIFETIME_SECONDS if said.catching_up else LIFETIME_SECONDS
                if before is None:  # read for the first time, it may be an old one
                    left += min(0.0, expiration - time.time() - LIFETIME_SECONDS)
                pause = max(now - before.since, PAUSE_DECAY * before.pause) if before is not None else 0.0
                heard[peer] = Heard(said, expiration, now + left, now, pause)
            self._node.remember(peer, addresses, reachable=said.reduces)

    def peers(self) -> list[PeerName]:
        """Everybody else that was heard of, each once."""
        heard = dict.fromkeys(peer for group in list(self._heard) for peer in self._holding(*group))
        return [peer for peer in heard if peer != self._node.identity.peer]

    def _holding(self, stage: int, module: ModuleId) -> dict[PeerName, Heard]:
        """What was heard about a module and still counts; a copy, as the loop may be adding while other threads ask."""
        now = clock.seconds()
        heard = self._heard.get((stage, module), {}).copy()
        return {peer: record for peer, record in heard.items() if now < record.until}

    async def farewell(self) -> None:
        self._ours = ()
        await self._tell()


class LibP2PSwarm:
    """`Swarm` over libp2p. Make one with `open_swarm`; its methods may be called from any thread."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        node: Node,
        address: RunAddress,
        directory: Directory,
        store: Store,
        met_before: Sequence[str] = (),
    ) -> None:
        self._loop = loop
        self._node = node
        self._address = address
        self._directory = directory
        self._store = store
        self._met_before = tuple(met_before)
        self._rounds: Rounds | None = None
        self._groups: dict[tuple[int, ModuleId], ModuleGroup] = {}
        self._called: set[tuple[int, ModuleId, int]] = set()
        self._pending: set[asyncio.Task[Any]] = set()
        self._following: set[asyncio.Task[None]] = set()
        self._refused_manifest: ManifestError | None = None
        """Why the last look for a manifest found none that counts."""
        self._interrupted = False

    @property
    def peer(self) -> PeerName:
        return self._node.identity.peer

    @property
    def clock(self) -> Clock:
        return SYSTEM_CLOCK

    @property
    def reachable(self) -> bool:
        """Whether others can dial us, as far as we know by now."""
        return self._node.reachable

    @property
    def address(self) -> RunAddress:
        """The run address with this node as the bootstrap node."""
        return self._address.with_bootstraps(self._call(self._node.addresses(), 10) or ())

    def configure_rounds(self, codec: str, norm_clip: float, max_members: int = MAX_MEMBERS) -> None:
        self._directory.max_members = max_members
        standing = Standing(
            version_of=self._version_of,
            members_of=lambda stage, module: [
                said.peer for said in self._directory.members(stage, module) if said.path is not None
            ],
            leaders_of=lambda stage, module: [
                said.peer
                for said in self._directory.members(stage, module)
                if said.path is not None and said.reduces and said.peer != self.peer
            ],
            group_of=lambda stage, module: self._groups.get((stage, module)),
            called=lambda stage, module, version: self._called.add((stage, module, version)),
        )
        if self._rounds is not None:
            self._call(self._rounds.stop(), 10)
        self._rounds = Rounds(self._node, self._address.fingerprint, codec_of(codec), norm_clip, standing)
        self._call(self._rounds.serve(), 10)

    def _version_of(self, stage: int, module: ModuleId) -> int | None:
        for said in self._directory.ours:
            if (said.stage, said.module) == (stage, module) and said.path is not None:
                return said.version
        return None

    # who is there ------------------------------------------------------------------------------------------------

    def announce(self, announcements: Sequence[Announcement], groups: Sequence[ModuleGroup] = ()) -> None:
        self._groups = {(group.stage, group.module): group for group in groups}
        standing = {(said.stage, said.module): said.version for said in announcements}
        for called in list(self._called):
            if called[2] < standing.get(called[:2], called[2] + 1):
                self._called.discard(called)
        self._loop.call_soon_threadsafe(self._directory.say, tuple(announcements))

    def members(self, stage: int, module: ModuleId) -> tuple[Announcement, ...]:
        return self._directory.members(stage, module)

    def look_up(self, stage: int, modules: Sequence[ModuleId], *, timeout: float) -> None:
        """Read the announcements about these modules from the DHT now; `members` then answers for them."""

        async def all_of_them() -> None:
            await asyncio.gather(*(self._directory.listen(stage, module) for module in modules))

        self._call(all_of_them(), timeout)

    def publish(self, topic: str, statement: bytes) -> None:
        self._loop.call_soon_threadsafe(self._directory.state, topic, statement)

    def statements(self, topic: str, *, timeout: float) -> dict[PeerName, bytes]:
        return self._call(self._directory.statements(topic), timeout) or {}

    def is_gathering(self, stage: int, module: ModuleId, version: int) -> bool:
        return (stage, module, version) in self._called

    # module groups -----------------------------------------------------------------------------------------------

    def all_reduce(self, contributions: Sequence[Contribution], *, patience: float) -> dict[ModuleId, Outcome]:
        assert self._rounds is not None, "configure_rounds() comes before the first round"
        rounds = self._rounds

        async def all_groups() -> list[Outcome]:
            running = [asyncio.create_task(rounds.run(part, patience)) for part in contributions]
            with contextlib.suppress(asyncio.CancelledError):  # interrupted; what is decided is decided all the same
                await asyncio.gather(*running, return_exceptions=True)
            return [NotAgreed("interrupted") if task.cancelled() else task.result() for task in running]

        for part in contributions:
            self._groups.setdefault((part.group.stage, part.group.module), part.group)
        outcomes = self._call(all_groups(), None)
        if outcomes is None:
            return {part.group.module: NotAgreed("interrupted") for part in contributions}
        for part in contributions:
            self._called.discard((part.group.stage, part.group.module, part.version))
        return {part.group.module: outcome for part, outcome in zip(contributions, outcomes, strict=True)}

    # states ------------------------------------------------------------------------------------------------------

    def hold(self, stage: int, module: ModuleId, state: ModuleState) -> None:
        state.digest  # noqa: B018  # computed here, in the caller's thread, not in the loop
        self._loop.call_soon_threadsafe(self._store.hold, stage, module, state)

    def release(self, stage: int, module: ModuleId) -> None:
        self._loop.call_soon_threadsafe(self._store.release, stage, module)

    def fetch_state(
        self, stage: int, module: ModuleId, digest: str, *, timeout: float, parameters: int | None = None
    ) -> ModuleState | None:
        members = list(self.members(stage, module))
        random.shuffle(members)  # joiners spread over the holders
        # who announces it first; keepers, which are in no round, before who trains; then who may have had it before
        members.sort(key=lambda said: (said.digest != digest, said.path is not None))
        asked = dict.fromkeys((*(said.peer for said in members), *self._bootstrap_peers()))
        peers = [peer for peer in asked if peer != self.peer]
        return self._call(self._store.fetch_state(peers, stage, module, digest, parameters), timeout)

    # blobs and the manifest --------------------------------------------------------------------------------------

    def put_blob(self, data: bytes) -> str:
        return self._store.blobs.put(data)

    def drop_blob(self, digest: str) -> None:
        self._store.blobs.drop(digest)

    def fetch_blob(self, digest: str, *, timeout: float, limit: int | None = None) -> bytes:
        peers = [peer for peer in (*self._bootstrap_peers(), *self._known_peers()) if peer != self.peer]
        data = self._call(self._store.fetch_blob(list(dict.fromkeys(peers)), digest, limit), timeout)
        if data is None:
            raise UnreachableError(
                f"none of {len(set(peers))} peers sent the run's file {digest[:12]} within {timeout:.0f} s; try again "
                "when the bootstrap node is up"
            )
        return data

    def publish_manifest(self, signed: bytes) -> None:
        manifest = open_manifest(signed, self._address.fingerprint)
        self._store.manifest = signed
        digest = self.put_blob(signed)
        record = records.ManifestRecord(revision=manifest.revision, digest=digest)
        key = records.manifest_key(self._address.fingerprint)
        self._call(records.store(self._node.dht, self._node.identity, key, record, records.MAX_LIFETIME_SECONDS), 30)

    def newest_manifest(self, *, timeout: float) -> bytes | None:
        return self._call(self._newest_manifest(), timeout)

    def follow_manifest(self) -> None:
        def begin() -> None:
            if not self._following:
                supervise(self._following, self._follow_manifest())

        self._loop.call_soon_threadsafe(begin)

    def known_manifest(self) -> bytes | None:
        known, refused = self._store.manifest, self._refused_manifest
        if known is None and refused is not None:
            raise refused
        return known

    async def _follow_manifest(self) -> None:
        """Look for newer manifests now and then, until cancelled."""
        while True:
            try:
                async with asyncio.timeout(MANIFEST_SECONDS):
                    await self._newest_manifest()
                self._refused_manifest = None
            except ManifestError as error:
                self._refused_manifest = error
            except (UnreachableError, P2PDaemonError, P2PHandlerError, ControlFailure, OSError, EOFError) as error:
                log.debug("no newer manifest: %s", error)  # a TimeoutError is an OSError
            await asyncio.sleep(MANIFEST_PAUSE_SECONDS if self._store.manifest else FIRST_MANIFEST_PAUSE_SECONDS)

    async def _newest_manifest(self) -> bytes | None:
        """Ask the bootstrap nodes and some peers directly, and the DHT; the highest revision that is signed wins."""
        peers = list(dict.fromkeys((*self._bootstrap_peers(), *self._known_peers()[:4])))
        found = await asyncio.gather(*(self._ask_manifest(peer) for peer in peers if peer != self.peer))
        if found and self._store.manifest is None and all(isinstance(answer, NotOfThisRun) for answer in found):
            raise UnreachableError(self._address.nobody_knows_it)
        answers = [answer for answer in found if isinstance(answer, bytes)]
        if not answers and (signed := await self._manifest_from_dht()) is not None:
            answers.append(signed)
        newest, revision = self._store.manifest, -1
        if newest is not None:
            revision = open_manifest(newest, self._address.fingerprint).revision
        refused: ManifestError | None = None
        for signed in answers:
            try:
                manifest = open_manifest(signed, self._address.fingerprint)
            except ManifestError as error:
                refused = error
                continue
            if manifest.revision > revision:
                newest, revision = signed, manifest.revision
        if newest is None and refused is not None:
            raise refused
        self._store.manifest = newest
        return newest

    async def _ask_manifest(self, peer: str) -> bytes | NotOfThisRun | None:
        try:
            return await self._store.ask_manifest(peer)
        except NotOfThisRun as error:
            return error
        except (ConnectionError, EOFError, TimeoutError, RemoteDataError) as error:
            log.debug("peer %s does not send the manifest: %s", peer[-8:], error)
            return None

    async def _manifest_from_dht(self) -> bytes | None:
        found = await records.read(self._node.dht, records.manifest_key(self._address.fingerprint))
        best: records.ManifestRecord | None = None
        for payload, _ in found.values():
            try:
                record = records.ManifestRecord.model_validate(msgpack.unpackb(payload, raw=False))
            except (ValueError, TypeError, ValidationError):
                continue
            if best is None or record.revision > best.revision:
                best = record
        return None if best is None else await self._store.fetch_blob(self._known_peers(), best.digest)

    # ourselves ---------------------------------------------------------------------------------------------------

    @property
    def lost(self) -> bool:
        """Whether our daemon ended under us: nobody is to be reached any more, and all calls return with nothing."""
        return self._node.daemon_ended.is_set()

    def traffic(self) -> Traffic:
        return Traffic(self._node.meter.sent, self._node.meter.received)

    def interrupt(self) -> None:
        """Let every call that waits, now or later, return at once with nothing; for Ctrl+C."""

        def interrupt() -> None:
            self._interrupted = True
            for task in self._pending:
                task.cancel()

        with contextlib.suppress(RuntimeError):  # closed already
            self._loop.call_soon_threadsafe(interrupt)

    async def stop(self) -> None:
        """Say goodbye; the node closes afterwards."""
        await end_all(self._following)
        if self._rounds is not None:
            await self._rounds.stop()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(2):
                await self._directory.farewell()

    def _bootstrap_peers(self) -> list[str]:
        return [_name_in(place) for place in self._address.bootstraps]

    def _known_peers(self) -> list[str]:
        return list(dict.fromkeys((*self._directory.peers(), *self._met_before)))

    def _call(self, work: Coroutine[Any, Any, T], timeout: float | None) -> T | None:
        """Run in the loop and wait; None when time is up or we were interrupted."""

        async def tracked() -> T | None:
            if self._interrupted:
                work.close()
                return None
            task = asyncio.ensure_future(work)
            self._pending.add(task)
            try:
                async with asyncio.timeout(timeout):
                    return await task
            except TimeoutError:
                return None
            finally:
                self._pending.discard(task)

        future = asyncio.run_coroutine_threadsafe(tracked(), self._loop)
        try:
            return future.result()
        except (CancelledError, asyncio.CancelledError):
            return None


def _name_in(address: str) -> str:
    return address.rpartition("/p2p/")[2]


@contextlib.contextmanager
def open_swarm(
    address: RunAddress,
    home: Path,
    settings: NodeSettings,
    stop: Stopping | None = None,
    again: Callable[[UnreachableError], bool] = lambda nobody: False,
) -> Iterator[LibP2PSwarm]:
    """Join the swarm of a run; goodbye is said when the block ends.

    `again`: asked whenever nobody answers, whether to try again; it may wait first. `stop` is told as well when the
    daemon ends under us (`LibP2PSwarm.lost`).

    Raises HomeError, NodeError or UnreachableError when that is not possible, and Stopped when `stop` came first.
    """
    identity, stop = load_identity(home), stop or Stopping()
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(_note_stray_error)
    thread = threading.Thread(target=loop.run_forever, name="swarm", daemon=True)
    thread.start()
    stack = contextlib.AsyncExitStack()

    async def open_all() -> LibP2PSwarm:
        acquaintances = Acquaintances(home)
        before = acquaintances.addresses()
        node = await _open_by_some_door(stack, identity, address, settings, before)
        directory = Directory(node, address.fingerprint)
        store = Store(node, address.fingerprint, BlobStore(home / "blobs"))
        await store.serve()
        await stack.enter_async_context(_running(directory.run()))
        await stack.enter_async_context(_running(_keep_in_touch(node, address, directory, acquaintances)))
        swarm = LibP2PSwarm(loop, node, address, directory, store, tuple(_name_in(place) for place in before))
        await stack.enter_async_context(_running(_until_lost(node, swarm, stop)))
        stack.push_async_callback(swarm.stop)
        stack.callback(_note_who_is_there, node, directory, acquaintances)  # the bootstrap nodes may be down next time
        return swarm

    try:
        yield _unless_stopped(open_all, loop, stop, again)
    finally:
        asyncio.run_coroutine_threadsafe(_close(stack), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def _unless_stopped(
    open_all: Callable[[], Coroutine[Any, Any, LibP2PSwarm]],
    loop: asyncio.AbstractEventLoop,
    stop: Stopping,
    again: Callable[[UnreachableError], bool],
) -> LibP2PSwarm:
    opening: asyncio.Task[LibP2PSwarm] | None = None

    async def unless_stopped() -> LibP2PSwarm:
        nonlocal opening
        opening = asyncio.current_task()
        if stop():
            raise CancelledError
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
    acquaintances: Sequence[str],
) -> Node:
    """Through the bootstrap nodes; while all of them are down, through peers that we met before."""
    try:
        return await stack.enter_async_context(open_node(identity, address.bootstraps, settings))
    except UnreachableError:
        if not acquaintances:
            raise
        log.info("no bootstrap node answers; coming in through peers that we have met before")
        with contextlib.suppress(UnreachableError):
            return await stack.enter_async_context(open_node(identity, address.bootstraps, settings, acquaintances))
        raise


async def _close(stack: contextlib.AsyncExitStack) -> None:
    """Close everything, then end what hivemind left running (timers of its start-up)."""
    await stack.aclose()
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)


async def _until_lost(node: Node, swarm: LibP2PSwarm, stop: Stopping) -> None:
    """Whoever waits for the daemon, or would ask it, is told when it has gone."""
    await node.daemon_ended.wait()
    swarm.interrupt()
    stop.request()


async def _keep_in_touch(node: Node, address: RunAddress, directory: Directory, acquaintances: Acquaintances) -> None:
    """Knock at the bootstrap nodes now and then, until cancelled: one that was down has forgotten all of us.

    And note who else is there, for the day when it is still down and we come back.
    """
    for times in itertools.count(1):
        await asyncio.sleep(KEEP_IN_TOUCH_SECONDS * random.uniform(0.8, 1.0))
        await asyncio.gather(*(node.greet(place) for place in address.bootstraps))
        _note_who_is_there(node, directory, acquaintances)
        if times % LOOK_EVERY == 0 and address.bootstraps and node.settings.reachable is not False:
            await node.look(address.bootstraps)


def _note_who_is_there(node: Node, directory: Directory, acquaintances: Acquaintances) -> None:
    acquaintances.remember(place for peer in directory.peers() for place in node.addresses_of(peer)[:1])


@contextlib.asynccontextmanager
async def _running(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    tasks: set[asyncio.Task[None]] = set()
    supervise(tasks, work)
    try:
        yield
    finally:
        await end_all(tasks)
