"""The workbench of a real machine: documents are routed and packed, and torch trains on them."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial

import numpy as np
import torch
from torch import Tensor

from dipaco_swarm.algorithm.paths import ModuleId
from dipaco_swarm.algorithm.state import ModuleState
from dipaco_swarm.errors import UsageError
from dipaco_swarm.events.joining import NotPrepared, Terms
from dipaco_swarm.events.volunteer import ReadingDocuments, ShardReady
from dipaco_swarm.machine.stopping import Stopped
from dipaco_swarm.peer.reading import ReadingRoom, forget_before, is_read_beside, open_stream
from dipaco_swarm.peer.snapshots import LossOf
from dipaco_swarm.peer.workbench import Bench, Fetch, Preparation
from dipaco_swarm.run.config import RunConfig
from dipaco_swarm.run.manifest import Manifest
from dipaco_swarm.settings import Own, PeerSettings
from dipaco_swarm.training.documents import documents_to_train_on
from dipaco_swarm.training.early import score_agreed
from dipaco_swarm.training.gradients import Gradients
from dipaco_swarm.training.helper import HelperSettings
from dipaco_swarm.training.inner import Batches, InnerTrainer, TrainingSettings
from dipaco_swarm.training.modules import PathModel, build_network
from dipaco_swarm.training.own import OwnSequences, Sequences, WithOwn, look_at
from dipaco_swarm.training.packing import ShardProgress
from dipaco_swarm.training.pieces import EvaluationSet
from dipaco_swarm.training.prepared import for_reading
from dipaco_swarm.training.reading.stream import Stream
from dipaco_swarm.training.rounding import with_rounding
from dipaco_swarm.training.routed import load_routing, shard_recipe
from dipaco_swarm.training.scoring import Scores, rows_of, sample_from_bytes, score_sample
from dipaco_swarm.training.shards import Shard, build_shard
from dipaco_swarm.training.terms import check_memory, sizes_in, terms_of
from dipaco_swarm.training.together import Together
from dipaco_swarm.training.tokenizer import load_tokenizer, vocabulary_size

MAX_WHY = 200
TOLD_EVERY = 2048
"""Documents between two lines about reading them."""


class TrainingWorkbench:
    """`Workbench` over `training/`."""

    def __init__(self, room: ReadingRoom, own: Own | None = None) -> None:
        """`own`: documents of the volunteer's."""
        self._room = room
        self._settings = room.settings
        self._own = own
        self._bench: TrainingBench | None = None
        """That is trained on."""
        self._next: TrainingBench | None = None
        """For a stage to come."""
        self._forget: Callable[[], None] = lambda: None
        """Removes what was read for the stages before that."""
        self._told: Terms | None = None

    def sizes(self, manifest: Manifest, fetch: Fetch) -> Sequence[int]:
        return sizes_in(manifest, fetch)

    def prepare(self, wanted: Preparation) -> Bench:
        if self._bench is not None:
            self._bench.close()
            self._bench = None
        bench = self._prepared(wanted)
        self._bench = bench
        return bench

    def prepare_next(self, wanted: Preparation) -> Bench:
        index = wanted.manifest.stage.index
        bench = self._prepared(wanted, first=index - 1)
        if self._next is not None:
            self._next.close()
        self._next = bench
        self._forget = partial(forget_before, self._room.cache, wanted.peer, index)
        return bench

    def begin(self, bench: Bench) -> None:
        assert bench is self._next, "it was not prepared"
        if self._bench is not None:
            self._bench.close()
        self._bench, self._next = self._next, None
        self._forget()

    def _prepared(self, wanted: Preparation, first: int | None = None) -> "TrainingBench":
        """`first`: the first stage that is not over; None: the manifest's."""
        manifest, fetch, tell = wanted.manifest, wanted.fetch, wanted.tell
        if self._settings.threads is not None:
            torch.set_num_threads(self._settings.threads)
        terms = terms_of(manifest, fetch, self._settings.device, len(self._settings.helpers))
        if terms != self._told:  # before anything is read or allocated; a stage may read something else
            check_memory(terms)
            tell(terms)
            if self._own is not None:
                tell(look_at(self._own))
            self._told = terms
        reading, why = for_reading(manifest, wanted.path, self._room.reach)
        if why is not None:
            tell(NotPrepared(why[:MAX_WHY]))
        wanted = replace(wanted, manifest=reading)
        routed_with = 0 if reading.stage.router is None else terms.parameters
        if is_read_beside(reading.rules, self._room.reach, routed_with):
            stream = open_stream(wanted, self._room, first)
            try:
                stream.await_first(wanted.stop)
                return self._made(manifest, fetch, self._with_own(manifest, fetch, stream), stream)
            except BaseException:
                stream.close()
                raise
        return self._made(manifest, fetch, self._with_own(manifest, fetch, self._shard(wanted)))

    def rest(self, *, resting: bool) -> None:
        for bench in (self._bench, self._next):
            if bench is not None:
                bench.rest(resting=resting)

    def close(self) -> None:
        for bench in (self._bench, self._next):
            if bench is not None:
                bench.close()
        self._bench = self._next = None

    def _made(
        self, manifest: Manifest, fetch: Fetch, sequences: Sequences, stream: Stream | None = None
    ) -> "TrainingBench":
        vocabulary = vocabulary_size(load_tokenizer(fetch(manifest.tokenizer)))
        return TrainingBench(manifest.rules, vocabulary, self._settings, sequences, stream)

    def _with_own(self, manifest: Manifest, fetch: Fetch, of_run: Sequences) -> "Sequences":
        if self._own is None:
            return of_run
        tokenizer, config = load_tokenizer(fetch(manifest.tokenizer)), manifest.config
        own = OwnSequences(self._own, tokenizer, config.data.sequence_length, config.seed)
        return WithOwn(of_run, own, self._own.share)

    def _shard(self, wanted: Preparation) -> Shard:
        manifest, path, tell, room = wanted.manifest, wanted.path, wanted.tell, self._room

        def on_progress(progress: ShardProgress) -> None:
            if wanted.stop():
                raise Stopped
            if progress.documents % TOLD_EVERY == 0:
                tell(ReadingDocuments(progress.documents, progress.sequences))

        config = manifest.rules
        features, device = room.cache / "features", self._settings.device
        routing = load_routing(manifest, manifest.stage, wanted.fetch, remember=features, device=device)
        recipe = shard_recipe(manifest, manifest.stage, path)
        shard = build_shard(
            lambda: documents_to_train_on(config.data, reach=room.reach),
            routing.tokenizer,
            config.data,
            config.router,
            routing.assign,
            path,
            cache=room.cache / "shards",
            key=recipe.key(),
            hold_out=recipe.hold_out,
            remember=room.cache / "tokens" / manifest.tokenizer[:32],
            on_progress=on_progress,
        )
        tell(ShardReady(shard.num_sequences, shard.num_tokens))
        return shard


