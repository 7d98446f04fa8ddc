"""How this machine looks from a run's bootstrap nodes, for `doctor`: a short visit that joins nothing."""

import asyncio
import logging
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from dipaco_swarm.algorithm.paths import ModuleId
from dipaco_swarm.errors import ManifestError, RemoteDataError, UnreachableError
from dipaco_swarm.run.address import RunAddress
from dipaco_swarm.run.signature import open_manifest
from dipaco_swarm.swarm.addresses import name_in
from dipaco_swarm.swarm.fields import Message
from dipaco_swarm.swarm.greetings import MAX_BALLAST
from dipaco_swarm.swarm.libp2p.connections import UNREACHED
from dipaco_swarm.swarm.libp2p.identity import load_identity
from dipaco_swarm.swarm.libp2p.node import Node
from dipaco_swarm.swarm.libp2p.reachability import our_version, ports_of
from dipaco_swarm.swarm.libp2p.settings import NodeSettings
from dipaco_swarm.swarm.libp2p.starting import open_door
from dipaco_swarm.swarm.round.codecs.codec import codec_of
from dipaco_swarm.swarm.states.store import store_protocol
from dipaco_swarm.swarm.wire import AskBlob, AskManifest, BlobFollows, ManifestIs

log = logging.getLogger(__name__)

VISIT_SECONDS = 40.0
PATH_SECONDS = 8.0
DOWN_BYTES, DOWN_STEP, DOWN_SECONDS = 8 << 20, 1 << 16, 3.0
"""So much is asked of a node at most, to see how fast it comes, and for so long."""
LOADS = (1, 2, 4, 8)
"""So often the ballast of a question is sent at once, more and more of it..."""
LOADED_SECONDS = 0.5
"""... until it takes so long, that a line's speed can be told from it."""


@dataclass(frozen=True)
class RunPath:
    """What a peer of the run trains, and shares in a round."""

    parameters: int
    """Of a path: of one module of each level."""
    round_bytes: int
    """What a member of a large group sends in a round, at most: its encoded outer gradient, and averages of its own."""
    invited_only: bool = False
    """Whether it takes invited peers only."""


@dataclass(frozen=True)
class Outside:
    """What the bootstrap node that answered first says about us."""

    seen_at: str
    """The IP address that we come from."""
    port: int | None
    """Where all that tried can dial us there; None: some cannot."""
    tried: bool
    """False: it did not try."""
    relayed: bool
    """Whether others can come through it; not tried where they can dial us."""
    clock_ahead: float
    """Seconds that our clock is ahead of its."""
    version: str
    our_version: str
    bytes_up: float | None
    """Bytes a second that our line sends to it, at least; None: it took too long."""
    path: RunPath | None
    """None: it does not say."""
    bytes_down: float | None = None
    """Bytes a second that our line takes in from it, at least; None: nobody can say."""


def look_from_outside(address: RunAddress, listen: str) -> Outside | None:
    """Listen as a peer would, and ask the bootstrap nodes; None when none of them can say.

    Raises NodeError when this machine cannot listen there, UnreachableError when nobody answers.
    """

    async def in_time() -> Outside | None:
        try:
            async with asyncio.timeout(VISIT_SECONDS):
                return await _look(address, listen)
        except TimeoutError:
            raise UnreachableError(
                f"no bootstrap node spoke to us within {VISIT_SECONDS:.0f} s; something else may listen at its address"
            ) from None

    return asyncio.run(in_time())


