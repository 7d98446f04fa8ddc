"""Whether a path's shard is read beside training, and the stream that does it."""

import hashlib
import shutil
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from dipaco_swarm.algorithm.pacing.pacing import pacing_of
from dipaco_swarm.algorithm.paths import PathIndex
from dipaco_swarm.errors import cannot_write
from dipaco_swarm.peer.path_choice import number_of
from dipaco_swarm.peer.workbench import Fetch, Tell
from dipaco_swarm.run.config import RunConfig
from dipaco_swarm.run.manifest import Manifest
from dipaco_swarm.run.reach import Reach
from dipaco_swarm.strategies import SOURCES
from dipaco_swarm.training.documents import ANYWHERE, Portion, is_divided, portions_of
from dipaco_swarm.training.inner import TrainingSettings
from dipaco_swarm.training.reading.reader import Job, store_of
from dipaco_swarm.training.reading.stream import Hear, ReaderProcess, Stream
from dipaco_swarm.training.routed import shard_recipe
from dipaco_swarm.training.tokenizer import load_tokenizer, vocabulary_size

SMALL_BYTES = 64 << 20
"""Documents that are read whole in a minute, once for all stages and all peers of a machine."""


def is_read_beside(config: RunConfig, reach: Reach = ANYWHERE) -> bool:
    """Whether this machine reads the run's documents beside training. Raises DataError when there are none."""
    data = config.data
    if data.reading != "auto":
        return data.reading == "beside"
    if pacing_of(config.rounds.pacing).whole or not is_divided(data):
        return False
    sizes = [portion.size for portion in _portions_here(config, reach)]
    return None in sizes or not sizes or sum(size for size in sizes if size is not None) > SMALL_BYTES


def open_stream(
    manifest: Manifest,
    path: PathIndex,
    peer: str,
    fetch: Fetch,
    tell: Tell,
    cache: Path,
    settings: TrainingSettings,
    disk: int,
    reach: Reach = ANYWHERE,
) -> Stream:
    """The stream of a path, where an earlier life of this peer left it; what is no longer of use is removed.

    Raises DataError, HomeError when the cache cannot be written, and whatever `fetch` raises.
    """
    stage, ours = manifest.stage, cache / "streams" / hashlib.sha256(peer.encode()).hexdigest()[:16]
    corpus = hashlib.sha256(shard_recipe(manifest, stage, path).key().encode())
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
        disk=disk,
        data_root=None if reach.root is None else str(reach.root),
        fenced=reach.fenced,
        device=settings.device,
        threads=settings.threads,
    )
    try:
        _forget(ours, stage.index, path, folder)
        folder.mkdir(parents=True, exist_ok=True)
        store = store_of(manifest.rules, vocabulary_size(load_tokenizer(fetch(manifest.tokenizer))), folder)
        return Stream(store, partial(_start, job, _needs(manifest), fetch), tell)
    except OSError as error:
        raise cannot_write(f"the documents of path {path}", cache, error) from error


def _start(job: Job, digests: Sequence[str], fetch: Fetch, hear: Hear) -> ReaderProcess:
    """A reader; it is handed the run's files in a folder, which is gone once it has read them."""
    files = Path(job.files)
    files.mkdir(exist_ok=True)
    for digest in digests:
        (files / digest).write_bytes(fetch(digest))

    def heard(said: dict[str, object]) -> None:
        if "ready" in said:
            shutil.rmtree(files, ignore_errors=True)
        hear(said)

    return ReaderProcess(job, heard)


def _needs(manifest: Manifest) -> list[str]:
    """The run's files that reading needs."""
    router = manifest.stage.router
    return [manifest.tokenizer, *(() if router is None else (router, *manifest.feature_seeds))]


def _forget(ours: Path, stage: int, path: PathIndex, folder: Path) -> None:
    """Remove our streams of stages that are over, and of this path of other documents."""
    for other in ours.glob("stage-*"):
        of_stage = int(other.name.split("-")[1])
        if of_stage < stage or (other.name.startswith(f"stage-{stage}-path-{path}-") and other != folder):
            shutil.rmtree(other, ignore_errors=True)


def _portions_here(config: RunConfig, reach: Reach) -> Sequence[Portion]:
    """The portions of documents that are on this machine, where they can be listed in a moment."""
    return () if SOURCES[config.data.source].is_remote else portions_of(config.data, reach=reach)
