"""From a manifest to what a machine needs for routing: tokenizer, router, and the dense model behind its features."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from tokenizers import Tokenizer
from transformers import PreTrainedModel

from dipaco_swarm.algorithm.paths import PathIndex
from dipaco_swarm.algorithm.routers.router import router_from_bytes
from dipaco_swarm.algorithm.state import vector_from_bytes
from dipaco_swarm.run.config import RunConfig
from dipaco_swarm.run.manifest import Manifest, Stage
from dipaco_swarm.training.encoding import Indices
from dipaco_swarm.training.features import FULL_BATCH, Floats, prefix_features, remembered_features
from dipaco_swarm.training.modules import PathModel, build_network
from dipaco_swarm.training.packing import Assign
from dipaco_swarm.training.shards import ShardRecipe
from dipaco_swarm.training.tokenizer import load_tokenizer, vocabulary_size

Fetch = Callable[[str], bytes]
"""A blob by its digest."""


@dataclass(frozen=True, eq=False)
class Routing:
    """How a stage reads documents: the run's tokenizer, and the way from a prefix to a path."""

    tokenizer_json: bytes
    tokenizer: Tokenizer
    assign: Assign | None
    """Prefixes int64 (pieces, prefix_tokens) -> the paths that train on each, nearest first, int64 (pieces, overlap).
    None: there is one path for all."""

    def paths(self, prefixes: Indices) -> Indices:
        """The nearest path of each prefix, int64 (pieces,): what evaluation and generation use, whatever overlaps."""
        if self.assign is None:
            return torch.zeros(len(prefixes), dtype=torch.int64).numpy()
        return self.assign(prefixes)[:, 0]


def load_routing(
    manifest: Manifest,
    stage: Stage,
    fetch: Fetch,
    *,
    remember: Path | None = None,
    device: str = "cpu",
    batch: Callable[[int], int] = lambda prefixes: FULL_BATCH,
) -> Routing:
    """Fetch and check what a stage's routing needs. Raises ManifestError, or whatever `fetch` raises.

    `remember`: a folder for features on disk; all stages, and all peers of a machine, share what was computed once.
    `device`: where features are computed. `batch`: how many at once, by how many there are; see `prefix_features`.
    """
    tokenizer_json = fetch(manifest.tokenizer)
    tokenizer = load_tokenizer(tokenizer_json)
    if stage.router is None:
        return Routing(tokenizer_json, tokenizer, None)
    router = router_from_bytes(fetch(stage.router), len(stage.table))
    network = feature_network(manifest.rules, vocabulary_size(tokenizer), manifest.feature_seeds, fetch).to(device)

    features: Callable[[Indices], Floats] = lambda prefixes: prefix_features(  # noqa: E731
        network, prefixes, batch(len(prefixes))
    )
    if remember is not None:
        name = hashlib.sha256("".join(manifest.feature_seeds).encode()).hexdigest()[:32]
        features = remembered_features(features, remember / name)
    return Routing(tokenizer_json, tokenizer, lambda prefixes: router.route_top(features(prefixes), stage.overlap))


def feature_network(config: RunConfig, vocabulary: int, seeds: Sequence[str], fetch: Fetch) -> PreTrainedModel:
    """The frozen dense model whose hidden states are the router's features (paper section 2.4)."""
    model = PathModel(build_network(config.model, vocabulary, config.seed), config.levels)
    for level, digest in enumerate(seeds):
        model.load(level, vector_from_bytes(fetch(digest)))
    return model.network


def shard_recipe(manifest: Manifest, stage: Stage, path: PathIndex) -> ShardRecipe:
    """What decides the bytes of a path's shard; names it in the cache."""
    config = manifest.rules
    hold_out = config.early_stopping.share if config.early_stopping is not None else 0.0
    return ShardRecipe(config.data, config.router, manifest.tokenizer, stage.router, path, stage.overlap, hold_out)
