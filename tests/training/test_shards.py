import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer

from dipaco_swarm.algorithm.paths import PathIndex
from dipaco_swarm.errors import DataError, HomeError
from dipaco_swarm.run.config import DataConfig, RouterConfig
from dipaco_swarm.training import documents as documents_module
from dipaco_swarm.training import pieces
from dipaco_swarm.training.documents import Document, split_of
from dipaco_swarm.training.packing import ShardProgress
from dipaco_swarm.training.pieces import (
    EvaluationSet,
    cut_into_pieces,
    evaluation_pieces,
    prefixes_of,
    routing_pieces,
    routing_prefixes,
    text_characters,
)
from dipaco_swarm.training.shards import Shard, ShardRecipe, build_shard
from dipaco_swarm.training.tokenizer import end_of_text_id, load_tokenizer, train_tokenizer

DATA = DataConfig(source="python", sequence_length=16, holdout=0.2, routing_sample=0.2)
ROUTER = RouterConfig(prefix_tokens=4)
P0, P1 = PathIndex(0), PathIndex(1)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return load_tokenizer(train_tokenizer(["plain letters"], 257))  # one token for each byte


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents_module, "CHUNK_DOCUMENTS", 8)


def corpus(count: int = 60) -> list[Document]:
    """Documents of 3 to 62 letters, of two domains."""
    return [Document(f"{'ab'[i % 2]}{i:02d}" + "xyz"[i % 3] * (i * 7 % 60), "ab"[i % 2]) for i in range(count)]


def by_first_letter(prefixes: NDArray[np.int64]) -> NDArray[np.int64]:
    return prefixes[:, 0] % 2


def build(tokenizer: Tokenizer, cache: Path, **changes: Any) -> Shard:
    settings: dict[str, Any] = {
        "documents": corpus,
        "tokenizer": tokenizer,
        "data": DATA,
        "router_config": ROUTER,
        "assign": by_first_letter,
        "path": P0,
        "cache": cache,
        "key": "key",
    }
    return build_shard(**{**settings, **changes})


def training_pieces(tokenizer: Tokenizer) -> list[list[int]]:
    training = [d.text for d in corpus() if split_of(d.text, DATA) == "train"]
    return [p.tolist() for text in training for p in cut_into_pieces(np.array(tokenizer.encode(text).ids), 16, 4)]


def test_a_document_is_cut_into_consecutive_pieces_and_a_short_end_is_dropped() -> None:
    ten = np.arange(10)
    assert [piece.tolist() for piece in cut_into_pieces(ten, 4, 1)] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert len(cut_into_pieces(ten, 4, 2)) == 2  # nothing would follow the prefix of [8, 9]
    assert cut_into_pieces(ten[:0], 4, 1) == []
    assert prefixes_of([ten[:3], ten[5:9]], 2).tolist() == [[0, 1], [5, 6]]
    assert prefixes_of([], 2).shape == (0, 2)


def test_a_shard_holds_the_pieces_of_its_path_and_no_others(tokenizer: Tokenizer, tmp_path: Path) -> None:
    end = end_of_text_id(tokenizer)
    for path in (P0, P1):
        mine = [piece for piece in training_pieces(tokenizer) if piece[0] % 2 == path]
        shard = build(tokenizer, tmp_path, path=path, key=f"path{path}")
        tokens = shard.tokens.ravel().tolist()
        full = [token for piece in mine if len(piece) == 16 for token in piece]
        short = [token for piece in mine if len(piece) < 16 for token in [*piece, end]]
        assert sorted(tokens + list(shard.progress.pending)) == sorted(full + short)
        assert shard.num_sequences == len(full) // 16 + len(short) // 16
        assert shard.num_tokens == 16 * shard.num_sequences
        assert shard.progress.pieces_kept == len(mine)