class TrainingBench:
    """`Bench` over `training/`."""

    def __init__(
        self,
        config: RunConfig,
        vocabulary: int,
        settings: TrainingSettings,
        sequences: Sequences,
        stream: Stream | None = None,
    ) -> None:
        """`stream`: what reads the sequences beside training."""
        self._config = config
        self._vocabulary = vocabulary
        self._settings = settings
        self._sequences = sequences
        self._stream = stream

    @cached_property
    def model(self) -> PathModel:
        """Made when it is used first: for a stage to come, the memory is needed later."""
        return self._new_model()

    @cached_property
    def trainer(self) -> InnerTrainer:
        settings = with_rounding(self._settings, self._config)
        helped = self._helped(settings) if settings.helpers else None
        return InnerTrainer(self.model, self._config.inner, settings, helped)

    def _helped(self, settings: TrainingSettings) -> Together:
        """Gradients by several devices."""
        config, passes = self._config, settings.passes(self._config.inner.batch_sequences)
        helper = HelperSettings(config.model, self._vocabulary, tuple(config.levels), passes, settings.threads)
        return Together(self.model, Gradients(self.model, passes), helper, settings.helpers)

    def rest(self, *, resting: bool) -> None:
        """Hold what reads, or let it go on."""
        if self._stream is not None:
            self._stream.rest(resting=resting)

    def close(self) -> None:
        """End what reads, and what computes beside us."""
        if self._stream is not None:
            self._stream.close()
        if "trainer" in vars(self):  # a stage that was prepared and never entered has none
            self.trainer.close()

    def batches(self, seed: int, consumed: int) -> Batches:
        return self._sequences.batches(self._config.inner.batch_sequences, seed, consumed)

    def scorer(self, sample: bytes, params: Sequence[Tensor]) -> "OwnScorer":
        config, model = self._config, self._new_model()
        for level, vector in enumerate(params):
            model.load(level, vector)
        pieces = sample_from_bytes(sample, self._vocabulary, config.data.sequence_length)
        return OwnScorer(model, pieces, config.router.prefix_tokens)

    def _new_model(self) -> PathModel:
        """With the run's fresh parameters."""
        config = self._config
        model = PathModel(build_network(config.model, self._vocabulary, config.seed), config.levels)
        model.to(self._settings.device)
        return model

    def loss_on_slice(self, max_sequences: int) -> LossOf | None:
        if not self._sequences.holds_out:
            return None
        prefix = self._config.router.prefix_tokens

        def loss_of(base: Mapping[ModuleId, ModuleState]) -> float:
            pieces = self._sequences.slice(max_sequences)  # of a stream: when they were found
            return math.nan if pieces is None else score_agreed(self.model, base, pieces, prefix)

        return loss_of


