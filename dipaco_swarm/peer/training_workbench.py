"""The workbench of a real machine: documents are routed and packed, and torch trains on them."""

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

import torch

from dipaco_swarm.algorithm.paths import ModuleId, PathIndex
from dipaco_swarm.algorithm.state import ModuleState
from dipaco_swarm.errors import UsageError
from dipaco_swarm.events.joining import Terms
from dipaco_swarm.events.volunteer import ReadingDocuments, ShardReady
from dipaco_swarm.machine.stopping import Stopped
from dipaco_swarm.peer.reading import is_read_beside, open_stream
from dipaco_swarm.peer.snapshots import LossOf
from dipaco_swarm.peer.workbench import Bench, Fetch, Tell
from dipaco_swarm.run.config import RunConfig
from dipaco_swarm.run.manifest import Manifest
from dipaco_swarm.run.reach import Reach
from dipaco_swarm.settings import PeerSettings
from dipaco_swarm.training.documents import read_documents
from dipaco_swarm.training.early import score_agreed
from dipaco_swarm.training.inner import Batches, InnerTrainer, TrainingSettings
from dipaco_swarm.training.modules import PathModel, build_network
from dipaco_swarm.training.packing import ShardProgress
from dipaco_swarm.training.pieces import EvaluationSet
from dipaco_swarm.training.reading.stream import Stream
from dipaco_swarm.training.routed import load_routing, shard_recipe
from dipaco_swarm.training.scoring import sample_from_bytes, score_sample, scores_to_bytes
from dipaco_swarm.training.shards import Shard, build_shard
from dipaco_swarm.training.terms import check_memory, terms_of
from dipaco_swarm.training.tokenizer import load_tokenizer, vocabulary_size

TOLD_EVERY = 2048
"""Documents between two lines about reading them."""


class TrainingWorkbench:
    """`Workbench` over `training/`."""

    def __init__(self, cache: Path, settings: TrainingSettings, disk: int, reach: Reach) -> None:
        """`cache`: where tokens, features and shards are kept; all peers of a machine may share it. `disk`: bytes that
        documents which are read beside training may take. `reach`: where documents may come from."""
        self._cache = cache
        self._settings = settings
        self._disk = disk
        self._reach = reach
        self._stream: Stream | None = None
        self._told: Terms | None = None

    def prepare(
        self, manifest: Manifest, path: PathIndex, peer: str, fetch: Fetch, tell: Tell, stop: Callable[[], bool]
    ) -> Bench:
        self.close()
        if self._settings.threads is not None:
            torch.set_num_threads(self._settings.threads)
        terms = terms_of(manifest, fetch, self._settings.device)
        if terms != self._told:  # before anything is read or allocated; a stage may read something else
            check_memory(terms)
            tell(terms)
            self._told = terms
        config = manifest.rules
        if is_read_beside(config, self._reach):
            cache, settings, disk = self._cache, self._settings, self._disk
            stream = open_stream(manifest, path, peer, fetch, tell, cache, settings, disk, self._reach)
            self._stream = stream
            bench = self._bench(manifest, fetch, stream)
            stream.await_first(stop)
            return bench
        return self._bench(manifest, fetch, self._shard(manifest, path, fetch, tell, stop))

    def close(self) -> None:
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    def _bench(self, manifest: Manifest, fetch: Fetch, sequences: "Sequences") -> "TrainingBench":
        config = manifest.rules
        vocabulary = vocabulary_size(load_tokenizer(fetch(manifest.tokenizer)))
        model = PathModel(build_network(config.model, vocabulary, config.seed), config.levels)
        model.to(self._settings.device)
        return TrainingBench(config, model, InnerTrainer(model, config.inner, self._settings), sequences)

    def _shard(self, manifest: Manifest, path: PathIndex, fetch: Fetch, tell: Tell, stop: Callable[[], bool]) -> Shard:
        def on_progress(progress: ShardProgress) -> None:
            if stop():
                raise Stopped
            if progress.documents % TOLD_EVERY == 0:
                tell(ReadingDocuments(progress.documents, progress.sequences))

        config = manifest.rules
        features, device = self._cache / "features", self._settings.device
        routing = load_routing(manifest, manifest.stage, fetch, remember=features, device=device)
        recipe = shard_recipe(manifest, manifest.stage, path)
        shard = build_shard(
            lambda: read_documents(config.data, reach=self._reach),
            routing.tokenizer,
            config.data,
            config.router,
            routing.assign,
            path,
            cache=self._cache / "shards",
            key=recipe.key(),
            hold_out=recipe.hold_out,
            remember=self._cache / "tokens" / manifest.tokenizer[:32],
            on_progress=on_progress,
        )
        tell(ShardReady(shard.num_sequences, shard.num_tokens))
        return shard


class Sequences(Protocol):
    """What a path is trained on: a `Shard`, or a `Stream` of one."""

    def batches(self, batch_sequences: int, seed: int, start: int = 0) -> Batches: ...

    def slice(self, at_most: int) -> EvaluationSet | None: ...


class TrainingBench:
    """`Bench` over `training/`."""

    def __init__(self, config: RunConfig, model: PathModel, trainer: InnerTrainer, sequences: Sequences) -> None:
        self.model = model
        self.trainer = trainer
        self._config = config
        self._sequences = sequences

    def batches(self, seed: int, consumed: int) -> Batches:
        return self._sequences.batches(self._config.inner.batch_sequences, seed, consumed)

    def scores(self, sample: bytes) -> bytes:
        config, network = self._config, self.model.network
        pieces = sample_from_bytes(sample, network.config.vocab_size, config.data.sequence_length)
        return scores_to_bytes(score_sample(network, pieces, config.router.prefix_tokens))

    def loss_on_slice(self, max_sequences: int) -> LossOf | None:
        if isinstance(self._sequences, Shard) and self._sequences.held_out is None:
            return None
        prefix = self._config.router.prefix_tokens

        def loss_of(base: Mapping[ModuleId, ModuleState]) -> float:
            pieces = self._sequences.slice(max_sequences)  # of a stream: when they were found
            return math.nan if pieces is None else score_agreed(self.model, base, pieces, prefix)

        return loss_of


def workbench_of(settings: PeerSettings) -> TrainingWorkbench:
    """This machine's workbench as its volunteer wants it. Raises UsageError when torch does not find the device."""
    device = device_of(settings.device)
    cache = settings.cache or settings.home / "cache"
    training = TrainingSettings(device, settings.threads, settings.micro_batch)
    return TrainingWorkbench(cache, training, settings.disk, settings.reach)


def device_of(choice: str) -> str:
    """What torch calls the device of `--device`. Raises UsageError when it is not there."""
    if choice == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if choice == "cuda" and not torch.cuda.is_available():
        raise UsageError("--device cuda: torch finds no CUDA device here; use --device cpu, or check the driver")
    return choice
