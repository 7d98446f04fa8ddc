"""What this peer has to give: the newest states of its modules, blobs by digest, and the manifest. And asking others.

Everything that arrives is checked against the digest it was asked by, so any peer will do as a source, and a lying one
costs a retry. Blobs live as files; states live on a shelf (`shelf.py`), the newest two of each module, and one more
while somebody reads it: a slow reader gets to its end although the group goes on.

A state comes from several holders at once (`download.py`), a blob from one after the other (`blob_download.py`). Either
is kept as far as it came, and goes on there when it is asked for again.
"""

import asyncio
import contextlib
import hashlib
import logging
import os
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial

from dipaco_swarm.algorithm.forgetting import keep_last
from dipaco_swarm.algorithm.paths import ModuleId
from dipaco_swarm.algorithm.state import ModuleState
from dipaco_swarm.errors import HomeError, RemoteDataError
from dipaco_swarm.swarm.fetching import Older
from dipaco_swarm.swarm.greetings import AdmissionIs, AskMembers, MembersAre, ShowInvitation
from dipaco_swarm.swarm.interface import Agreed, Announcement
from dipaco_swarm.swarm.parts import AskPart
from dipaco_swarm.swarm.states.averages import AverageBlob, KeptAverages, shelved
from dipaco_swarm.swarm.states.blob_download import CHUNK, BlobFetches
from dipaco_swarm.swarm.states.blobs import Blobs
from dipaco_swarm.swarm.states.download import Download
from dipaco_swarm.swarm.states.shelf import Shelf
from dipaco_swarm.swarm.states.slow import SlowPeers
from dipaco_swarm.swarm.states.successors import Successors, led_on
from dipaco_swarm.swarm.traffic import Purpose
from dipaco_swarm.swarm.transport import Stream, Transport
from dipaco_swarm.swarm.wire import (
    AskAverages,
    AskBlob,
    AskHad,
    AskManifest,
    AskPiece,
    AskState,
    AveragesAre,
    BlobFollows,
    HadAre,
    Holding,
    ManifestIs,
    NotHere,
    PackedAverage,
    StateIs,
)

log = logging.getLogger(__name__)

MAX_BLOB_BYTES = 1 << 32
KEPT_VERSIONS = 2  # a peer that asks for what was newest a moment ago still gets it
MAX_UNFINISHED = 2
"""States that could not be fetched whole; what has arrived of the last ones is kept for the next time."""


def store_protocol(run: str) -> str:
    """Of the streams on which this run's states, blobs and manifest are asked for. `run`: its fingerprint."""
    return f"dipaco/1/{run}/store"