class OwnScorer:
    """`Scorer` over a network of its own."""

    def __init__(self, model: PathModel, sample: EvaluationSet, prefix_tokens: int) -> None:
        self._model = model
        self._sample = sample
        self._prefix_tokens = prefix_tokens

    @property
    def pieces(self) -> int:
        return len(self._sample.lengths)

    def score(self, pieces: range) -> Scores:
        return score_sample(self._model.network, rows_of(self._sample, np.array(pieces)), self._prefix_tokens)


def workbench_of(settings: PeerSettings) -> TrainingWorkbench:
    """This machine's workbench as its volunteer wants it. Raises UsageError when torch does not find the device."""
    device, *helpers = (device_of(each) for each in (settings.device, *settings.helpers))
    cache, threads = settings.cache or settings.home / "cache", settings.threads
    if helpers and device == "cpu" and threads is None:
        threads = max(1, torch.get_num_threads() // (1 + len(helpers)))
    training = TrainingSettings(
        device,
        threads,
        settings.micro_batch,
        autocast=settings.autocast,
        helpers=tuple(helpers),
        eight_bit=settings.eight_bit,
        recompute=settings.recompute,
        compiled=settings.compiled,
    )
    if settings.own is not None:
        look_at(settings.own)  # before anything slow
    return TrainingWorkbench(ReadingRoom(cache, training, settings.disk, settings.reach), settings.own)


def device_of(choice: str) -> str:
    """What torch calls the device of `--device`. Raises UsageError when it is not there."""
    if choice == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if choice.startswith("cuda") and not torch.cuda.is_available():
        raise UsageError(f"--device {choice}: torch finds no CUDA device here; use --device cpu, or check the driver")
    if ":" in choice and int(choice.partition(":")[2]) >= torch.cuda.device_count():
        raise UsageError(f"--device {choice}: torch finds {torch.cuda.device_count()} here, counted from cuda:0")
    return choice


def gpus_of(devices: Sequence[str]) -> list[str]:
    """What NVIDIA calls these devices of torch's. Raises UsageError when one is no GPU."""
    if "cpu" in devices:
        raise UsageError("--gpu-power: there is no GPU to train on here; leave it out")
    return [f"GPU-{torch.cuda.get_device_properties(device).uuid}" for device in devices]
