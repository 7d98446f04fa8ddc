"""Per-path early stopping on one machine: the slice of a shard, what is scored when, and what is kept."""

import json
import math
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save
from tokenizers import Tokenizer

from dipaco_swarm.algorithm.paths import ModuleId, PathIndex, grid
from dipaco_swarm.algorithm.state import ModuleState
from dipaco_swarm.errors import CheckpointError
from dipaco_swarm.files import write_whole
from dipaco_swarm.run.config import DataConfig, LevelConfig, ModelConfig, RouterConfig
from dipaco_swarm.training import documents as documents_module
from dipaco_swarm.training.documents import Document, place_in_slice, split_of
from dipaco_swarm.training.early import (
    BestSoFar,
    Snapshot,
    SnapshotStatement,
    load_snapshot,
    loss_on,
    misfit,
    score_agreed,
    snapshot_file,
    snapshot_from_bytes,
    snapshot_to_bytes,
)
from dipaco_swarm.training.modules import PathModel, build_network
from dipaco_swarm.training.packing import ShardProgress
from dipaco_swarm.training.pieces import EvaluationSet, cut_into_pieces
from dipaco_swarm.training.shards import Shard, build_shard
from dipaco_swarm.training.tokenizer import end_of_text_id, load_tokenizer, train_tokenizer

DATA = DataConfig(source="python", sequence_length=16, holdout=0.1, routing_sample=0.1)
ROUTER = RouterConfig(prefix_tokens=4)
P0 = PathIndex(0)
M0, M1 = ModuleId(0, 0), ModuleId(1, 0)
RUN = "small:fingerprint"


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return load_tokenizer(train_tokenizer(["plain letters"], 257))  # one token for each byte


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents_module, "CHUNK_DOCUMENTS", 8)


# ------------------------------------------------------------------------------------------------------------ the slice


def corpus(count: int = 90) -> list[Document]:
    texts = (f"{i:04d}" + "abcxyz"[i % 6] * (1 + i * 7 % 60) for i in range(10 * count))
    return [Document(text, "a") for text in texts if split_of(text, DATA) == "train"][:count]


def build(tokenizer: Tokenizer, cache: Path, documents: Sequence[Document], hold_out: float) -> Shard:
    return build_shard(
        lambda: documents, tokenizer, DATA, ROUTER, None, P0, cache=cache, key=f"{hold_out}", hold_out=hold_out
    )


def trained_on(shard: Shard) -> list[int]:
    return sorted([*shard.tokens.ravel().tolist(), *shard.progress.pending])


def expected_of(tokenizer: Tokenizer, documents: Sequence[Document]) -> tuple[list[int], list[list[int]]]:
    """Tokens to train on, and pieces."""
    pieces = [
        p.tolist() for d in documents for p in cut_into_pieces(np.array(tokenizer.encode(d.text).ids), 16, 4)
    ]  # fmt: skip
    end = end_of_text_id(tokenizer)
    return sorted(t for p in pieces for t in ([*p, end] if len(p) < 16 else p)), pieces


def rows_of(pieces: EvaluationSet | None) -> list[list[int]]:
    assert pieces is not None
    return [row[:n] for row, n in zip(pieces.tokens.tolist(), pieces.lengths.tolist(), strict=True)]


