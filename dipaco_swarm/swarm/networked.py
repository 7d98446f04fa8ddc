"""`Swarm` over a transport: rounds, states, blobs and the manifest, for the thread of a program.

Directory   who is there (directory.py)
Rounds      module groups (round/)
Store       states, blobs, manifest (states/)
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from concurrent.futures import CancelledError
from typing import Any, TypeVar

import msgpack
from pydantic import ValidationError

from dipaco_swarm.algorithm.paths import ModuleId, PathIndex
from dipaco_swarm.algorithm.plan import Claim
from dipaco_swarm.algorithm.state import ModuleState
from dipaco_swarm.errors import ManifestError, RemoteDataError, UnreachableError
from dipaco_swarm.machine.clock import Clock
from dipaco_swarm.run.address import RunAddress
from dipaco_swarm.run.signature import open_manifest
from dipaco_swarm.swarm import records
from dipaco_swarm.swarm.addresses import name_in
from dipaco_swarm.swarm.directory import MAX_MEMBERS, Directory
from dipaco_swarm.swarm.interface import (
    Announcement,
    Contribution,
    ModuleGroup,
    NotAgreed,
    Outcome,
    PeerName,
    Residual,
    Traffic,
)
from dipaco_swarm.swarm.round.codecs.codec import codec_of
from dipaco_swarm.swarm.round.leader import Member, Standing
from dipaco_swarm.swarm.round.member import Rounds
from dipaco_swarm.swarm.states.blobs import Blobs
from dipaco_swarm.swarm.states.store import Store
from dipaco_swarm.swarm.tasks import Tasks
from dipaco_swarm.swarm.transport import NotOfThisRun, Portal, Transport

log = logging.getLogger(__name__)

MANIFEST_SECONDS = 20.0
FIRST_MANIFEST_PAUSE_SECONDS = 0.1
FIRST_PEERS = 4
"""So many peers besides the bootstrap nodes are asked for the first manifest."""

T = TypeVar("T")


class NetworkedSwarm:
    """`Swarm` over a transport. Its methods may be called from any thread but the loop's."""

    def __init__(
        self,
        portal: Portal,
        transport: Transport,
        address: RunAddress,
        directory: Directory,
        store: Store,
        met_before: Sequence[str] = (),
        patience: float = 1.0,
    ) -> None:
        self._portal = portal
        self._transport = transport
        self._address = address
        self._directory = directory
        self._store = store
        self._met_before = tuple(met_before)
        self._patience = patience
        self._rounds: Rounds | None = None
        self._groups: dict[tuple[int, ModuleId], ModuleGroup] = {}
        self._called: set[tuple[int, ModuleId, int]] = set()
        self._pending: dict[asyncio.Task[Any], None] = {}
        self._following = Tasks()
        self._refused_manifest: ManifestError | None = None
        """Why the last look for a manifest found none that counts."""
        self._interrupted = False

    @property
    def peer(self) -> PeerName:
        return self._transport.peer

    @property
    def clock(self) -> Clock:
        return self._transport.clock

    @property
    def reachable(self) -> bool:
        """Whether others can dial us, as far as we know by now."""
        return self._transport.reachable

    @property
    def address(self) -> RunAddress:
        """The run address with this node as the bootstrap node."""
        return self._address.with_bootstraps(self._call(self._transport.addresses(), 10) or ())

    def configure_rounds(self, codec: str, norm_clip: float, max_members: int = MAX_MEMBERS) -> None:
        self._directory.max_members = max_members
        standing = Standing(
            ours=self._ours,
            members_of=lambda stage, module: [
                said.peer for said in self._directory.members(stage, module) if said.trains
            ],
            leaders_of=lambda stage, module: [
                said.peer
                for said in self._directory.members(stage, module)
                if said.trains and said.reduces and said.peer != self.peer
            ],
            group_of=lambda stage, module: self._groups.get((stage, module)),
            called=lambda stage, module, version: self._called.add((stage, module, version)),
            lately=self._directory.lately,
            heard=self._heard,
        )
        if self._rounds is not None:
            self._call(self._rounds.stop(), 10)
        self._rounds = Rounds(self._transport, self._address.fingerprint, codec_of(codec), norm_clip, standing)
        self._call(self._rounds.serve(), 10)

    def _ours(self, stage: int, module: ModuleId) -> Member | None:
        """Where we stand with a module that we train."""
        for said in self._directory.ours:
            if (said.stage, said.module) == (stage, module) and said.path is not None:
                return Member(said.path, Claim.of(said))
        return None

    def _heard(self, peer: str, stage: int, module: ModuleId, there: Member) -> None:
        claim, path = there.claim, PathIndex(there.path)
        self._directory.heard_directly(
            Announcement(PeerName(peer), stage, module, path, claim.version, claim.digest, claim.work)
        )

    # who is there ------------------------------------------------------------------------------------------------

    def announce(self, announcements: Sequence[Announcement], groups: Sequence[ModuleGroup] = ()) -> None:
        self._groups = {(group.stage, group.module): group for group in groups}
        standing = {(said.stage, said.module): said.version for said in announcements}
        for called in list(self._called):
            if called[2] < standing.get(called[:2], called[2] + 1):
                self._called.discard(called)
        self._portal.soon(self._directory.say, tuple(announcements))

    def members(self, stage: int, module: ModuleId) -> tuple[Announcement, ...]:
        return self._directory.members(stage, module)

    def look_up(self, stage: int, modules: Sequence[ModuleId], *, timeout: float) -> None:
        """Read the announcements about these modules from the DHT now; `members` then answers for them."""

        async def all_of_them() -> None:
            await asyncio.gather(*(self._directory.listen(stage, module) for module in modules))

        self._call(all_of_them(), timeout)

    def publish(self, topic: str, statement: bytes) -> None:
        self._portal.soon(self._directory.state, topic, statement)

    def statements(self, topic: str, *, timeout: float) -> dict[PeerName, bytes]:
        return self._call(self._directory.statements(topic), timeout) or {}

    def is_gathering(self, stage: int, module: ModuleId, version: int) -> bool:
        return (stage, module, version) in self._called

    # module groups -----------------------------------------------------------------------------------------------

    def all_reduce(self, contributions: Sequence[Contribution], *, patience: float) -> dict[ModuleId, Outcome]:
        assert self._rounds is not None, "configure_rounds() comes before the first round"
        rounds = self._rounds

        async def all_groups() -> list[Outcome]:
            running = [asyncio.create_task(rounds.run(part, self._patience * patience)) for part in contributions]
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

    def residuals(self, stage: int, path: PathIndex) -> dict[ModuleId, Residual]:
        return {} if self._rounds is None else self._rounds.feedback.residuals(stage, path)

    def resume_residuals(self, stage: int, path: PathIndex, residuals: Mapping[ModuleId, Residual]) -> None:
        assert self._rounds is not None, "configure_rounds() comes before the residuals of an earlier life"
        self._rounds.feedback.resume(stage, path, residuals)

    # states ------------------------------------------------------------------------------------------------------

    def hold(self, stage: int, module: ModuleId, state: ModuleState) -> None:
        state.digest  # noqa: B018  # computed here, in the caller's thread, not in the loop
        self._portal.soon(self._store.hold, stage, module, state)

    def release(self, stage: int, module: ModuleId) -> None:
        self._portal.soon(self._store.release, stage, module)

    def fetch_state(
        self, stage: int, module: ModuleId, digest: str, *, timeout: float, parameters: int | None = None
    ) -> ModuleState | None:
        members = list(self.members(stage, module))
        self._transport.random.shuffle(members)  # joiners spread over the holders
        # who announces it first; keepers, which are in no round, before who trains; then who may have had it before
        members.sort(key=lambda said: (said.digest != digest, said.trains))
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
        # a stranger may be slow on purpose: his blob has the timeout for all of it
        patience, deadline = (timeout, None) if limit is None else (None, timeout)
        data = self._call(self._store.fetch_blob(list(dict.fromkeys(peers)), digest, limit, patience), deadline)
        if data is None:
            raise UnreachableError(
                f"none of {len(set(peers))} peers sends the run's file {digest[:12]} just now; try again when the "
                "bootstrap node is up"
            )
        return data

    def publish_manifest(self, signed: bytes) -> None:
        manifest = open_manifest(signed, self._address.fingerprint)
        self._store.manifest = signed
        digest = self.put_blob(signed)
        record = records.ManifestRecord(revision=manifest.revision, digest=digest)
        key = records.manifest_key(self._address.fingerprint)
        lifetime = records.MAX_LIFETIME_SECONDS
        self._call(self._transport.records.store(key, records.encode(record), lifetime), self._transport.timing.stall)

    def newest_manifest(self, *, timeout: float) -> bytes | None:
        return self._call(self._newest_manifest(), timeout)

    def follow_manifest(self) -> None:
        def begin() -> None:
            if not self._following:
                self._following.start(self._follow_manifest())

        self._portal.soon(begin)

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
            except (UnreachableError, OSError, EOFError) as error:
                log.debug("no newer manifest: %s", error)  # a TimeoutError is an OSError
            pause = self._transport.timing.manifest_pause if self._store.manifest else FIRST_MANIFEST_PAUSE_SECONDS
            await asyncio.sleep(pause)

    async def _newest_manifest(self) -> bytes | None:
        """Ask the bootstrap nodes and some peers directly, and the DHT; the highest revision that is signed wins.

        Who has a manifest asks one other peer, any: so a newer one is everywhere after some looks, whoever is gone.
        """
        others = self._known_peers()
        first = self._store.manifest is None
        some = others[:FIRST_PEERS] if first else self._transport.random.sample(others, k=min(1, len(others)))
        peers = list(dict.fromkeys((*self._bootstrap_peers(), *some)))
        found = await asyncio.gather(*(self._ask_manifest(peer) for peer in peers if peer != self.peer))
        if found and self._store.manifest is None and all(isinstance(answer, NotOfThisRun) for answer in found):
            raise UnreachableError(self._address.nobody_knows_it)
        answers = [answer for answer in found if isinstance(answer, bytes)]
        if not answers and (signed := await self._manifest_from_dht()) is not None:
            answers.append(signed)
        answers = [signed for signed in answers if signed != self._store.manifest]
        if not answers:  # nearly always: it need not be read again
            return self._store.manifest
        newest, revision = self._store.manifest, -1
        if newest is not None:
            revision = open_manifest(newest, self._address.fingerprint).revision
        refused: ManifestError | None = None
        for signed in answers:
            if signed == self._store.manifest:
                continue  # most of the time: verified already
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
        found = await self._transport.records.read(records.manifest_key(self._address.fingerprint))
        best: records.ManifestRecord | None = None
        for found_record in found.values():
            try:
                record = records.ManifestRecord.model_validate(msgpack.unpackb(found_record.payload, raw=False))
            except (ValueError, TypeError, ValidationError):
                continue
            if best is None or record.revision > best.revision:
                best = record
        return None if best is None else await self._store.fetch_blob(self._known_peers(), best.digest)

    # ourselves ---------------------------------------------------------------------------------------------------

    @property
    def lost(self) -> bool:
        """Whether our daemon ended under us: nobody is to be reached any more, and all calls return with nothing."""
        return self._transport.lost

    def traffic(self) -> Traffic:
        return Traffic(self._transport.meter.sent, self._transport.meter.received)

    def interrupt(self) -> None:
        """Let every call that waits, now or later, return at once with nothing; for Ctrl+C."""

        def interrupt() -> None:
            self._interrupted = True
            for task in list(self._pending):
                task.cancel()

        self._portal.soon(interrupt)

    async def stop(self) -> None:
        """Say goodbye; the node closes afterwards."""
        await self._following.end()
        if self._rounds is not None:
            await self._rounds.stop()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(2):
                await self._directory.farewell()

    def _bootstrap_peers(self) -> list[str]:
        return [name_in(place) for place in self._address.bootstraps]

    def known_peers(self) -> list[PeerName]:
        """Everybody else that is to be heard now."""
        return self._directory.peers()

    def _known_peers(self) -> list[str]:
        return list(dict.fromkeys((*self._directory.peers(), *self._met_before)))

    def _call(self, work: Coroutine[Any, Any, T], timeout: float | None) -> T | None:
        """Run in the loop and wait; None when time is up or we were interrupted."""

        async def tracked() -> T | None:
            if self._interrupted:
                work.close()
                return None
            task = asyncio.ensure_future(work)
            self._pending[task] = None
            try:
                async with asyncio.timeout(timeout):
                    return await task
            except TimeoutError:
                return None
            finally:
                self._pending.pop(task, None)

        try:
            return self._portal.run(tracked())
        except (CancelledError, asyncio.CancelledError):
            return None


@contextlib.asynccontextmanager
async def networked_swarm(
    portal: Portal,
    transport: Transport,
    address: RunAddress,
    blobs: Blobs,
    met_before: Sequence[str] = (),
    *,
    patience: float = 1.0,
) -> AsyncIterator[NetworkedSwarm]:
    """A swarm that listens and serves until the block ends; then it says goodbye. To be entered in the loop.

    `met_before`: names of peers that may be there, from a life before this one. `patience`: so many times as long as
    the program says members of a group are waited for.
    """
    directory = Directory(transport, address.fingerprint)
    store = Store(transport, address.fingerprint, blobs)
    await store.serve()
    swarm = NetworkedSwarm(portal, transport, address, directory, store, met_before, patience)
    background = Tasks()
    background.start(directory.run())
    try:
        yield swarm
    finally:
        await swarm.stop()
        await background.end()
