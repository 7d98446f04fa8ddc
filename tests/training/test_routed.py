"""From a manifest to shards and to evaluation: who trains on a document, and who is scored on it."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from dipaco_swarm.algorithm.paths import ModuleId, PathIndex, grid
from dipaco_swarm.algorithm.routers.k_means import K_MEANS
from dipaco_swarm.algorithm.routers.router import Sample, path_shares, router_to_bytes
from dipaco_swarm.algorithm.state import vector_to_bytes
from dipaco_swarm.run.config import DataConfig, LevelConfig, ModelConfig, RouterConfig, RunConfig
from dipaco_swarm.run.manifest import Manifest, Stage
from dipaco_swarm.run.stage import StageConfig
from dipaco_swarm.training.documents import Document, split_of
from dipaco_swarm.training.features import prefix_features
from dipaco_swarm.training.modules import PathModel, build_network
from dipaco_swarm.training.pieces import cut_into_pieces, prefixes_of
from dipaco_swarm.training.routed import feature_network, load_routing, shard_recipe
from dipaco_swarm.training.shards import Shard, build_shard
from dipaco_swarm.training.tokenizer import end_of_text_id, load_tokenizer, train_tokenizer, vocabulary_size

MODEL = ModelConfig(
    hidden_size=16, intermediate_size=16, num_hidden_layers=2, num_attention_heads=2, max_position_embeddings=16
)
CONFIG = RunConfig(
    name="overlapping",
    model=MODEL,
    levels=(LevelConfig(blocks=(0,), embedding=True), LevelConfig(blocks=(1,), head=True)),
    data=DataConfig(source="python", sequence_length=16, holdout=0.1, routing_sample=0.1),
    router=RouterConfig(prefix_tokens=4, components=4),
    stages=(StageConfig(router="k-means", modules=(2, 2)),),
)
TABLE = grid([2, 2])


def corpus() -> list[Document]:
    """A hundred and twenty documents in four alphabets."""
    return [Document(f"{'abcd'[i % 4] * (1 + i % 3)}{'wxyz'[i % 4] * (i * 7 % 60)} {i}", "a") for i in range(120)]


class Run:
    """A manifest and its blobs, made as a bootstrap node makes them."""

    def __init__(self) -> None:
        self.blobs: dict[str, bytes] = {}
        tokenizer_json = train_tokenizer(["plain letters"], 257)  # one token for each byte
        self.tokenizer = load_tokenizer(tokenizer_json)
        model = PathModel(build_network(MODEL, vocabulary_size(self.tokenizer), 0), CONFIG.levels)
        seeds = [self.put(f"{level}" * 64, vector_to_bytes(model.vector(level))) for level in range(2)]
        training = [d.text for d in corpus() if split_of(d.text, CONFIG.data) == "train"]
        self.pieces = [
            piece for text in training for piece in cut_into_pieces(np.array(self.tokenizer.encode(text).ids), 16, 4)
        ]
        network = feature_network(CONFIG, vocabulary_size(self.tokenizer), seeds, self.blobs.__getitem__)
        self.features = prefix_features(network, prefixes_of(self.pieces, 4))
        self.router = K_MEANS.fit(Sample(self.features), TABLE, CONFIG.router, seed=0)
        self.stage = Stage(
            index=0,
            table=TABLE.rows,
            path_weights=(0.25,) * 4,
            router=self.put("e" * 64, router_to_bytes(K_MEANS, self.router)),
            seeds={str(ModuleId(level, i)): seeds[level] for level in range(2) for i in range(2)},
        )
        self.manifest = Manifest(
            revision=0,
            config=CONFIG,
            tokenizer=self.put("f" * 64, tokenizer_json),
            stages=(self.stage,),
            feature_seeds=tuple(seeds),
        )

    def put(self, digest: str, data: bytes) -> str:
        self.blobs[digest] = data
        return digest

    def shard(self, path: int, overlap: int, cache: Path) -> Shard:
        stage = self.stage.model_copy(update={"overlap": overlap})
        return build_shard(
            corpus,
            self.tokenizer,
            CONFIG.data,
            CONFIG.router,
            load_routing(self.manifest, stage, self.blobs.__getitem__).assign,
            PathIndex(path),
            cache=cache,
            key=shard_recipe(self.manifest, stage, PathIndex(path)).key(),
        )


@pytest.fixture(scope="module")
def run() -> Run:
    return Run()


@pytest.mark.parametrize("overlap", [1, 2, 4])
def test_the_shards_of_all_paths_hold_every_document_as_often_as_shards_overlap(
    run: Run, tmp_path: Path, overlap: int
) -> None:
    shards = [run.shard(path, overlap, tmp_path) for path in range(4)]
    end = end_of_text_id(run.tokenizer)
    held: Counter[int] = Counter()
    for shard in shards:
        held.update([*shard.tokens.ravel().tolist(), *shard.progress.pending])
    expected = Counter(token for piece in run.pieces for token in piece.tolist())
    assert {t: n for t, n in held.items() if t != end} == {t: overlap * n for t, n in expected.items()}
    kept = [shard.progress.pieces_kept for shard in shards]
    assert sum(kept) == overlap * len(run.pieces)
    shares = path_shares(run.router, run.features, overlap)
    assert shares == pytest.approx([count / sum(kept) for count in kept])


def test_shards_that_overlap_differently_have_different_places_in_the_cache(run: Run) -> None:
    stages = [run.stage.model_copy(update={"overlap": overlap}) for overlap in (1, 2, 3)]
    keys = {shard_recipe(run.manifest, stage, PathIndex(0)).key() for stage in stages}
    assert len(keys) == 3


def test_evaluation_goes_to_the_nearest_path_whatever_overlaps(run: Run) -> None:
    prefixes = prefixes_of(run.pieces, 4)
    nearest = run.router.route(run.features)
    for overlap in (1, 2, 4):
        stage = run.stage.model_copy(update={"overlap": overlap})
        routing = load_routing(run.manifest, stage, run.blobs.__getitem__)
        assert routing.paths(prefixes).tolist() == nearest.tolist()
        assert routing.assign is not None
        assert routing.assign(prefixes).shape == (len(prefixes), overlap)
