"""`Swarm` over a transport: rounds, states, blobs and the manifest, for the thread of a program.

Directory   who is there (directory.py)
Groups      where we stand in each module group (groups.py)
Rounds      one outer round after the other (round/)
Store       states and blobs (states/); Manifests: the newest manifest
Calls       from the thread of a program into the loop (calls.py)
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from functools import partial

from dipaco_swarm.algorithm.paths import ModuleId, PathIndex
from dipaco_swarm.algorithm.plan import Claim
from dipaco_swarm.algorithm.state import ModuleState
from dipaco_swarm.errors import UnreachableError
from dipaco_swarm.machine.clock import Clock
from dipaco_swarm.run.address import RunAddress
from dipaco_swarm.swarm.addresses import name_in
from dipaco_swarm.swarm.asking import Asking
from dipaco_swarm.swarm.bans import Bans
from dipaco_swarm.swarm.calls import Begun, Calls
from dipaco_swarm.swarm.circle import Circle
from dipaco_swarm.swarm.directory import MAX_MEMBERS, Directory
from dipaco_swarm.swarm.door import Door
from dipaco_swarm.swarm.encoded_average import EncodedAverage
from dipaco_swarm.swarm.fetching import FetchUnderWay, Older
from dipaco_swarm.swarm.groups import Groups
from dipaco_swarm.swarm.interface import (
    Agreed,
    Announcement,
    Contribution,
    ModuleGroup,
    NotAgreed,
    Outcome,
    PeerName,
    Residual,
    RoundUnderWay,
)
from dipaco_swarm.swarm.round.codecs.codec import codec_of
from dipaco_swarm.swarm.round.court import Court
from dipaco_swarm.swarm.round.rounds import Rounds
from dipaco_swarm.swarm.round.seals import is_proven
from dipaco_swarm.swarm.sharing import Sharing
from dipaco_swarm.swarm.states.averages import pack
from dipaco_swarm.swarm.states.blobs import Blobs
from dipaco_swarm.swarm.states.fetches import Fetches
from dipaco_swarm.swarm.states.manifests import Manifests
from dipaco_swarm.swarm.states.store import Store, store_protocol
from dipaco_swarm.swarm.tasks import Tasks, to_its_end
from dipaco_swarm.swarm.timing import Timing
from dipaco_swarm.swarm.traffic import Traffic
from dipaco_swarm.swarm.transport import Portal, Transport
from dipaco_swarm.swarm.vouching import Vouching
from dipaco_swarm.swarm.witnesses import Witnesses

NEARBY_SECONDS = 10.0
"""For what our own node does, without any other peer."""
FAREWELL_SECONDS = 2.0
"""Ctrl+C should not hang because the network is slow; our records expire by themselves."""


class _RoundOfOurs:
    """`RoundUnderWay` in the loop."""

    def __init__(self, begun: Begun[Outcome], over: Callable[[], None], progress: Callable[[], float]) -> None:
        """`over`: called when its outcome is taken. `progress`: how far its exchange has come."""
        self._begun = begun
        self._over = over
        self._progress = progress

    def outcome(self, *, timeout: float | None = 0.0) -> Outcome | None:
        outcome = self._begun.result(timeout)
        if not self._begun.is_over:
            return None
        self._over()
        return outcome or NotAgreed("interrupted")

    @property
    def progress(self) -> float:
        return self._progress()

    def cancel(self) -> None:
        self._begun.cancel()


class _FetchOfOurs:
    """`FetchUnderWay` in the loop."""

    def __init__(self, begun: Begun[ModuleState | None]) -> None:
        self._begun = begun

    @property
    def is_over(self) -> bool:
        return self._begun.is_over

    def state(self, timeout: float | None = None) -> ModuleState | None:
        return self._begun.result(timeout)

    def cancel(self) -> None:
        self._begun.cancel()


class NetworkedSwarm:
    """`Swarm` over a transport. Its methods may be called from any thread but the loop's."""

    def __init__(
        self,
        portal: Portal,
        transport: Transport,
        address: RunAddress,
        directory: Directory,
        store: Store,
        vouching: Vouching,
        door: Door,
        met_before: Sequence[str] = (),
        patience: float = 1.0,
    ) -> None:
        self._portal, self._transport = portal, transport
        self._address, self._directory = address, directory
        self._store = store
        self._met_before = tuple(met_before)
        self._patience = patience
        self._calls = Calls(portal)
        self._telling = Tasks()
        self._groups = Groups(transport.peer, directory, vouching.knows)
        self._vouching = vouching
        self.door = door
        self.sharing = Sharing(portal, transport, directory, store, address.fingerprint)
        self.asking = Asking(portal, transport, door, address.fingerprint)
        self.court = Court(portal, transport, address.fingerprint, self._groups.standing(vouching, door))
        self._roots = [name_in(place) for place in address.bootstraps]
        self._fetches = Fetches(transport, directory, store, self._roots)
        self._manifests = Manifests(transport, address, store, self._known_peers)
        self._rounds: Rounds | None = None
        vouching.generation = self._manifests.generation
        store.on_asked_had = vouching.answer
        store.on_invitation = door.answer

    @property
    def peer(self) -> PeerName:
        return self._transport.peer

    @property
    def clock(self) -> Clock:
        return self._transport.clock

    @property
    def timing(self) -> Timing:
        return self._transport.timing

    @property
    def reachable(self) -> bool:
        return self._transport.reachable

    @property
    def address(self) -> RunAddress:
        """The run's, with this node as the bootstrap node."""
        return self._address.with_bootstraps(self._calls.run(self._transport.addresses(), NEARBY_SECONDS) or ())

    def limit_members(self, max_members: int) -> None:
        self._directory.max_members = max_members

    def configure_rounds(self, codec: str, norm_clip: float, max_members: int = MAX_MEMBERS) -> None:
        self.limit_members(max_members)
        if self._rounds is not None:
            self._calls.run(self._rounds.stop(), NEARBY_SECONDS)
        run, standing = self._address.fingerprint, self._groups.standing(self._vouching, self.door)
        self._rounds = Rounds(self._transport, run, codec_of(codec), norm_clip, standing, self._store.shelf.zeros)
        self._groups.waits_for = self._rounds.waits_for
        self._calls.run(self._rounds.serve(), NEARBY_SECONDS)

    # who is there ------------------------------------------------------------------------------------------------

    def announce(self, announcements: Sequence[Announcement], groups: Sequence[ModuleGroup] = ()) -> None:
        self._groups.announce(announcements, groups)
        self._portal.soon(self._directory.say, tuple(announcements))

    def tell(self, peer: PeerName, holds: Sequence[Announcement]) -> None:
        for said in holds:
            self._portal.soon(lambda said=said: self._telling.start(self._store.tell(peer, said)))
        self._portal.soon(self._directory.refresh, holds)

    def members(self, stage: int, module: ModuleId) -> tuple[Announcement, ...]:
        return self._groups.members(stage, module)

    def look_up(self, stage: int, modules: Sequence[ModuleId], *, timeout: float, thorough: bool = True) -> None:
        read = self._directory.listen if thorough else self._directory.glance

        async def all_of_them() -> None:
            await asyncio.gather(*(read(stage, module) for module in modules))

        self._calls.run(all_of_them(), timeout)

    def publish(self, topic: str, statement: bytes) -> None:
        self._portal.soon(self._directory.state, topic, statement)

    def statements(self, topic: str, *, timeout: float) -> dict[PeerName, bytes]:
        return self._calls.run(self._directory.statements(topic), timeout) or {}

    def is_gathering(self, stage: int, module: ModuleId, version: int, *, by_strangers: bool = False) -> bool:
        return self._groups.is_gathering(stage, module, version, by_strangers=by_strangers)

    def believed(
        self, stage: int, module: ModuleId, ours: Claim, claims: Sequence[Claim], *, timeout: float = 0.0
    ) -> list[Claim]:
        if timeout:
            return self._calls.run(self._vouching.check(stage, module, ours, claims), timeout) or []
        return self._vouching.believed(stage, module, ours, claims)

    # module groups -----------------------------------------------------------------------------------------------

    def begin_round(self, contribution: Contribution, *, patience: float, older: Older | None = None) -> RoundUnderWay:
        assert self._rounds is not None, "configure_rounds() comes before the first round"
        self._groups.enter([contribution])
        begun = self._calls.begin(self._round(self._rounds, contribution, self._patience * patience, older))
        progress = partial(self._rounds.progress, contribution.group)
        return _RoundOfOurs(begun, partial(self._groups.leave, [contribution]), progress)

    async def _round(self, rounds: Rounds, contribution: Contribution, patience: float, older: Older | None) -> Outcome:
        outcome = await rounds.run(contribution, patience)
        if not isinstance(outcome, Agreed):
            return outcome
        group = contribution.group
        self._groups.agreed(contribution, outcome)
        known = [peer for peer, tokens in outcome.tokens.items() if tokens]
        self._vouching.contributed(group.stage, group.module, contribution.digest, known)
        if older is None:
            return outcome
        agreed = await to_its_end(self._store.step(older, outcome))  # it is decided: others go on with what we gave
        assert agreed.state is not None
        self._vouching.took(group.stage, group.module, Claim.of(agreed.state), made_from=contribution.digest)
        return agreed

    def all_reduce(self, contributions: Sequence[Contribution], *, patience: float) -> dict[ModuleId, Outcome]:
        begun = {part.group.module: self.begin_round(part, patience=patience) for part in contributions}
        over = {module: under_way.outcome(timeout=None) for module, under_way in begun.items()}
        return {module: outcome for module, outcome in over.items() if outcome is not None}

    def residuals(self, stage: int, path: PathIndex) -> dict[ModuleId, Residual]:
        return {} if self._rounds is None else self._rounds.feedback.residuals(stage, path)

    def resume_residuals(self, stage: int, path: PathIndex, residuals: Mapping[ModuleId, Residual]) -> None:
        assert self._rounds is not None, "configure_rounds() comes before the residuals of an earlier life"
        self._rounds.feedback.resume(stage, path, residuals)

    # states ------------------------------------------------------------------------------------------------------

    def hold(self, stage: int, module: ModuleId, state: ModuleState) -> None:
        state.digest  # noqa: B018  # computed here, in the caller's thread, not in the loop
        self._portal.soon(self._store.hold, stage, module, state)
        self._portal.soon(self._vouching.took, stage, module, Claim.of(state))

    def release(self, stage: int, module: ModuleId) -> None:
        self._portal.soon(self._store.release, stage, module)
        self._portal.soon(self._vouching.had.forget, stage, module)

    def hold_average(self, stage: int, module: ModuleId, average: EncodedAverage, to: str) -> None:
        blob = pack(average, to)  # here, in the caller's thread, not in the loop
        self._portal.soon(self._store.hold_average, stage, module, blob, average.parameters)
        self._portal.soon(self._vouching.had.note_step, stage, module, average.base, to)

    def begin_fetch(
        self,
        stage: int,
        module: ModuleId,
        digest: str,
        *,
        timeout: float,
        parameters: int | None = None,
        older: Older | None = None,
    ) -> FetchUnderWay:
        holders = self._fetches.holders(stage, module, digest)
        coming = self._fetches.state(holders, stage, module, digest, timeout, parameters, older)
        return _FetchOfOurs(self._calls.begin(coming))

    def fetch_state(
        self,
        stage: int,
        module: ModuleId,
        digest: str,
        *,
        timeout: float,
        parameters: int | None = None,
        older: Older | None = None,
    ) -> ModuleState | None:
        under_way = self.begin_fetch(stage, module, digest, timeout=timeout, parameters=parameters, older=older)
        return under_way.state()

    # blobs and the manifest --------------------------------------------------------------------------------------

    def put_blob(self, data: bytes) -> str:
        return self._store.blobs.put(data)

    def drop_blob(self, digest: str) -> None:
        self._store.blobs.drop(digest)

    def fetch_blob(self, digest: str, *, timeout: float, limit: int | None = None, of: str | None = None) -> bytes:
        peers = self._fetches.senders(self._known_peers(), of)
        # a stranger may be slow on purpose: his blob has the timeout for all of it
        patience, deadline = (timeout, None) if limit is None else (None, timeout)
        data = self._calls.run(self._store.fetch_blob(peers, digest, limit, patience, keep=of is None), deadline)
        if data is None:
            raise UnreachableError(
                f"none of {len(peers)} peers sends the run's file {digest[:12]} just now; try again when the "
                "bootstrap node is up"
            )
        return data

    def publish_manifest(self, signed: bytes) -> None:
        self._vouching.is_root = True
        self._calls.run(self._manifests.tell(self._manifests.take(signed)), self._transport.timing.stall)

    def newest_manifest(self, *, timeout: float) -> bytes | None:
        return self._calls.run(self._manifests.newest(), timeout)

    def follow_manifest(self) -> None:
        self._portal.soon(self._manifests.follow)

    def known_manifest(self) -> bytes | None:
        return self._manifests.known()

    # ourselves ---------------------------------------------------------------------------------------------------

    @property
    def lost(self) -> bool:
        return self._transport.lost

    def traffic(self) -> Traffic:
        return self._transport.meter.traffic()

    def interrupt(self) -> None:
        """Let every call that waits, now or later, return at once with nothing; for Ctrl+C."""
        for part in (self._calls, self.sharing, self.asking):
            part.interrupt()

    async def stop(self) -> None:
        await self._telling.end()
        for part in (self._manifests, self.sharing, self.asking, self.court, self._vouching):
            await part.stop()
        if self._rounds is not None:
            await self._rounds.stop()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FAREWELL_SECONDS):
                await self._directory.farewell()

    def known_peers(self) -> list[PeerName]:
        """Everybody else that is to be heard now."""
        return self._directory.peers()

    def _known_peers(self) -> list[str]:
        return list(dict.fromkeys((*self._directory.peers(), *self._met_before)))