class Store:
    """Serves states, blobs and the manifest of one run on one node, and fetches them from others."""

    def __init__(self, transport: Transport, run: str, blobs: Blobs) -> None:
        self._transport = transport
        self._timing = transport.timing
        self._compute = transport.executor()
        self._protocol = store_protocol(run)
        self.blobs = blobs
        self.manifest: bytes | None = None
        self.on_told: Callable[[str, Holding], None] = lambda peer, held: None
        """Called when a peer says what it has."""
        self.on_asked_had: Callable[[AskHad], HadAre] = lambda asked: HadAre(had=(False,) * len(asked.states))
        """Called when a peer asks which states we have had."""
        self.on_invitation: Callable[[str, ShowInvitation], AdmissionIs] = lambda peer, shown: AdmissionIs(noted=False)
        """Called when a peer shows an invitation."""
        self.on_asked_members: Callable[[AskMembers], MembersAre] = lambda asked: MembersAre(members=())
        """Called when a peer asks who trains a module."""
        self.on_asked_part: Callable[[Stream, AskPart], Awaitable[None]] = _has_no_parts
        """Answers who asks for our part in common work."""
        self.shelf = Shelf(blobs.shelf)
        self._averages = KeptAverages()
        self._successors = Successors(
            transport, self._compute, self._protocol, self._averages, self._fetch_average, self.shelf
        )
        self._states: dict[tuple[int, ModuleId], list[ModuleState]] = {}
        self._readers: Counter[str] = Counter()
        """Digest of a state -> streams on which it is read."""
        self._unfinished: dict[tuple[int, ModuleId], Download] = {}
        self._slow = SlowPeers()
        self._coming = BlobFetches(transport, self._compute, self._protocol, self._slow)

    async def serve(self) -> None:
        await self._transport.serve(self._protocol, self._on_stream)

    def hold(self, stage: int, module: ModuleId, state: ModuleState) -> None:
        held = self._states.setdefault((stage, module), [])
        if not any(other.digest == state.digest for other in held):
            held.append(state)
            held[:-KEPT_VERSIONS] = [old for old in held[:-KEPT_VERSIONS] if self._readers[old.digest]][:1]

    def hold_average(self, stage: int, module: ModuleId, blob: AverageBlob, parameters: int) -> None:
        self._averages.hold(stage, module, blob, parameters)

    async def step(self, older: Older, agreed: Agreed) -> Agreed:
        """What a round has agreed on, with the next version. Its numbers and the average are on the shelf then."""

        def step() -> Agreed:
            average = shelved(agreed.encoded, self.shelf)
            state = led_on(older.follow, older.state, [average], self.shelf)
            return replace(agreed, encoded=average, state=state)

        return await self._compute.aside(step)

    def release(self, stage: int, module: ModuleId) -> None:
        self._states.pop((stage, module), None)
        self._averages.release(stage, module)

    async def _on_stream(self, stream: Stream) -> None:
        async with asyncio.timeout(self._timing.dial):
            message = await stream.receive()
        match message:
            case AskState():
                await self._send_state(stream, message)
            case AskAverages():
                chain = self._averages.chain(message.stage, ModuleId.parse(message.module), message.bases, message.to)
                await stream.send(AveragesAre(averages=chain) if chain else NotHere())
            case AskBlob() if self._averages.get(message.digest) is not None:
                await self._send_average(stream, message)
            case AskBlob():
                await self._send_blob(stream, message)
            case AskManifest(have=have):
                same = have is not None and have == self._digest_of_manifest()
                await stream.send(ManifestIs(signed=None if same else self.manifest, same=same))
            case ShowInvitation():
                await stream.send(self.on_invitation(stream.peer, message))
            case AskMembers():
                await stream.send(self.on_asked_members(message))
            case AskPart():
                await self.on_asked_part(stream, message)
            case AskHad():
                await stream.send(self.on_asked_had(message))
            case Holding():
                self.on_told(stream.peer, message)
            case _:
                await stream.send(NotHere())
                raise RemoteDataError(stream.peer, f"asks the store for {type(message).__name__}")

    def _held(self, ask: AskState) -> ModuleState | None:
        held = self._states.get((ask.stage, ModuleId.parse(ask.module)), [])
        return next((state for state in held if state.digest == ask.digest), None)

    async def _send_state(self, stream: Stream, ask: AskState) -> None:
        state = self._held(ask)
        if state is None:
            await stream.send(NotHere())
            return
        outline = state.outline
        self._readers[ask.digest] += 1
        try:
            await stream.send(
                StateIs(
                    version=outline.version, parameters=outline.parameters, work=outline.work, hashes=outline.hashes
                )
            )
            # looked up each time: who reads cannot make us keep what we have let go
            while (piece := await self._asked_piece(stream)) is not None and (state := self._held(ask)) is not None:
                if piece >= outline.num_pieces:
                    raise RemoteDataError(stream.peer, f"asks for piece {piece} of {outline.num_pieces}")
                await stream.send_raw(state.piece(piece))
        finally:
            self._readers[ask.digest] -= 1
            if not self._readers[ask.digest]:
                del self._readers[ask.digest]

    async def _asked_piece(self, stream: Stream) -> int | None:
        """Which piece a reader wants next; None when it has what it wanted."""
        try:
            async with asyncio.timeout(self._timing.reader_idle):
                message = await stream.receive()
        except EOFError:
            return None
        if not isinstance(message, AskPiece):
            raise RemoteDataError(stream.peer, f"sends {type(message).__name__} where it may ask for a piece")
        return message.piece

    async def _send_blob(self, stream: Stream, ask: AskBlob) -> None:
        if not self.blobs.has(ask.digest):
            await stream.send(NotHere())
            return
        with self.blobs.open(ask.digest) as file:
            size = file.seek(0, os.SEEK_END)
            await stream.send(BlobFollows(size=size))
            file.seek(min(ask.offset, size))
            while chunk := file.read(CHUNK):
                await stream.send_raw(memoryview(chunk))

    async def _send_average(self, stream: Stream, ask: AskBlob) -> None:
        stream.purpose = Purpose.VERSIONS
        at = ask.offset
        # looked up each time: who reads cannot make us keep what we have let go
        while (data := self._averages.get(ask.digest)) is not None:
            if at == ask.offset:
                await stream.send(BlobFollows(size=len(data)))
            if at >= len(data):
                return
            await stream.send_raw(memoryview(data)[at : at + CHUNK])
            at += CHUNK

    # ------------------------------------------------------------------------------------------------ asking others

    async def fetch_state(
        self, peers: Sequence[str], stage: int, module: ModuleId, digest: str, parameters: int | None = None
    ) -> ModuleState | None:
        """The state with this digest from those of `peers` that have it, the first ones first; None when none has.

        Cancelled or in vain, it leaves what has arrived, and goes on there when it is called for the same state again.
        """
        download = self._unfinished.pop((stage, module), None)
        if download is None or download.digest != digest:
            download = Download(
                self._transport, self._protocol, stage, module, digest, parameters, self.shelf, self._slow
            )
        try:
            return await download.run(peers)
        finally:
            if download.is_begun and not download.is_complete:
                self._unfinished[stage, module] = download
                keep_last(self._unfinished, MAX_UNFINISHED)

    async def make_state(
        self, peers: Sequence[str], stage: int, module: ModuleId, digest: str, older: Older, patience: float
    ) -> ModuleState | None:
        """The same, made from an older one and averages that `peers` have; None when none has in `patience` seconds.

        Who has gone astray alone has the state from before that, too.
        """
        held = {state.digest: state for state in (*self._states.get((stage, module), []), older.state)}
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(patience):
                return await self._successors.make(peers, stage, module, digest, held, older.follow)
        return None

    async def fetch_blob(
        self,
        peers: Sequence[str],
        digest: str,
        limit: int | None = None,
        patience: float | None = None,
        *,
        keep: bool = True,
    ) -> bytes | None:
        """A blob from our own store, else from the first of `peers` that sends it; None when none does.

        `patience`: seconds in which something of it has to arrive, each time. One of more than `limit` bytes counts as
        missing. Cancelled or in vain, it leaves what has arrived, and goes on there when it is called for it again.
        `keep`: as a file; not before it has been looked at, where a stranger names it: there is no end of such blobs.
        """
        data = await self._compute.aside(self.blobs.get, digest)
        if data is not None:
            return data
        data = await self._coming.fetch(peers, digest, limit or MAX_BLOB_BYTES, patience)
        if data is not None and keep:
            await self.keep(data)
        return data

    async def keep(self, data: bytes) -> None:
        """Serve a blob that was fetched."""
        try:
            await self._compute.aside(partial(self.blobs.put, data, durable=False))
        except HomeError as error:  # we have it; only others cannot have it from us
            log.warning("%s", error)

    async def _fetch_average(self, peers: Sequence[str], packed: PackedAverage) -> bytes | None:
        return await self._coming.fetch(peers, packed.digest, packed.size, self._timing.stall, Purpose.VERSIONS)

    async def tell(self, peer: str, said: Announcement) -> None:
        """Tell a peer what we have; nothing comes of it when it cannot be reached."""
        holding = Holding(
            stage=said.stage, module=str(said.module), version=said.version, digest=said.digest, work=said.work
        )
        try:
            async with self._transport.dial(peer, self._protocol) as stream:
                await stream.send(holding)
        except (ConnectionError, EOFError, TimeoutError) as error:
            log.debug("peer %s is not told what we have: %s", peer[-8:], error)

    def _digest_of_manifest(self) -> bytes | None:
        return None if self.manifest is None else hashlib.sha256(self.manifest).digest()

    async def ask_manifest(self, peer: str) -> bytes | None:
        """The manifest that a peer has; None when it has none."""
        async with self._transport.dial(peer, self._protocol) as stream:
            await stream.send(AskManifest(have=self._digest_of_manifest()))
            async with asyncio.timeout(self._timing.dial):
                answer = await stream.receive()
        if not isinstance(answer, ManifestIs):
            return None
        return self.manifest if answer.same else answer.signed


async def _has_no_parts(stream: Stream, asked: AskPart) -> None:
    await stream.send(NotHere())
