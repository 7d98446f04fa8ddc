"""The workshop of a real bootstrap node: documents, features, routers and audits, over `training/`."""

import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from itertools import islice

import numpy as np
from tokenizers import Tokenizer
from torch import Tensor, nn

from dipaco_swarm.algorithm.paths import PathIndex, PathTable
from dipaco_swarm.algorithm.routers.router import Sample, kind_of, path_shares, router_from_bytes, router_to_bytes
from dipaco_swarm.algorithm.stages import table_of
from dipaco_swarm.algorithm.weight_decay import Places
from dipaco_swarm.errors import DataError
from dipaco_swarm.machine.stopping import Stopped
from dipaco_swarm.operator.workshop import (
    Fetch,
    FittedRouter,
    PathScorer,
    RoutingSample,
    SnapshotJudge,
    States,
    TrainedWindowRouter,
)
from dipaco_swarm.run.config import RunConfig
from dipaco_swarm.run.manifest import Manifest
from dipaco_swarm.strategies import ROUTERS
from dipaco_swarm.training.bank import load_path
from dipaco_swarm.training.documents import Document, read_documents, split_of
from dipaco_swarm.training.early import Snapshot, load_into, loss_on
from dipaco_swarm.training.encoding import Indices
from dipaco_swarm.training.features import Floats, prefix_features
from dipaco_swarm.training.inner import learning_rate_ratios
from dipaco_swarm.training.modules import PathModel, build_network, decay_places
from dipaco_swarm.training.pieces import EvaluationSet, routing_pieces, routing_prefixes, text_characters
from dipaco_swarm.training.placing import where_fast
from dipaco_swarm.training.pretrained import existing_tokenizer, pretrained_network
from dipaco_swarm.training.routed import feature_network, load_routing
from dipaco_swarm.training.scoring import (
    Rows,
    Scores,
    audit,
    rows_of,
    sample_from_bytes,
    sample_to_bytes,
    score_sample,
)
from dipaco_swarm.training.tokenizer import load_tokenizer, train_tokenizer, vocabulary_size
from dipaco_swarm.training.window_router import WindowRouter, train_window_router, window_router_to_bytes

TOKENIZER_DOCUMENTS = 2000
"""Documents that a tokenizer is trained on, from the training split."""
AUDITED_PIECES = 16
PIECES_SEARCHED = 64
"""Per path: the router's features of the whole sample would take as long as fitting the router did."""
QUALITY_MARGIN = 0.25
"""Nats by which a snapshot may be worse than the agreed modules on the node's documents: what 16 of them leave open."""
CLAIM_MARGIN = 1.0
"""Nats by which a slice may be easier than the node's documents."""


