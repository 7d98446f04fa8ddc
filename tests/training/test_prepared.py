"""A corpus that is split by path once: the texts that routing finds, whatever interrupted it, and read by path."""

import json
from collections import Counter
from itertools import chain
from pathlib import Path

import datasets
import pytest

from dipaco_swarm.algorithm.paths import PathIndex
from dipaco_swarm.errors import DataError, UsageError
from dipaco_swarm.events.joining import NotPrepared
from dipaco_swarm.operator import sharding
from dipaco_swarm.operator.sharding import Sharding, SoFar, shares_of
from dipaco_swarm.peer.reading import is_read_beside
from dipaco_swarm.run.data import DataConfig
from dipaco_swarm.run.manifest import Manifest
from dipaco_swarm.run.reach import Reach
from dipaco_swarm.training.documents import Document, cut, portions_of, split_of
from dipaco_swarm.training.encoding import encoder
from dipaco_swarm.training.prepared import INDEX, Index, for_reading
from dipaco_swarm.training.reading.cheap import CheapRouting
from dipaco_swarm.training.routed import load_routing, shard_recipe
from tests.dataset_hub import NAME, dataset_hub
from tests.training.test_routed import Run

LENGTH = 16


@pytest.fixture(scope="module")
def run() -> Run:
    return Run()


def texts(count: int = 900) -> list[str]:
    return [f"{'abcd'[i % 4] * (1 + i % 3)}{'wxyz'[i % 4] * (i * 7 % 160)} {i}" for i in range(count)]


@pytest.fixture
def manifest(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Manifest:
    """Of a corpus in two files."""
    monkeypatch.setattr("dipaco_swarm.training.documents.CHUNK_DOCUMENTS", 32)
    monkeypatch.setattr("dipaco_swarm.training.sources.files.PORTION_BYTES", 5000)
    for name, some in (("a", texts()[:500]), ("b", texts()[500:])):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in some))
    data = DataConfig(
        source="jsonl", path=f"{tmp_path}/*.jsonl", sequence_length=LENGTH, holdout=0.1, routing_sample=0.1
    )
    config = run.manifest.config.model_copy(update={"data": data})
    return run.manifest.model_copy(update={"config": config})


def with_prepared(manifest: Manifest, name: str) -> Manifest:
    data = manifest.config.data.model_copy(update={"prepared": name})
    return manifest.model_copy(update={"config": manifest.config.model_copy(update={"data": data})})


def split(manifest: Manifest, run: Run, out: Path) -> Index:
    return Sharding(manifest, run.blobs.__getitem__, out).work(lambda so_far: None)


def contents(out: Path) -> dict[str, bytes]:
    return {str(file.relative_to(out)): file.read_bytes() for file in sorted(out.rglob("*")) if file.is_file()}


def read(manifest: Manifest, path: int, reach: Reach) -> list[str]:
    reading, why = for_reading(manifest, PathIndex(path), reach)
    assert why is None
    assert reading.stage.router is None
    documents = [document for portion in portions_of(reading.rules.data, reach=reach) for document in portion.read()]
    assert {split_of(document.text, reading.rules.data) for document in documents} == {"train"}
    return [document.text for document in documents]


def test_each_path_has_the_training_texts_that_its_router_gives_it(
    run: Run, manifest: Manifest, tmp_path: Path
) -> None:
    told: list[SoFar] = []
    index = Sharding(manifest, run.blobs.__getitem__, tmp_path / "out").work(told.append)
    training = [Document(text, "") for text in texts() if split_of(text, manifest.rules.data) == "train"]
    assert (index.documents, told[-1].documents) == (len(training), 900)
    routing = load_routing(manifest, manifest.stage, run.blobs.__getitem__)
    encode = encoder(routing.tokenizer)
    prepared = with_prepared(manifest, "out")
    for path in range(4):
        found = read(prepared, path, Reach(tmp_path, fenced=True))
        whole = CheapRouting(encode, routing.assign, PathIndex(path), LENGTH, 4).find(training).texts
        assert Counter(ids.tobytes() for ids in encode(found)) == Counter(ids.tobytes() for ids in whole)
        assert index.paths[path].texts == len(found) > 20
    assert sum(share for _, share in shares_of(index)) == pytest.approx(1)


