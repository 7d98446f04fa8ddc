import json
from collections import Counter
from itertools import islice
from pathlib import Path

import datasets
import pytest

from dipaco_swarm.errors import DataError
from dipaco_swarm.run.config import DataConfig
from dipaco_swarm.training.documents import DOCUMENT_CHARACTERS, Document, read_documents, split_of

PYTHON = DataConfig(source="python")


def write(folder: Path, **texts: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        (folder / name.replace("_", ".")).write_text(text, encoding="utf-8")


def texts(data: DataConfig, base: Path) -> list[str]:
    return [document.text for document in read_documents(data, base=base)]


def test_each_text_file_is_one_document_named_after_its_file(tmp_path: Path) -> None:
    write(tmp_path, b_txt="second\nline\n", a_txt="first", blank_txt=" \n\n")
    documents = list(read_documents(DataConfig(source="text", path="*.txt"), base=tmp_path))
    assert documents == [Document("first", "a"), Document("second\nline\n", "b")]


def test_documents_of_several_folders_come_in_turns(tmp_path: Path) -> None:
    write(tmp_path / "en", a_txt="one", b_txt="two", c_txt="three")
    write(tmp_path / "de", a_txt="eins")
    documents = list(read_documents(DataConfig(source="text", path="**/*.txt"), base=tmp_path))
    assert documents == [Document("eins", "de"), Document("one", "en"), Document("two", "en"), Document("three", "en")]


def test_a_long_file_becomes_several_documents_and_nothing_is_lost(tmp_path: Path) -> None:
    book = "".join(f"line {i}\n" for i in range(10_000)) + "x" * (2 * DOCUMENT_CHARACTERS)
    write(tmp_path, book_txt=book)
    parts = texts(DataConfig(source="text", path="book.txt"), tmp_path)
    assert "".join(parts) == book
    assert max(map(len, parts)) <= DOCUMENT_CHARACTERS
    assert parts[0].endswith("\n")


def test_json_lines_and_parquet_give_their_column(tmp_path: Path) -> None:
    rows = [{"body": "alpha", "n": 1}, {"body": None, "n": 2}, {"body": "beta", "n": 3}]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    datasets.Dataset.from_list(rows).to_parquet(str(tmp_path / "a.parquet"))
    for source in ("jsonl", "parquet"):
        data = DataConfig.model_validate({"source": source, "path": f"*.{source}", "column": "body"})
        assert list(read_documents(data, base=tmp_path)) == [Document("alpha", "a"), Document("beta", "a")]


def test_a_dataset_is_read_by_name(tmp_path: Path) -> None:
    """A local folder stands for a name on the hub; both go through the same call."""
    write(tmp_path / "corpus", train_jsonl='{"text": "hello"}\n')
    data = DataConfig(source="huggingface", path=str(tmp_path / "corpus"))
    assert list(read_documents(data)) == [Document("hello", "corpus")]


def test_a_missing_column_is_named_with_the_ones_there_are(tmp_path: Path) -> None:
    write(tmp_path, a_jsonl='{"body": "x", "n": 1}\n')
    with pytest.raises(DataError, match=r"no column \"text\" .*can be one of \['body', 'n'\]"):
        texts(DataConfig(source="jsonl", path="a.jsonl"), tmp_path)
    with pytest.raises(DataError, match='column "n" holds int, not text'):
        texts(DataConfig(source="jsonl", path="a.jsonl", column="n"), tmp_path)


def test_a_pattern_without_files_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r'no file matches data.path="\*.txt"'):
        texts(DataConfig(source="text", path="*.txt"), tmp_path)


@pytest.mark.parametrize("source", ["jsonl", "parquet", "text"])
def test_an_unreadable_file_is_named(tmp_path: Path, source: str) -> None:
    (tmp_path / "bad.bin").write_bytes(b'{"text": "\xff\xfe broken')
    with pytest.raises(DataError, match=r"cannot be read \(.*bad.bin"):
        texts(DataConfig.model_validate({"source": source, "path": "bad.bin"}), tmp_path)


def test_an_unknown_dataset_is_named(tmp_path: Path) -> None:
    data = DataConfig(source="huggingface", path=str(tmp_path / "nowhere"))
    with pytest.raises(DataError, match=r"cannot be read \(.*nowhere"):
        list(read_documents(data))


def test_at_most_max_documents_are_read(tmp_path: Path) -> None:
    write(tmp_path, a_txt="1", b_txt="2", c_txt="3")
    assert texts(DataConfig(source="text", path="*.txt", max_documents=2), tmp_path) == ["1", "2"]


def test_splits_have_about_their_shares_and_follow_from_the_text() -> None:
    data = DataConfig(source="python", holdout=0.1, routing_sample=0.2)
    count = Counter(split_of(f"document {i}", data) for i in range(5000))
    assert count["holdout"] / 5000 == pytest.approx(0.1, abs=0.02)
    assert count["routing"] / 5000 == pytest.approx(0.2, abs=0.02)
    assert split_of("a", data) == split_of("a", data)
    assert split_of("\ud800", data)  # a lone surrogate, as json can bring, has a place too


def test_raising_one_share_moves_no_document_into_training() -> None:
    small = DataConfig(source="python", holdout=0.05, routing_sample=0.05)
    large = DataConfig(source="python", holdout=0.05, routing_sample=0.1)
    moved = {(split_of(str(i), small), split_of(str(i), large)) for i in range(2000)}
    assert moved == {("train", "train"), ("train", "routing"), ("routing", "routing"), ("holdout", "holdout")}


def test_the_python_installation_begins_as_a_mixture_and_is_the_same_twice() -> None:
    first, second = (list(islice(read_documents(PYTHON), 300)) for _ in range(2))
    assert first == second
    domains = Counter(document.domain for document in first)
    assert {"stdlib", "packages", "c++", "prose"} <= set(domains)
    assert len(domains) <= 8
    assert max(domains.values()) < 150
    assert len({document.text for document in first}) == 300
    assert all("\0" not in document.text for document in first)