class TrainingWorkshop:
    """`Workshop` over `training/`."""

    def __init__(self, config: RunConfig) -> None:
        self._config = config

    def tokenizer(self) -> bytes:
        config = self._config.at(0)
        tokenizer = existing_tokenizer(config)
        if tokenizer is None:
            documents = (d.text for d in read_documents(config.data) if split_of(d.text, config.data) == "train")
            tokenizer = train_tokenizer(islice(documents, TOKENIZER_DOCUMENTS), config.tokenizer.vocab_size)
        if any(stage.num_paths != 1 for stage in config.stages):
            # documents that no router can be fitted on should be found now, and not when the warm-up is done
            few = config.router.model_copy(update={"max_documents": 2})
            routing_prefixes(read_documents(config.data), load_tokenizer(tokenizer), config.data, few)
        return tokenizer

    def first_seeds(self, tokenizer: bytes) -> Sequence[Tensor]:
        config, loaded = self._config, load_tokenizer(tokenizer)
        if config.model.checkpoint is not None:
            model = PathModel(pretrained_network(config.model, vocabulary_size(loaded)), config.levels)
        else:
            model = self._model(loaded)
        return [model.vector(level) for level in range(model.num_levels)]

    def decays(self, tokenizer: bytes) -> Sequence[Places]:
        config = self._config
        ratios = learning_rate_ratios(config.inner)
        return decay_places(config.model, config.levels, vocabulary_size(load_tokenizer(tokenizer)), ratios)

    def follow(self, config: RunConfig) -> None:
        self._config = config

    def routing_sample(self, index: int, tokenizer: bytes, most: Callable[[float], int]) -> RoutingSample:
        sample = _sample(self._config.at(index), load_tokenizer(tokenizer))
        pieces = len(sample.lengths)
        few = min(pieces, most(float(sample.lengths.mean())))
        if few < pieces:  # evenly, for the sample has one domain after the other
            sample = rows_of(sample, np.arange(few) * pieces // few)
        return RoutingSample(sample_to_bytes(sample), len(sample.lengths))

    def fit_router(self, manifest: Manifest, index: int, scores: Scores | None, fetch: Fetch) -> FittedRouter:
        config, stage, table = self._config.at(index), self._config.stages[index], table_of(self._config, index)
        tokenizer = load_tokenizer(fetch(manifest.tokenizer))
        if scores is None:
            sample = _sample(config, tokenizer)
        else:
            assert manifest.scoring is not None, "what was scored"
            sample = sample_from_bytes(fetch(manifest.scoring), vocabulary_size(tokenizer), config.data.sequence_length)
        prefixes = sample.tokens[:, : config.router.prefix_tokens]
        network = feature_network(config, vocabulary_size(tokenizer), manifest.feature_seeds, fetch)
        features = _features(network, prefixes)
        kind, kept_because = kind_of(stage.router), None
        try:
            before, known = None, None
            if ROUTERS[stage.router].paths == "added":
                assert manifest.stage.router is not None, "there are several paths, so there is a router"
                before = router_from_bytes(fetch(manifest.stage.router), len(manifest.stage.table))
                of_before = _sample(self._config.at(index - 1), tokenizer).tokens[:, : config.router.prefix_tokens]
                known = _features(network, of_before)
            router = kind.fit(Sample(features, scores, before, known), table, config.router, config.seed)
            blob = router_to_bytes(kind, router)
        except DataError as error:
            if ROUTERS[stage.router].paths != "before":
                raise
            # the scores teach nothing: the current router goes on, and nobody is stranded
            assert manifest.stage.router is not None, "there are several paths, so there is a router"
            blob, kept_because = fetch(manifest.stage.router), str(error)
            router = router_from_bytes(blob, len(manifest.stage.table))
        shares, characters = path_shares(router, features, stage.overlap), text_characters(sample, tokenizer)
        return FittedRouter(blob, shares, len(prefixes), kept_because, characters)

    def scorer(self, manifest: Manifest, fetch: Fetch) -> PathScorer:
        assert manifest.scoring is not None, "nobody was asked to score"
        tokenizer = load_tokenizer(fetch(manifest.tokenizer))
        length = self._config.data.sequence_length
        sample = sample_from_bytes(fetch(manifest.scoring), vocabulary_size(tokenizer), length)
        return SampleScorer(manifest, self._model(tokenizer), sample)

    def judge(self, manifest: Manifest, fetch: Fetch) -> SnapshotJudge:
        model = self._model(load_tokenizer(fetch(manifest.tokenizer)))
        return SnapshotAudit(manifest, model, sample_by_path(manifest, fetch))

    def window_router(
        self,
        manifest: Manifest,
        states: States,
        fetch: Fetch,
        on_progress: Callable[[float], None],
        stop: Callable[[], bool],
    ) -> TrainedWindowRouter:
        def and_stop(share: float) -> None:
            if stop():
                raise Stopped
            on_progress(share)

        config, table = manifest.rules, PathTable(manifest.stage.table)
        tokenizer = load_tokenizer(fetch(manifest.tokenizer))
        sample = _sample(config, tokenizer, stop)

        def train(device: str) -> TrainedWindowRouter:
            network = feature_network(config, vocabulary_size(tokenizer), manifest.feature_seeds, fetch)
            router = WindowRouter(network, table.num_paths).to(device)
            model = self._model(tokenizer)
            model.to(device)
            load = lambda path: load_path(model, table, path, states)  # noqa: E731
            right = train_window_router(router, sample, load, config, and_stop)
            return TrainedWindowRouter(window_router_to_bytes(router), right)

        return where_fast(train)

    def _model(self, tokenizer: Tokenizer) -> PathModel:
        network = build_network(self._config.model, vocabulary_size(tokenizer), self._config.seed)
        return PathModel(network, self._config.levels)


class SampleScorer:
    """`PathScorer` over a network of the run's shape."""

    def __init__(self, manifest: Manifest, model: PathModel, sample: EvaluationSet) -> None:
        self._table = PathTable(manifest.stage.table)
        self._prefix_tokens = manifest.rules.router.prefix_tokens
        self._audit_seed = secrets.randbits(63)  # nobody knows beforehand which pieces we score ourselves
        self._model = model
        self._sample = sample

    @property
    def pieces(self) -> int:
        return len(self._sample.lengths)

    @property
    def tokens(self) -> int:
        return int(self._sample.lengths.sum())

    def score(self, path: PathIndex, states: States, pieces: range) -> Scores:
        sample = rows_of(self._sample, np.array(pieces))
        return where_fast(
            lambda device: score_sample(self._on(device, path, states).network, sample, self._prefix_tokens)
        )

    def believes(self, path: PathIndex, states: States, scores: Scores, rows: Rows) -> bool:
        sample = rows_of(self._sample, rows)

        def judge(device: str) -> bool:
            network = self._on(device, path, states).network
            return audit(scores, network, sample, self._prefix_tokens, self._audit_seed)

        return where_fast(judge)

    def _on(self, device: str, path: PathIndex, states: States) -> PathModel:
        """The model as a path; it stays on that device until it is asked for on another."""
        self._model.to(device)
        load_path(self._model, self._table, path, states)
        return self._model


class SnapshotAudit:
    """`SnapshotJudge` over a network of the run's shape, and some documents of each path."""

    def __init__(self, manifest: Manifest, model: PathModel, sample: Callable[[PathIndex], EvaluationSet]) -> None:
        """`sample`: pieces of documents of a path that the node can score; possibly none."""
        self._table = PathTable(manifest.stage.table)
        self._prefix_tokens = manifest.rules.router.prefix_tokens
        self._model = model
        self._sample = sample

    @property
    def shape(self) -> PathModel:
        return self._model

    def doubt(self, snapshot: Snapshot, states: States) -> str | None:
        pieces, model = self._sample(snapshot.path), self._model
        if not len(pieces.lengths):
            return None
        load_path(model, self._table, snapshot.path, states)
        agreed = loss_on(model, pieces, self._prefix_tokens)
        load_into(model, snapshot)
        found = loss_on(model, pieces, self._prefix_tokens)
        if not found <= agreed + QUALITY_MARGIN:  # nan is not
            return f"its loss is {found:.3f} where the agreed modules have {agreed:.3f}"
        if snapshot.loss < found - CLAIM_MARGIN:
            return f"it claims a loss of {snapshot.loss:.3f} where it has {found:.3f}"
        return None


def sample_by_path(manifest: Manifest, fetch: Fetch) -> Callable[[PathIndex], EvaluationSet]:
    """A few pieces of the routing sample for each path, those that the stage's router sends to it; made when asked."""
    config, stage = manifest.rules, manifest.stage

    @cache
    def routed() -> tuple[EvaluationSet, Indices]:
        routing = load_routing(manifest, stage, fetch)
        found = routing_pieces(read_documents(config.data), routing.tokenizer, config.data, config.router)
        found = rows_of(found, np.arange(min(len(found.lengths), PIECES_SEARCHED * len(stage.table))))
        return found, routing.paths(found.tokens[:, : config.router.prefix_tokens])

    def of_path(path: PathIndex) -> EvaluationSet:
        pieces, paths = routed()
        return rows_of(pieces, np.flatnonzero(paths == path)[:AUDITED_PIECES])

    return of_path


def _features(network: nn.Module, prefixes: Indices) -> Floats:
    """`prefix_features`, on the GPU where there is one."""
    return where_fast(lambda device: prefix_features(network.to(device), prefixes))


def _sample(config: RunConfig, tokenizer: Tokenizer, stop: Callable[[], bool] = lambda: False) -> EvaluationSet:
    """The routing sample of a stage. Raises Stopped when `stop` says so."""
    documents = _until_stopped(read_documents(config.data), stop)
    return routing_pieces(documents, tokenizer, config.data, config.router)


def _until_stopped(documents: Iterable[Document], stop: Callable[[], bool]) -> Iterator[Document]:
    """The same documents; raises Stopped when asked to stop."""
    for document in documents:
        if stop():
            raise Stopped
        yield document
