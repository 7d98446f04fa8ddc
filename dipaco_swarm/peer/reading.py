"""Whether a path's shard is read beside training, and the stream that does it."""

import hashlib
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from dipaco_swarm.algorithm.pacing.pacing import pacing_of
from dipaco_swarm.algorithm.paths import PathIndex
from dipaco_swarm.errors import cannot_write
from dipaco_swarm.peer.path_choice import number_of
from dipaco_swarm.peer.workbench import Fetch, Preparation
from dipaco_swarm.run.config import RunConfig
from dipaco_swarm.run.manifest import Manifest
from dipaco_swarm.run.reach import Reach
from dipaco_swarm.strategies import SOURCES
from dipaco_swarm.training.documents import ANYWHERE, Portion, is_divided, portions_of
from dipaco_swarm.training.inner import TrainingSettings
from dipaco_swarm.training.reading.blocks import LAYOUT
from dipaco_swarm.training.reading.cheap import CHARACTERS_PER_TOKEN
from dipaco_swarm.training.reading.reader import Job, store_of
from dipaco_swarm.training.reading.shared.beside import SharingReader, subject_of
from dipaco_swarm.training.reading.stream import Beside, Hear, ReaderProcess, Stream
from dipaco_swarm.training.routed import shard_recipe
from dipaco_swarm.training.tokenizer import load_tokenizer, vocabulary_size

SHELF = "routed-"
"""Folders of what we have routed, by their stage."""
SMALL_BYTES = 64 << 20
"""Documents that are read whole in a minute, once for all stages and all peers of a machine."""
SMALL_ROUTING = 1e11
"""Texts to be routed times parameters of what reads them: whole in two minutes of two cores, or so."""


def is_read_beside(config: RunConfig, reach: Reach = ANYWHERE, routed_with: int = 0) -> bool:
    """Whether this machine reads the run's documents beside training. Raises DataError when there are none.

    `routed_with`: parameters of the model that makes the router's features; 0: nothing is routed.
    """
    data = config.data
    if data.reading != "auto":
        return data.reading == "beside"
    if pacing_of(config.rounds.pacing).whole or not is_divided(data):
        return False
    if any(SOURCES[part.source].is_remote for part in data.parts):
        return True
    sizes = [p.size for part in data.parts if is_divided(part) for p in portions_of(part, reach=reach)]
    known = sum(size for size in sizes if size is not None)
    texts = known / (CHARACTERS_PER_TOKEN * data.sequence_length)
    return None in sizes or known > SMALL_BYTES or texts * routed_with > SMALL_ROUTING


@dataclass(frozen=True)
class ReadingRoom:
    """What reading has of this machine."""

    cache: Path
    """Where tokens, features, shards and streams are kept; all peers of a machine may share it."""
    settings: TrainingSettings
    disk: int
    """Bytes that documents which are read beside training may take."""
    reach: Reach = ANYWHERE
    """Where documents may come from."""


def open_stream(wanted: Preparation, room: ReadingRoom, first: int | None = None) -> Stream:
    """The stream of a path, where an earlier life of this peer left it; what is no longer of use is removed.

    `first`: the first stage that is not over, where it is not the manifest's.
    Raises DataError, HomeError when the cache cannot be written, and whatever `fetch` raises.
    """
    manifest, path, peer, fetch, others = wanted.manifest, wanted.path, wanted.peer, wanted.fetch, wanted.others
    stage, ours, reach = manifest.stage, _streams(room.cache, peer), room.reach
    corpus = hashlib.sha256(shard_recipe(manifest, stage, path).key().encode())
    corpus.update(f"{stage.text_characters}\n{LAYOUT}\n".encode())
    for portion in _portions_here(manifest.rules, reach):
        corpus.update(f"{portion.name}\n{portion.size}\n".encode())
    folder = ours / f"stage-{stage.index}-path-{path}-{corpus.hexdigest()[:16]}"
    job = Job(
        manifest=manifest.model_dump_json(),
        path=path,
        start=number_of(peer),
        folder=str(folder),
        files=str(folder / "files"),
        rolling=str(ours),
        disk=room.disk,
        data_root=None if reach.root is None else str(reach.root),
        fenced=reach.fenced,
        device=room.settings.device,
        threads=room.settings.threads,
        peer=peer,
        shelf=str(ours / f"{SHELF}{stage.index}"),
        shares="nothing" if others is None else manifest.rules.data.shares,
    )
    try:
        forget_before(room.cache, peer, stage.index if first is None else first)
        _forget(ours, stage.index, path, folder)
        folder.mkdir(parents=True, exist_ok=True)
        store = store_of(manifest.rules, vocabulary_size(load_tokenizer(fetch(manifest.tokenizer))), folder)
        about = partial(subject_of, stage.index, path, len(stage.table), number_of(peer), store)
        reader = ReaderProcess if others is None else partial(SharingReader, about=about, others=others)
        return Stream(store, partial(_start, job, _needs(manifest), fetch, reader), wanted.tell)
    except OSError as error:
        raise cannot_write(f"the documents of path {path}", room.cache, error) from error


def forget_before(cache: Path, peer: str, stage: int) -> None:
    """Remove what a peer has read for stages before this one."""
    ours = _streams(cache, peer)
    for folder in (*ours.glob(f"{SHELF}*"), *ours.glob("stage-*")):
        of_stage = folder.name.removeprefix(SHELF).removeprefix("stage-").partition("-")[0]
        if int(of_stage) < stage:
            shutil.rmtree(folder, ignore_errors=True)


def _streams(cache: Path, peer: str) -> Path:
    return cache / "streams" / hashlib.sha256(peer.encode()).hexdigest()[:16]


Begin = Callable[..., Beside]
"""A reader of a `job`, that is heard by `hear`."""


def _start(job: Job, digests: Sequence[str], fetch: Fetch, begin: Begin, hear: Hear) -> Beside:
    """A reader; it is handed the run's files in a folder, which is gone once it has read them."""
    files = Path(job.files)
    files.mkdir(exist_ok=True)
    for digest in digests:
        (files / digest).write_bytes(fetch(digest))

    def heard(said: dict[str, object]) -> None:
        if "ready" in said:
            shutil.rmtree(files, ignore_errors=True)
        hear(said)

    return begin(job=job, hear=heard)


def _needs(manifest: Manifest) -> list[str]:
    """The run's files that reading needs."""
    router = manifest.stage.router
    return [manifest.tokenizer, *(() if router is None else (router, *manifest.feature_seeds))]


def _forget(ours: Path, stage: int, path: PathIndex, folder: Path) -> None:
    """Remove our streams of this path of other documents."""
    for other in ours.glob(f"stage-{stage}-path-{path}-*"):
        if other != folder:
            shutil.rmtree(other, ignore_errors=True)


def _portions_here(config: RunConfig, reach: Reach) -> Sequence[Portion]:
    """The portions of documents that are on this machine, where they can be listed in a moment."""
    here = [part for part in config.data.parts if not SOURCES[part.source].is_remote]
    return [portion for part in here for portion in portions_of(part, reach=reach)]