@pytest.mark.parametrize("after", [1, 2, 5, 13])
def test_an_interrupted_split_goes_on_and_ends_with_the_same_files(
    run: Run, manifest: Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    monkeypatch.setattr(sharding, "FLUSH_BYTES", 3000)
    monkeypatch.setattr(sharding, "PART_BYTES", 8000)
    split(manifest, run, tmp_path / "whole")
    assert len(list((tmp_path / "whole").glob("path-000/*.parquet"))) > 1
    calls = 0

    def interrupt(so_far: SoFar) -> None:
        nonlocal calls
        calls += 1
        if calls % after == 0:
            raise KeyboardInterrupt

    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            Sharding(manifest, run.blobs.__getitem__, tmp_path / "out").work(interrupt)
        with open(tmp_path / "out" / "rows" / "0.jsonl", "ab") as rows:
            rows.write(b"torn")
    split(manifest, run, tmp_path / "out")
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")
    again = Sharding(manifest, run.blobs.__getitem__, tmp_path / "out")
    assert again.is_whole
    assert not (tmp_path / "out" / "rows").exists()


def test_a_text_of_two_paths_is_in_both(run: Run, manifest: Manifest, tmp_path: Path) -> None:
    twice = manifest.model_copy(update={"stages": (manifest.stage.model_copy(update={"overlap": 2}),)})
    one, two = split(manifest, run, tmp_path / "one"), split(twice, run, tmp_path / "two")
    assert sum(path.texts for path in two.paths) == 2 * sum(path.texts for path in one.paths)
    _, why = for_reading(with_prepared(manifest, str(tmp_path / "two")), PathIndex(0))
    assert why is not None
    assert "another overlap made them" in why


def test_the_folder_is_a_data_set_with_a_configuration_for_each_path(
    run: Run, manifest: Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = split(manifest, run, tmp_path / "out")
    rows = datasets.load_dataset(str(tmp_path / "out"), name="path-002", split="train", streaming=True)
    here = [row["text"] for row in rows]
    assert len(here) == index.paths[2].texts
    prepared = with_prepared(manifest, NAME)
    with dataset_hub(monkeypatch, tmp_path / "cache") as hub:
        hub.files[INDEX] = (tmp_path / "out" / INDEX).read_bytes()
        reading, why = for_reading(prepared, PathIndex(2), Reach(None, fenced=True))
    assert for_reading(prepared, PathIndex(2), Reach(None, fenced=True)) == (reading, why), "it is known, without a hub"
    assert why is None
    data = reading.rules.data
    assert (data.source, data.path, data.config) == ("huggingface", NAME, "path-002")
    assert is_read_beside(reading.rules)
    assert shard_recipe(reading, reading.stage, PathIndex(2)) != shard_recipe(manifest, manifest.stage, PathIndex(2))


def test_an_index_that_is_none_is_not_fetched(
    run: Run, manifest: Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1.5 GB of blanks were, and stayed in the cache of the hub."""
    with dataset_hub(monkeypatch, tmp_path / "cache") as hub:
        hub.files[INDEX], hub.sizes[INDEX] = b" ", 1500 << 20
        _, why = for_reading(with_prepared(manifest, NAME), PathIndex(0), Reach(fenced=True))
    assert "is larger than 64 MB" in str(why)
    assert not any(asked.startswith("GET") for asked in hub.asked)
    monkeypatch.setattr("dipaco_swarm.training.prepared.LARGEST_INDEX", 100)
    split(manifest, run, tmp_path / "out")
    assert "is larger than" in str(for_reading(with_prepared(manifest, "out"), PathIndex(0), Reach(tmp_path))[1])


def test_whoever_cannot_use_it_routes_documents_itself_and_is_told_why(
    run: Run, manifest: Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert for_reading(manifest, PathIndex(0)) == (manifest, None)
    reach = Reach(tmp_path, fenced=True)
    for name, reason in (("nowhere", "No such file"), ("../out", "outside of"), ("/etc", "outside of")):
        same, why = for_reading(with_prepared(manifest, name), PathIndex(0), reach)
        assert same.stage.router is not None
        assert reason in str(why)
    split(manifest, run, tmp_path / "out")
    _, why = for_reading(with_prepared(manifest, "out"), PathIndex(0), Reach(fenced=True))
    assert NotPrepared(str(why)).line.endswith("--data-root"), "the line ends before it says what to do"
    prepared = with_prepared(manifest, "out")
    other = prepared.model_copy(update={"tokenizer": "a" * 64})
    assert "another tokenizer made them" in str(for_reading(other, PathIndex(0), reach)[1])
    single = prepared.model_copy(update={"stages": (manifest.stage.model_copy(update={"router": None}),)})
    assert for_reading(single, PathIndex(0), reach) == (single, None)
    (tmp_path / "out" / INDEX).write_text('{"format": 1}')
    assert f"{INDEX} of data.prepared='out' is none" in str(for_reading(prepared, PathIndex(0), reach)[1])


def test_a_folder_of_something_else_is_left_alone(run: Run, manifest: Manifest, tmp_path: Path) -> None:
    fetch = run.blobs.__getitem__
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("dear")
    with pytest.raises(UsageError, match=r"has other files in it, such as letter\.txt"):
        Sharding(manifest, fetch, tmp_path / "mine")
    split(manifest, run, tmp_path / "out")
    longer = manifest.config.data.model_copy(update={"sequence_length": 32})
    other = manifest.model_copy(update={"config": manifest.config.model_copy(update={"data": longer})})
    with pytest.raises(UsageError, match="begun with another sequence_length"):
        Sharding(other, fetch, tmp_path / "out")
    single = manifest.model_copy(update={"stages": (manifest.stage.model_copy(update={"router": None}),)})
    with pytest.raises(UsageError, match="nothing to split by"):
        Sharding(single, fetch, tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_documents_that_are_all_too_short_end_with_the_reason(run: Run, manifest: Manifest, tmp_path: Path) -> None:
    for file in tmp_path.glob("*.jsonl"):
        file.write_text('{"text": "ab"}\n' * 5)
    with pytest.raises(DataError, match="none of 10 documents is long enough"):
        split(manifest, run, tmp_path / "out")


def test_long_documents_are_cut_as_a_peer_cuts_them(run: Run, manifest: Manifest, tmp_path: Path) -> None:
    long = "".join(f"line {i} of a long document\n" for i in range(300))
    (tmp_path / "a.jsonl").write_text(json.dumps({"text": long}) + "\n")
    (tmp_path / "b.jsonl").write_text(json.dumps({"text": "x" * 40}) + "\n")
    split(manifest, run, tmp_path / "out")
    prepared = with_prepared(manifest, str(tmp_path / "out"))
    files = [Path(file).parent.name for file in contents(tmp_path / "out") if file.endswith("parquet")]
    found = chain.from_iterable(read(prepared, int(name[-3:]), Reach()) for name in files)
    wanted = [part.text for text in (long, "x" * 40) for part in cut(text, "", 4 * LENGTH)]
    assert set(found) <= set(wanted)