def test_a_slice_of_the_documents_is_held_out_whole_and_never_trained_on(tokenizer: Tokenizer, tmp_path: Path) -> None:
    documents = corpus()
    shard = build(tokenizer, tmp_path, documents, 0.2)
    held = [d for d in documents if place_in_slice(d.text) < 0.2]
    assert 5 < len(held) < 40
    tokens, _ = expected_of(tokenizer, [d for d in documents if d not in held])
    assert trained_on(shard) == tokens
    _, pieces = expected_of(tokenizer, held)
    assert rows_of(shard.slice(1000)) == pieces
    assert shard.progress.held_out == len(pieces)
    few = rows_of(shard.slice(3))
    assert few == [pieces[0], pieces[(len(pieces) - 1) // 2], pieces[-1]]


def test_nothing_is_held_out_without_early_stopping(tokenizer: Tokenizer, tmp_path: Path) -> None:
    shard = build(tokenizer, tmp_path, corpus(), 0.0)
    assert trained_on(shard) == expected_of(tokenizer, corpus())[0]
    assert shard.slice(10) is None
    assert not list(tmp_path.glob("*/held.bin"))


@pytest.mark.parametrize("count", [2, 3, 20, 90])
def test_at_least_one_document_is_held_out_however_small_the_share(
    tokenizer: Tokenizer, tmp_path: Path, count: int
) -> None:
    documents = corpus(count)
    shard = build(tokenizer, tmp_path, documents, 1e-9)
    lowest = min(documents, key=lambda d: place_in_slice(d.text))
    assert rows_of(shard.slice(100)) == expected_of(tokenizer, [lowest])[1]
    others, _ = expected_of(tokenizer, [d for d in documents if d is not lowest])
    if shard.progress.pending and shard.num_sequences == 1 and len(others) < 16:
        assert set(others) == set(shard.tokens.ravel().tolist())  # a few short pieces, repeated
    else:
        assert trained_on(shard) == others


@pytest.mark.parametrize("hold_out", [1e-9, 0.499999])
def test_a_shard_of_one_document_is_trained_on_and_has_no_slice(
    tokenizer: Tokenizer, tmp_path: Path, hold_out: float
) -> None:
    below = next(d for d in corpus() if place_in_slice(d.text) < 0.4 and len(d.text) > 40)
    shard = build(tokenizer, tmp_path, [below], hold_out)
    assert shard.slice(10) is None
    assert trained_on(shard) == expected_of(tokenizer, [below])[0]
    again = build(tokenizer, tmp_path, [], hold_out)  # from the cache
    assert again.tokens.tobytes() == shard.tokens.tobytes()


def test_a_shard_that_would_be_held_out_whole_is_trained_on_whole(tokenizer: Tokenizer, tmp_path: Path) -> None:
    documents = [d for d in corpus() if place_in_slice(d.text) < 0.3]
    shard = build(tokenizer, tmp_path, documents, 0.3)
    assert shard.slice(10) is None
    assert trained_on(shard) == expected_of(tokenizer, documents)[0]


class Interrupted(Exception):
    pass


@pytest.mark.parametrize("hold_out", [1e-9, 0.2])
@pytest.mark.parametrize("chunks", [1, 5, 12])
def test_an_interrupted_build_holds_out_the_same(
    tokenizer: Tokenizer, tmp_path: Path, chunks: int, hold_out: float
) -> None:
    whole = build(tokenizer, tmp_path / "whole", corpus(), hold_out)
    calls: list[ShardProgress] = []

    def interrupt(progress: ShardProgress) -> None:
        calls.append(progress)
        if len(calls) == chunks:
            raise Interrupted

    with pytest.raises(Interrupted):
        build_shard(
            corpus, tokenizer, DATA, ROUTER, None, P0,
            cache=tmp_path, key=f"{hold_out}", hold_out=hold_out, on_progress=interrupt,
        )  # fmt: skip
    with open(tmp_path / f"{hold_out}" / "held.bin", "ab") as file:
        file.write(b"torn")
    resumed = build(tokenizer, tmp_path, corpus(), hold_out)
    assert resumed.tokens.tobytes() == whole.tokens.tobytes()
    assert rows_of(resumed.slice(100)) == rows_of(whole.slice(100))


def test_a_shard_whose_slice_is_lost_is_built_again(tokenizer: Tokenizer, tmp_path: Path) -> None:
    whole = build(tokenizer, tmp_path, corpus(), 0.2)
    before = rows_of(whole.slice(100))
    (tmp_path / "0.2" / "held.bin").write_bytes(b"half")
    assert rows_of(build(tokenizer, tmp_path, corpus(), 0.2).slice(100)) == before


# ------------------------------------------------------------------------------------------------- what is kept, when


def test_the_best_is_the_first_of_the_lowest_losses() -> None:
    losses = [4.0, 3.5, 3.7, math.nan, 3.2, 3.2, math.inf, 3.9, 3.1999, 5.0]
    best = BestSoFar(1, 0)
    kept = [version for version, loss in enumerate(losses, 1) if best.note(version, False, loss)]
    assert kept == [1, 2, 5, 9]
    assert kept[-1] - 1 == int(np.nanargmin(losses))
    assert not BestSoFar(1, 0, 3.0).note(1, False, 3.0)  # after a restart, from what was kept
    assert BestSoFar(1, 0, 3.0).note(1, False, 2.9)


def test_a_path_is_scored_every_so_many_versions_and_once_at_the_end() -> None:
    best, scored = BestSoFar(3, 0), []
    for version, done in [(0, False), (1, False), (2, False), (3, False), (3, False), (8, False), (10, True)] * 2:
        if best.is_due(version, done):
            best.note(version, done, 1.0)
            scored.append((version, done))
        if done:
            break
    assert scored == [(3, False), (8, False), (10, True)]
    assert not best.is_due(10, True)
    assert BestSoFar(3, 10).is_due(10, True)  # a restart at the end cannot know whether it was
    assert not BestSoFar(3, 10).is_due(11, False)


# -------------------------------------------------------------------------------------------------------------- scoring


@pytest.fixture
def model() -> PathModel:
    config = ModelConfig(
        hidden_size=16, intermediate_size=16, num_hidden_layers=2, num_attention_heads=2, max_position_embeddings=16
    )
    levels = (LevelConfig(blocks=(0,), embedding=True), LevelConfig(blocks=(1,), head=True))
    path = PathModel(build_network(config, 50, seed=0), levels)
    generator = torch.Generator().manual_seed(0)
    for level in range(2):  # a new head is zero and likes all tokens the same
        path.load(level, 0.3 * torch.randn(path.size(level), generator=generator))
    return path


def pieces() -> EvaluationSet:
    tokens = np.random.default_rng(0).integers(0, 50, (6, 16))
    return EvaluationSet(tokens, np.array([16, 16, 9, 5, 16, 12]), ("",) * 6)


def test_the_agreed_modules_are_scored_and_local_progress_stays(model: PathModel) -> None:
    base = {m: ModuleState.seed(model.vector(m.level)) for m in (M0, M1)}
    expected = loss_on(model, pieces(), 4)
    assert expected == loss_on(model, pieces(), 4) > 0
    model.network.train()
    for module in base:
        model.load(module.level, base[module].params * 1.5)
    progress = [model.vector(level) for level in range(2)]
    assert loss_on(model, pieces(), 4) != expected
    assert score_agreed(model, base, pieces(), 4) == expected
    assert all(torch.equal(model.vector(level), progress[level]) for level in range(2))
    assert model.network.training


# --------------------------------------------------------------------------------------------------- snapshots as bytes


def snapshot(model: PathModel, loss: float = 3.25, path: int = 0) -> Snapshot:
    params = {m: model.vector(m.level) for m in (M0, M1)}
    return Snapshot(RUN, 1, PathIndex(path), loss, {M0: 7, M1: 8}, params)


def test_a_snapshot_survives_writing_and_reading(model: PathModel, tmp_path: Path) -> None:
    kept = snapshot(model)
    data = snapshot_to_bytes(kept)
    assert data == snapshot_to_bytes(snapshot(model))
    file = snapshot_file(tmp_path, 1, P0)
    assert load_snapshot(file, RUN) is None
    write_whole(file, data, durable=True)
    read = load_snapshot(file, RUN)
    assert read is not None
    assert (read.run, read.stage, read.path, read.loss, read.versions) == (RUN, 1, 0, 3.25, {M0: 7, M1: 8})
    assert all(torch.equal(read.params[m], kept.params[m]) for m in (M0, M1))
    assert misfit(read, model, grid([1, 1])) is None
    file.write_bytes(data[:-3])
    with pytest.raises(CheckpointError, match=r"stage-1-path-0.safetensors cannot be used: .*move it away"):
        load_snapshot(file, RUN)


def malformed(model: PathModel) -> dict[str, bytes]:
    """Everything but a snapshot of our run."""
    good = snapshot_to_bytes(snapshot(model))
    tensors = {str(m): model.vector(m.level) for m in (M0, M1)}
    empty = json.dumps({"format": 1, "digest": "", "body": ""})
    altered = bytearray(good)
    altered[-1] ^= 1
    other = snapshot_to_bytes(Snapshot("other:run", 1, P0, 3.0, {M0: 1, M1: 1}, snapshot(model).params))
    return {
        "nothing": b"",
        "text": b"x" * 100,
        "short": good[: len(good) // 2],
        "altered": bytes(altered),
        "no metadata": save(tensors),
        "not JSON": save(tensors, {"snapshot": "{"}),
        "a list": save(tensors, {"snapshot": "[]"}),
        "deep": save(tensors, {"snapshot": "[" * 100_000}),
        "half": save(tensors, {"snapshot": json.dumps({"format": 1, "digest": ""})}),
        "another format": save(tensors, {"snapshot": json.dumps({"format": 2, "digest": "", "body": ""})}),
        "another type": save({"L0M0": torch.zeros(3, dtype=torch.bool)}, {"snapshot": empty}),
        "another run": other,
        "nan": snapshot_to_bytes(snapshot(model, math.nan)),
        "below zero": snapshot_to_bytes(snapshot(model, -1.0)),
        "a module without a version": snapshot_to_bytes(Snapshot(RUN, 1, P0, 1.0, {M0: 1}, snapshot(model).params)),
    }  # fmt: skip


def test_what_is_not_a_snapshot_of_the_run_is_refused(model: PathModel) -> None:
    refused = set()
    for name, data in malformed(model).items():
        with suppress(ValueError):
            snapshot_from_bytes(data, RUN)
            continue
        refused.add(name)
    assert refused == set(malformed(model))


def test_a_snapshot_must_fit_model_and_path_table(model: PathModel) -> None:
    table = grid([2, 1])
    good = snapshot(model)
    assert misfit(good, model, table) is None
    assert misfit(snapshot(model, path=9), model, table) == "there is no path 9"
    assert misfit(snapshot(model, path=1), model, table) == "its modules are not those of path 1"
    short = Snapshot(RUN, 1, P0, 1.0, good.versions, {**good.params, M0: torch.zeros(3)})
    assert "its L0M0 has 3 parameters" in str(misfit(short, model, table))
    broken = Snapshot(RUN, 1, P0, 1.0, good.versions, {**good.params, M1: good.params[M1] * math.nan})
    assert "not finite" in str(misfit(broken, model, table))


@pytest.mark.parametrize(
    "statement",
    [
        b"",
        b"[]",
        b'{"path": 0}',
        b'{"path": -1, "loss": 1.0, "snapshot": "%s"}' % (b"a" * 64),
        b'{"path": 0, "loss": NaN, "snapshot": "%s"}' % (b"a" * 64),
        b'{"path": 0, "loss": -1.0, "snapshot": "%s"}' % (b"a" * 64),
        b'{"path": 0, "loss": Infinity, "snapshot": "%s"}' % (b"a" * 64),
        b'{"path": 0, "loss": 1.0, "snapshot": "../../etc/passwd"}',
        b'{"path": 0, "loss": 1.0, "snapshot": "%s", "more": 1}' % (b"a" * 64),
    ],
)
def test_a_malformed_statement_is_refused(statement: bytes) -> None:
    with pytest.raises(ValueError, match="SnapshotStatement"):
        SnapshotStatement.model_validate_json(statement)
    good = SnapshotStatement(path=0, loss=1.5, snapshot="a" * 64)
    assert SnapshotStatement.model_validate_json(good.to_bytes()) == good
    assert len(good.to_bytes()) < 512
