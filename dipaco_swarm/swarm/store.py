"""What this peer has to give: the newest states of its modules, blobs by digest, and the manifest. And asking others.

Everything that arrives is checked against the digest it was asked by, so any peer will do as a source, and a lying one
costs a retry. Blobs live as files; states live in memory, the newest two of each module.
"""

import asyncio
import hashlib
import logging
import os
from collections.abc import Sequence

import torch

from dipaco_swarm.algorithm.paths import ModuleId
from dipaco_swarm.algorithm.state import ModuleState, vector_bytes
from dipaco_swarm.errors import HomeError, RemoteDataError
from dipaco_swarm.swarm.blobs import BlobStore
from dipaco_swarm.swarm.node import Node
from dipaco_swarm.swarm.wire import (
    AskBlob,
    AskManifest,
    AskState,
    BlobFollows,
    ManifestIs,
    NotHere,
    StateFollows,
    Stream,
)

log = logging.getLogger(__name__)

MAX_STATE_PARAMETERS = 1 << 32
MAX_BLOB_BYTES = 1 << 32
ANSWER_SECONDS = 10.0
"""A peer that has not begun to answer by then is passed over."""
BLOB_CHUNK = 1 << 20
KEPT_VERSIONS = 2  # a peer that asks for what was newest a moment ago still gets it


class Store:
    """Serves states, blobs and the manifest of one run on one node, and fetches them from others."""

    def __init__(self, node: Node, run: str, blobs: BlobStore) -> None:
        self._node = node
        self._protocol = f"dipaco/1/{run}/store"
        self.blobs = blobs
        self.manifest: bytes | None = None
        self._states: dict[tuple[int, ModuleId], list[ModuleState]] = {}

    async def serve(self) -> None:
        await self._node.serve(self._protocol, self._on_stream)

    def hold(self, stage: int, module: ModuleId, state: ModuleState) -> None:
        held = self._states.setdefault((stage, module), [])
        if not any(other.digest == state.digest for other in held):
            held.append(state)
            del held[:-KEPT_VERSIONS]

    def release(self, stage: int, module: ModuleId) -> None:
        self._states.pop((stage, module), None)

    async def _on_stream(self, stream: Stream) -> None:
        async with asyncio.timeout(ANSWER_SECONDS):
            message = await stream.receive()
        match message:
            case AskState():
                await self._send_state(stream, message)
            case AskBlob():
                await self._send_blob(stream, message)
            case AskManifest():
                await stream.send(ManifestIs(signed=self.manifest))
            case _:
                await stream.send(NotHere())
                raise RemoteDataError(stream.peer, f"asks the store for {type(message).__name__}")

    async def _send_state(self, stream: Stream, ask: AskState) -> None:
        held = self._states.get((ask.stage, ModuleId.parse(ask.module)), [])
        state = next((state for state in held if state.digest == ask.digest), None)
        if state is None:
            await stream.send(NotHere())
            return
        await stream.send(StateFollows(version=state.version, parameters=len(state.params)))
        await stream.send_raw(vector_bytes(state.params))
        await stream.send_raw(vector_bytes(state.momentum))

    async def _send_blob(self, stream: Stream, ask: AskBlob) -> None:
        if not self.blobs.has(ask.digest):
            await stream.send(NotHere())
            return
        with self.blobs.path_of(ask.digest).open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            await stream.send(BlobFollows(size=size))
            file.seek(min(ask.offset, size))
            while chunk := file.read(BLOB_CHUNK):
                await stream.send_raw(memoryview(chunk))

    # ------------------------------------------------------------------------------------------------ asking others

    async def fetch_state(self, peers: Sequence[str], stage: int, module: ModuleId, digest: str) -> ModuleState | None:
        """The state with this digest from the first of `peers` that has it; None when none has."""
        for peer in peers:
            try:
                state = await self._fetch_state_from(peer, stage, module, digest)
            except (ConnectionError, EOFError, TimeoutError, RemoteDataError) as error:
                log.info("could not fetch %s from peer %s: %s", module, peer[-8:], error)
                continue
            if state is not None:
                return state
        return None

    async def _fetch_state_from(self, peer: str, stage: int, module: ModuleId, digest: str) -> ModuleState | None:
        async with self._node.dial(peer, self._protocol) as stream:
            await stream.send(AskState(stage=stage, module=str(module), digest=digest))
            async with asyncio.timeout(ANSWER_SECONDS):
                answer = await stream.receive()
            if not isinstance(answer, StateFollows):
                return None
            if not 0 < answer.parameters <= MAX_STATE_PARAMETERS:
                raise RemoteDataError(peer, f"offers a state of {answer.parameters} parameters")
            # memory is taken as bytes arrive, not when they are announced
            params, momentum = torch.empty(answer.parameters), torch.empty(answer.parameters)
            await stream.receive_into(vector_bytes(params))
            await stream.receive_into(vector_bytes(momentum))
        state = ModuleState(answer.version, params, momentum)
        if await asyncio.to_thread(lambda: state.digest) != digest:
            raise RemoteDataError(peer, f"sends a state of {module} that does not have the digest it was asked by")
        return state

    async def fetch_blob(self, peers: Sequence[str], digest: str, limit: int | None = None) -> bytes | None:
        """A blob from our own store, else from the first of `peers` that has it; interrupted downloads go on.

        One of more than `limit` bytes counts as missing.
        """
        data = await asyncio.to_thread(self.blobs.get, digest)
        if data is not None:
            return data
        received = bytearray()
        for peer in peers:
            try:
                if await self._fetch_blob_from(peer, digest, received, limit or MAX_BLOB_BYTES):
                    try:
                        await asyncio.to_thread(self.blobs.put, bytes(received))
                    except HomeError as error:  # we have it; only others cannot have it from us
                        log.warning("%s", error)
                    return bytes(received)
            except (ConnectionError, EOFError, TimeoutError, RemoteDataError) as error:
                log.info("could not fetch blob %s from peer %s: %s", digest[:8], peer[-8:], error)
        return None

    async def _fetch_blob_from(self, peer: str, digest: str, received: bytearray, limit: int) -> bool:
        """Append what is missing to `received`; False when the peer does not have the blob."""
        async with self._node.dial(peer, self._protocol) as stream:
            await stream.send(AskBlob(digest=digest, offset=len(received)))
            async with asyncio.timeout(ANSWER_SECONDS):
                answer = await stream.receive()
            if not isinstance(answer, BlobFollows):
                return False
            if not len(received) <= answer.size <= limit:
                raise RemoteDataError(peer, f"offers a blob of {answer.size} bytes where {limit} are the most")
            while len(received) < answer.size:
                chunk = bytearray(min(BLOB_CHUNK, answer.size - len(received)))
                await stream.receive_into(memoryview(chunk))
                received += chunk
        if hashlib.sha256(received).hexdigest() != digest:
            received.clear()
            raise RemoteDataError(peer, f"sends a blob that does not have the digest {digest[:8]} it was asked by")
        return True

    async def ask_manifest(self, peer: str) -> bytes | None:
        async with self._node.dial(peer, self._protocol) as stream:
            await stream.send(AskManifest())
            async with asyncio.timeout(ANSWER_SECONDS):
                answer = await stream.receive()
            return answer.signed if isinstance(answer, ManifestIs) else None