@contextlib.asynccontextmanager
async def networked_swarm(
    portal: Portal,
    transport: Transport,
    address: RunAddress,
    blobs: Blobs,
    met_before: Sequence[str] = (),
    *,
    patience: float = 1.0,
    circle: Circle | None = None,
    bans: Bans | None = None,
) -> AsyncIterator[NetworkedSwarm]:
    """A swarm that listens and serves until the block ends; then it says goodbye. To be entered in the loop.

    `met_before`: names of peers that may be there, from a life before this one. `patience`: so many times as long as
    the program says members of a group are waited for. `circle` and `bans`: whom we know, and whom we have banned, from
    lives before this one.
    """
    bans = bans or Bans()
    bans.open(partial(is_proven, run=address.fingerprint, is_signed_by=transport.is_signed_by))
    door = Door(portal, transport, address, bans)
    directory = Directory(transport, address.fingerprint, door.allows)
    store = Store(transport, address.fingerprint, blobs)
    await store.serve()
    vouching = Vouching(portal, transport, address, directory, circle or Circle())
    directory.knows, directory.always = vouching.knows, vouching.roots
    bans.met = vouching.circle.__contains__
    bans.is_heard = lambda name: name in vouching.circle or name in directory.peers()
    protocol = store_protocol(address.fingerprint)
    witnesses = Witnesses(transport, protocol, directory, vouching.roots, vouching.circle.last)
    store.on_asked_members, directory.on_read = witnesses.answer, witnesses.look
    store.on_told = witnesses.told
    transport.border.is_strange = lambda peer: not (vouching.knows(peer) or peer in vouching.roots)
    swarm = NetworkedSwarm(portal, transport, address, directory, store, vouching, door, met_before, patience)
    background = Tasks()
    background.start(directory.run())
    try:
        yield swarm
    finally:
        await swarm.stop()
        await background.end()
        await witnesses.stop()  # the last one: whatever reads the directory asks them
