"""The newest manifest: published, asked for, followed. The highest revision that the operator has signed wins."""

import asyncio
import hashlib
import logging
from collections.abc import Callable, Mapping, Sequence

from dipaco_swarm.algorithm.forgetting import put_last
from dipaco_swarm.algorithm.paths import ModuleId
from dipaco_swarm.errors import ManifestError, RemoteDataError, UnreachableError
from dipaco_swarm.run.address import RunAddress
from dipaco_swarm.run.signature import open_manifest
from dipaco_swarm.swarm import records
from dipaco_swarm.swarm.addresses import name_in
from dipaco_swarm.swarm.states.store import Store
from dipaco_swarm.swarm.tasks import Tasks
from dipaco_swarm.swarm.transport import NotOfThisRun, Transport
from dipaco_swarm.swarm.wire import MAX_MANIFEST_BYTES

log = logging.getLogger(__name__)

LOOK_SECONDS = 20.0
FIRST_PAUSE_SECONDS = 0.1
"""Between two looks while we have none at all."""
FIRST_PEERS = 4
"""So many peers besides the bootstrap nodes are asked for the first manifest."""
MOST_NAMED = 4
"""So many that the directory names are fetched at once."""
MAX_SEEN = 1024
NONE = -1


class Manifests:
    """The manifest of one run, as far as this peer knows it. `Store.manifest` is where it is kept and served."""

    def __init__(
        self, transport: Transport, address: RunAddress, store: Store, known_peers: Callable[[], Sequence[str]]
    ) -> None:
        """`known_peers`: whom we know now, or have met before."""
        self._transport = transport
        self._address = address
        self._store = store
        self._known_peers = known_peers
        self._following = Tasks()
        self._hears_node = False
        """Whether a bootstrap node had a manifest for us at the last look."""
        self._refused: ManifestError | None = None
        """Why the last look found none that counts."""
        self._seen: dict[str, int] = {}
        """What was called a manifest in the directory: its revision by its digest, NONE where it is none. The oldest
        first."""
        self._generations: tuple[bytes | None, dict[tuple[int, str], int]] = None, {}
        """A manifest, and how often the operator has gone back with modules by it."""

    async def stop(self) -> None:
        await self._following.end()

    def take(self, signed: bytes) -> records.ManifestRecord:
        """Keep and serve the operator's own manifest; the record says so to others (`tell`).

        Writes a file, so it is not for the loop. Raises ManifestError when the operator has not signed it.
        """
        manifest = open_manifest(signed, self._address.fingerprint)
        self._store.manifest = signed
        return records.ManifestRecord(revision=manifest.revision, digest=self._store.blobs.put(signed))

    async def tell(self, record: records.ManifestRecord) -> None:
        """Say in the directory that there is a manifest."""
        key = records.manifest_key(self._address.fingerprint)
        await self._transport.records.store(key, records.encode(record), records.MAX_LIFETIME_SECONDS)

    def known(self) -> bytes | None:
        """The newest one so far. Raises ManifestError when there is none, and the last look found one that is wrong."""
        if self._store.manifest is None and self._refused is not None:
            raise self._refused
        return self._store.manifest

    def generation(self, stage: int, module: ModuleId) -> int:
        """How often the operator has gone back with a module of a stage, by the newest manifest. From any thread."""
        signed, found = self._generations
        if signed is not self._store.manifest:
            signed = self._store.manifest
            stages = () if signed is None else open_manifest(signed, self._address.fingerprint).stages
            found = {(at.index, name): generation for at in stages for name, generation in at.generations.items()}
            self._generations = signed, found
        return found.get((stage, str(module)), 0)

    def follow(self) -> None:
        """Look for newer ones from now on; to be called in the loop."""
        if not self._following:
            self._following.start(self._look_now_and_then())

    async def _look_now_and_then(self) -> None:
        """Look for newer manifests now and then, until cancelled; the less often, the longer there was none."""
        clock = self._transport.clock
        known, since = self._store.manifest, clock.boottime()
        while True:
            with self._transport.border.guard(self._transport.peer, "looks again later"):  # whatever comes of it
                await self._look()
            if self._store.manifest is None:
                await asyncio.sleep(FIRST_PAUSE_SECONDS)
                continue
            if self._store.manifest != known:
                known, since = self._store.manifest, clock.boottime()
            await asyncio.sleep(self._transport.timing.manifest_pause(clock.boottime() - since))

    async def _look(self) -> None:
        try:
            async with asyncio.timeout(LOOK_SECONDS):
                await self.newest()
            self._refused = None
        except ManifestError as error:
            self._refused = error
        except (UnreachableError, OSError, EOFError) as error:
            log.debug("no newer manifest: %s", error)  # a TimeoutError is an OSError

    async def newest(self) -> bytes | None:
        """Ask the bootstrap nodes and some peers directly, else the directory; None when nobody has one.

        Who has a manifest asks one other peer, any, while no bootstrap node answers: so a newer one is everywhere after
        some looks, whoever is gone.
        Raises UnreachableError when everybody who answers takes part in other runs only, ManifestError when the one
        manifest that was found is not signed by the run's operator.
        """
        bootstraps = [name_in(place) for place in self._address.bootstraps]
        others = self._known_peers()
        first = self._store.manifest is None
        if first:
            some = others[:FIRST_PEERS]
        elif self._hears_node:
            some = []
        else:
            some = self._transport.random.sample(others, k=min(1, len(others)))
        peers = [peer for peer in dict.fromkeys((*bootstraps, *some)) if peer != self._transport.peer]
        found = await asyncio.gather(*(self._ask(peer) for peer in peers))
        self._hears_node = any(
            isinstance(answer, bytes) for peer, answer in zip(peers, found, strict=True) if peer in bootstraps
        )
        if found and self._store.manifest is None and all(isinstance(answer, NotOfThisRun) for answer in found):
            raise UnreachableError(self._address.nobody_knows_it)
        signed, refused = self._signed([answer for answer in found if isinstance(answer, bytes)])
        if not signed:  # what a liar answers is no reason to look no further
            signed, of_directory = self._signed(await self._from_directory())
            refused = refused or of_directory
        self._store.manifest = self._best_of(signed)
        if self._store.manifest is None and refused is not None:
            raise refused
        return self._store.manifest

    def _signed(self, answers: Sequence[bytes]) -> tuple[dict[bytes, int], ManifestError | None]:
        """Those of these that count, with their revisions, and why another one does not.

        Ours is newer than nothing: it need not be read again, and is nearly always what others answer.
        """
        found: dict[bytes, int] = {}
        refused: ManifestError | None = None
        for signed in answers:
            try:
                is_ours = signed == self._store.manifest
                found[signed] = -1 if is_ours else self._revision(signed)
            except ManifestError as error:
                refused = error
        return found, refused

    def _best_of(self, signed: Mapping[bytes, int]) -> bytes | None:
        """The newest of these, by revision, and ours."""
        ours = self._store.manifest
        if not signed.keys() - {ours}:
            return ours
        best = max(signed, key=lambda manifest: signed[manifest])
        revision = -1 if ours is None else self._revision(ours)
        return best if signed[best] > revision else ours

    def _revision(self, signed: bytes) -> int:
        return open_manifest(signed, self._address.fingerprint).revision

    async def _ask(self, peer: str) -> bytes | NotOfThisRun | None:
        try:
            return await self._store.ask_manifest(peer)
        except NotOfThisRun as error:
            return error
        except (ConnectionError, EOFError, TimeoutError, RemoteDataError) as error:
            log.debug("peer %s does not send the manifest: %s", peer[-8:], error)
            return None

    async def _from_directory(self) -> list[bytes]:
        """Of those that the directory names a few, which anybody may write there: the operator's nodes' words first.

        Kept is what the operator has signed. What is no manifest, or has another revision than is said, is not fetched
        again, and leaves its turn to others: old ones are signed as well.
        """
        found = await self._transport.records.read(records.manifest_key(self._address.fingerprint))
        said = {peer: records.decode(records.ManifestRecord, record.payload) for peer, record in found.items()}
        nodes = [name_in(place) for place in self._address.bootstraps]
        named = [
            (peer not in nodes, -each.revision, peer, each.digest)
            for peer, each in said.items()
            if each is not None and self._seen.get(each.digest, each.revision) == each.revision
        ]
        fetched = await asyncio.gather(*(self._fetch(peer, digest) for *_, peer, digest in sorted(named)[:MOST_NAMED]))
        answers = [data for data in fetched if data is not None]
        signed, _ = self._signed(answers)
        for data in answers:
            if data in signed:
                await self._store.keep(data)
            digest = hashlib.sha256(data).hexdigest()
            put_last(self._seen, digest, self._revision(data) if data in signed else NONE, MAX_SEEN)
        return answers

    async def _fetch(self, peer: str, digest: str) -> bytes | None:
        """What a peer calls the manifest; None when nobody sends it."""
        peers, patience = [peer, *self._known_peers()], self._transport.timing.answer
        return await self._store.fetch_blob(peers, digest, MAX_MANIFEST_BYTES, patience, keep=False)