def test_every_piece_of_an_overlapping_shard_goes_to_several_paths(tokenizer: Tokenizer, tmp_path: Path) -> None:
    def both(prefixes: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.stack([prefixes[:, 0] % 2, np.full(len(prefixes), 2)], axis=1)

    everything = build(tokenizer, tmp_path, assign=both, path=PathIndex(2))
    assert everything.progress.pieces_kept == everything.progress.pieces
    half = build(tokenizer, tmp_path, assign=both, path=P1, key="half")
    assert 0 < half.progress.pieces_kept < half.progress.pieces


def test_held_out_and_routing_documents_are_never_trained_on(tokenizer: Tokenizer, tmp_path: Path) -> None:
    asked: list[NDArray[np.int64]] = []

    def all_mine(prefixes: NDArray[np.int64]) -> NDArray[np.int64]:
        asked.append(prefixes)
        return np.zeros(len(prefixes), dtype=np.int64)

    shard = build(tokenizer, tmp_path, assign=all_mine)
    routed = {tuple(row) for row in np.concatenate(asked).tolist()}
    others = [d for d in corpus() if split_of(d.text, DATA) != "train" and len(d.text) > 4]
    assert others
    assert not routed & {tuple(tokenizer.encode(d.text).ids[:4]) for d in others}
    assert shard.progress.documents == 60


def test_without_a_router_all_pieces_belong_to_the_path(tokenizer: Tokenizer, tmp_path: Path) -> None:
    shard = build(tokenizer, tmp_path, assign=None)
    assert shard.progress.pieces_kept == shard.progress.pieces == len(training_pieces(tokenizer))


class Interrupted(Exception):
    pass


@pytest.mark.parametrize("chunks", [1, 3, 8])
def test_an_interrupted_build_goes_on_and_gives_the_same_bytes(
    tokenizer: Tokenizer, tmp_path: Path, chunks: int
) -> None:
    whole = build(tokenizer, tmp_path, key="whole")
    calls: list[ShardProgress] = []

    def interrupt(progress: ShardProgress) -> None:
        calls.append(progress)
        if len(calls) == chunks:
            raise Interrupted

    with pytest.raises(Interrupted):
        build(tokenizer, tmp_path, on_progress=interrupt)
    with open(tmp_path / "key" / "tokens.bin", "ab") as file:
        file.write(b"torn")  # killed in the middle of the next write
    resumed: list[int] = []
    shard = build(tokenizer, tmp_path, on_progress=lambda progress: resumed.append(progress.documents))
    assert [p.documents for p in calls] + resumed == [8, 16, 24, 32, 40, 48, 56, 60]
    assert shard.tokens.tobytes() == whole.tokens.tobytes()
    assert shard.progress == whole.progress


def test_a_build_starts_afresh_when_the_documents_have_changed(tokenizer: Tokenizer, tmp_path: Path) -> None:
    def interrupt(progress: ShardProgress) -> None:
        raise Interrupted

    with pytest.raises(Interrupted):
        build(tokenizer, tmp_path, on_progress=interrupt)
    changed = corpus()[3:]
    shard = build(tokenizer, tmp_path, documents=lambda: changed)
    assert shard.tokens.tobytes() == build(tokenizer, tmp_path, documents=lambda: changed, key="new").tokens.tobytes()


@pytest.mark.parametrize("damage", ["", '{"documents": 8', '{"documents": 8}', "[]"])
def test_a_torn_progress_file_means_starting_afresh(tokenizer: Tokenizer, tmp_path: Path, damage: str) -> None:
    (tmp_path / "key").mkdir()
    (tmp_path / "key" / "progress.json").write_text(damage)
    assert build(tokenizer, tmp_path).tokens.tobytes() == build(tokenizer, tmp_path, key="new").tokens.tobytes()


def test_a_finished_shard_is_not_built_again(tokenizer: Tokenizer, tmp_path: Path) -> None:
    first = build(tokenizer, tmp_path)

    def never() -> Iterator[Document]:
        raise AssertionError("the documents were read again")

    again = build(tokenizer, tmp_path, documents=never)
    assert again.tokens.tobytes() == first.tokens.tobytes()
    assert again.progress == first.progress


def test_a_finished_shard_that_lost_its_tokens_is_built_again(tokenizer: Tokenizer, tmp_path: Path) -> None:
    before = build(tokenizer, tmp_path).tokens.tobytes()
    (tmp_path / "key" / "tokens.bin").write_bytes(before[:10])
    assert build(tokenizer, tmp_path).tokens.tobytes() == before


def test_recipes_that_differ_have_different_keys() -> None:
    recipe = ShardRecipe(DATA, ROUTER, "t", "r", P0)
    others = [
        ShardRecipe(DATA.model_copy(update={"holdout": 0.3}), ROUTER, "t", "r", P0),
        ShardRecipe(DATA, RouterConfig(prefix_tokens=5), "t", "r", P0),
        ShardRecipe(DATA, ROUTER, "u", "r", P0),
        ShardRecipe(DATA, ROUTER, "t", None, P0),
        ShardRecipe(DATA, ROUTER, "t", "r", P1),
        ShardRecipe(DATA, ROUTER, "t", "r", P0, overlap=2),
    ]
    assert len({r.key() for r in [recipe, *others]}) == 7
    assert recipe.key() == ShardRecipe(DATA, RouterConfig(prefix_tokens=4, components=3), "t", "r", P0).key()


def test_a_large_vocabulary_is_kept_in_four_bytes(tokenizer: Tokenizer, tmp_path: Path) -> None:
    large = Tokenizer.from_str(tokenizer.to_str())
    large.add_tokens([f"token{i}" for i in range(2**16)])
    shard = build(large, tmp_path)
    assert shard.tokens.dtype == np.uint32
    assert shard.tokens.tolist() == build(tokenizer, tmp_path, key="small").tokens.tolist()


def test_a_few_short_pieces_make_one_sequence(tokenizer: Tokenizer, tmp_path: Path) -> None:
    text = next(text for i in range(99) if split_of(text := f"few {i}", DATA) == "train")
    shard = build(tokenizer, tmp_path, documents=lambda: [Document(text, "a")], assign=None)
    ids = [*tokenizer.encode(text).ids, end_of_text_id(tokenizer)]
    assert shard.tokens.tolist() == [(ids * 4)[:16]]


def test_a_path_without_documents_says_what_to_do(tokenizer: Tokenizer, tmp_path: Path) -> None:
    for _ in range(2):  # the second time from what the first has saved
        with pytest.raises(DataError, match=r"path 7 has no documents: .* of 60 documents .*--path auto"):
            build(tokenizer, tmp_path, path=PathIndex(7))
    with pytest.raises(DataError, match="no documents at all"):
        build(tokenizer, tmp_path, documents=list, key="none")
    with pytest.raises(DataError, match="none of 3 documents has a training piece"):
        build(tokenizer, tmp_path, documents=lambda: [Document("a", "")] * 3, key="short")


def test_a_cache_that_cannot_be_written_says_so(tokenizer: Tokenizer, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(HomeError, match=r"cannot be written to .*file"):
        build(tokenizer, tmp_path / "file")


def test_every_sequence_comes_once_in_an_epoch_and_epochs_differ() -> None:
    shard = Shard(np.arange(10, dtype=np.uint16)[:, None], ShardProgress())
    seen = torch.cat(list(islice(shard.batches(4, seed=0), 5))).ravel().tolist()  # 20 sequences, two epochs
    assert sorted(seen[:10]) == sorted(seen[10:]) == list(range(10))
    assert seen[:10] != seen[10:]


def test_resumed_batches_are_those_of_an_uninterrupted_run() -> None:
    shard = Shard(np.arange(7 * 3, dtype=np.uint16).reshape(7, 3), ShardProgress())
    whole = list(islice(shard.batches(4, seed=5), 12))
    assert whole[0].shape == (4, 3)
    assert whole[0].dtype == torch.int64
    for start in range(12):
        assert torch.equal(next(shard.batches(4, seed=5, start=start)), whole[start])
    assert torch.equal(next(shard.batches(4, seed=5, start=10**12)), next(shard.batches(4, seed=5, start=10**12)))
    assert not torch.equal(whole[0], next(shard.batches(4, seed=6)))


def test_a_batch_may_be_larger_than_the_shard() -> None:
    shard = Shard(np.arange(3, dtype=np.uint16)[:, None], ShardProgress())
    assert sorted(next(shard.batches(6, seed=0)).ravel().tolist()) == [0, 0, 1, 1, 2, 2]


def test_evaluation_pieces_are_held_out_padded_and_limited_by_domain(tokenizer: Tokenizer) -> None:
    found = evaluation_pieces(corpus(), tokenizer, DATA, ROUTER, per_domain=5)
    assert found.tokens.shape == (10, 16)
    assert sorted(found.domains) == ["a"] * 5 + ["b"] * 5
    held_out = {d.text for d in corpus() if split_of(d.text, DATA) == "holdout"}
    for row, length in zip(found.tokens.tolist(), found.lengths.tolist(), strict=True):
        assert 4 < length <= 16
        assert any(tokenizer.decode(row[:length]) in text for text in held_out)
        assert not any(row[length:])


def test_an_endless_source_ends_when_all_domains_are_full(
    tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pieces, "SETTLED_DOCUMENTS", 50)

    def endless() -> Iterator[Document]:
        for i in range(10**9):
            yield Document(f"document {i} and more", "a")

    assert len(evaluation_pieces(endless(), tokenizer, DATA, ROUTER, per_domain=3).tokens) == 3


def test_routing_prefixes_are_the_beginnings_of_routing_pieces(tokenizer: Tokenizer) -> None:
    pieces = routing_pieces(corpus(), tokenizer, DATA, ROUTER)
    assert routing_prefixes(corpus(), tokenizer, DATA, ROUTER).tolist() == pieces.tokens[:, :4].tolist()
    few = RouterConfig(prefix_tokens=4, max_documents=3)
    assert routing_prefixes(corpus(), tokenizer, DATA, few).shape == (3, 4)


def test_a_text_has_as_many_characters_as_fill_a_sequence_by_the_runs_own_tokenizer() -> None:
    """Where tokens stand for few characters, texts of four for each token would be several sequences."""
    text, length = "one two three four five six seven eight nine ten eleven twelve " * 40, 32
    for size, least in ((257, 1.0), (400, 3.0)):
        of_text = load_tokenizer(train_tokenizer([text], size))
        ids = np.array(of_text.encode(text).ids)
        rows = ids[: len(ids) // length * length].reshape(-1, length)
        sample = EvaluationSet(rows, np.full(len(rows), length), ("",) * len(rows))
        characters = text_characters(sample, of_text)
        assert characters >= least * length
        parts = [text[at : at + characters] for at in range(0, len(text) - characters, characters)]
        mean = np.mean([len(of_text.encode(part).ids) for part in parts])
        assert length <= mean < 1.25 * length


def test_no_held_out_document_is_an_error_that_names_the_share(tokenizer: Tokenizer) -> None:
    with pytest.raises(DataError, match=r"none of 0 documents .* data.holdout=0.2"):
        evaluation_pieces([], tokenizer, DATA, ROUTER, per_domain=5)
    with pytest.raises(DataError, match=r"none of 1 documents .* data.routing_sample=0.2"):
        routing_prefixes([Document("a", "a")], tokenizer, DATA, ROUTER)


def test_two_peers_of_a_machine_build_a_shard_once(tokenizer: Tokenizer, tmp_path: Path) -> None:
    readers: list[int] = []
    begun = threading.Event()

    def documents() -> Iterator[Document]:
        readers.append(1)
        begun.set()
        time.sleep(0.2)  # long enough for the other to find the folder taken
        yield from corpus()

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(build, tokenizer, tmp_path, documents=documents)
        assert begun.wait(5)
        second = pool.submit(build, tokenizer, tmp_path, documents=documents)
        assert first.result(10).tokens.tobytes() == second.result(10).tokens.tobytes()
    assert readers == [1]