async def _look(address: RunAddress, listen: str) -> Outside | None:
    settings = NodeSettings(listen=listen, reachable=None)
    with tempfile.TemporaryDirectory(prefix="dipaco-") as home:
        identity = load_identity(Path(home))
        async with open_door(identity, address.bootstraps, settings) as node:
            ports = ports_of(await node.addresses())
            for place in address.bootstraps:
                asked = time.time()
                first = await node.ask(place)
                answered = time.time()
                if first is not None:
                    break
            else:
                return None
            bytes_up = await _bytes_up(node, place)
            path, largest = await _path(node, name_in(place), address.fingerprint) or (None, None)
            bytes_down = None
            if largest is not None:
                bytes_down = await _bytes_down(node, name_in(place), address.fingerprint, largest)
            # knocking takes as long as it takes, so the clock is asked before
            knocks = [said for said in await asyncio.gather(*(node.ask(p, ports) for p in address.bootstraps)) if said]
            told = [said.reached for said in knocks if said.reached is not None]
            open_ports = [port for port in ports if told and all(port in reached for reached in told)]
            relayed = not open_ports and await node.reserve(address.bootstraps)
        return Outside(
            seen_at=first.seen_at.rpartition("/")[2],
            port=open_ports[0] if open_ports else None,
            tried=bool(told),
            relayed=relayed,
            clock_ahead=(asked + answered) / 2 - first.time,
            version=first.version,
            our_version=our_version(),
            bytes_up=bytes_up,
            path=path,
            bytes_down=bytes_down,
        )


async def _bytes_up(node: Node, place: str) -> float | None:
    """How fast we send to a bootstrap node, from how much longer a question takes that weighs more."""
    now = asyncio.get_running_loop().time
    began = now()
    if await node.ask(place) is None:
        return None
    question = now() - began
    for load in LOADS:
        began = now()
        if None in await asyncio.gather(*(node.ask(place, ballast=bytes(MAX_BALLAST)) for _ in range(load))):
            return None
        if (took := now() - began - question) > LOADED_SECONDS:
            break
    return load * MAX_BALLAST / max(took, 0.01)


async def _bytes_down(node: Node, peer: str, run: str, digest: str) -> float | None:
    """How fast some of this blob comes; what it is, nobody looks at."""
    now = asyncio.get_running_loop().time
    room, came, began = memoryview(bytearray(DOWN_STEP)), 0, now()
    try:
        async with asyncio.timeout(PATH_SECONDS), node.dial(peer, store_protocol(run)) as stream:
            await stream.send(AskBlob(digest=digest))
            said = await stream.receive()
            if not isinstance(said, BlobFollows):
                return None
            began = now()
            while came < min(said.size, DOWN_BYTES) and now() - began < DOWN_SECONDS:
                step = room[: min(DOWN_STEP, said.size - came)]
                await stream.receive_into(step)
                came += len(step)
    except (*UNREACHED, RemoteDataError) as error:
        log.debug("%s sends no more: %s", peer[-8:], error)
    return came / max(now() - began, 0.001) if came else None


async def _path(node: Node, peer: str, run: str) -> tuple[RunPath, str] | None:
    """What is trained in a run, and its largest file. A module's seed has four bytes for each of its parameters."""

    async def ask(question: Message) -> Message:
        async with node.dial(peer, store_protocol(run)) as stream:
            await stream.send(question)
            return await stream.receive()

    try:
        async with asyncio.timeout(PATH_SECONDS):
            said = await ask(AskManifest(have=None))
            if not isinstance(said, ManifestIs) or said.signed is None:
                return None
            manifest = open_manifest(said.signed, run)
            stage = manifest.stage
            modules = [str(ModuleId(level, index)) for level, index in enumerate(stage.table[0])]
            seeds = [await ask(AskBlob(digest=stage.seeds[module])) for module in modules]
    except (*UNREACHED, RemoteDataError, ManifestError) as error:
        log.debug("%s does not say what is trained: %s", peer[-8:], error)
        return None
    sizes = [seed.size // 4 for seed in seeds if isinstance(seed, BlobFollows)]
    if len(sizes) < len(modules):
        return None
    codec = codec_of(manifest.rules.wire.codec)
    largest = stage.seeds[modules[sizes.index(max(sizes))]]
    invited_only = manifest.config.admission.kind == "invited"
    return RunPath(sum(sizes), 2 * sum(map(codec.most_bytes, sizes)), invited_only), largest
