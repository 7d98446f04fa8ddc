import gzip
import json
import time
from collections import Counter
from itertools import islice
from pathlib import Path

import datasets
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dipaco_swarm.errors import DataError
from dipaco_swarm.run.config import DataConfig
from dipaco_swarm.run.reach import Reach
from dipaco_swarm.training.documents import DOCUMENT_CHARACTERS, Document, cut, portions_of, read_documents, split_of
from dipaco_swarm.training.sources import files

PYTHON = DataConfig(source="python")


def write(folder: Path, **texts: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        (folder / name.replace("_", ".")).write_text(text, encoding="utf-8", newline="")


def texts(data: DataConfig, base: Path) -> list[str]:
    return [document.text for document in read_documents(data, reach=Reach(base))]


def test_each_text_file_is_one_document_named_after_its_file(tmp_path: Path) -> None:
    write(tmp_path, b_txt="second\nline\n", a_txt="first", blank_txt=" \n\n")
    documents = list(read_documents(DataConfig(source="text", path="*.txt"), reach=Reach(tmp_path)))
    assert documents == [Document("first", "a"), Document("second\nline\n", "b")]


def test_documents_of_several_folders_come_in_turns(tmp_path: Path) -> None:
    write(tmp_path / "en", a_txt="one", b_txt="two", c_txt="three")
    write(tmp_path / "de", a_txt="eins")
    documents = list(read_documents(DataConfig(source="text", path="**/*.txt"), reach=Reach(tmp_path)))
    assert documents == [Document("eins", "de"), Document("one", "en"), Document("two", "en"), Document("three", "en")]


def test_a_long_file_becomes_several_documents_and_nothing_is_lost(tmp_path: Path) -> None:
    book = "".join(f"line {i}\n" for i in range(10_000)) + "x" * (2 * DOCUMENT_CHARACTERS)
    write(tmp_path, book_txt=book)
    parts = texts(DataConfig(source="text", path="book.txt"), tmp_path)
    assert "".join(parts) == book
    assert max(map(len, parts)) <= DOCUMENT_CHARACTERS
    assert parts[0].endswith("\n")


def as_cut_before(text: str, longest: int) -> list[str]:
    """What `cut` has to find, as it was first written: the rest is copied for each piece."""
    pieces = []
    while text.strip():
        end = len(text)
        if end > longest:
            end = text.rfind("\n", 0, longest) + 1 or longest
        if not text[:end].isspace():
            pieces.append(text[:end])
        text = text[end:]
    return pieces


@given(st.text(alphabet="ab \n\r\t\u2003\x1c\x85", max_size=60), st.integers(1, 9))
def test_a_text_is_cut_where_it_always_was(text: str, longest: int) -> None:
    assert [document.text for document in cut(text, "d", longest)] == as_cut_before(text, longest)


def test_cutting_takes_time_in_proportion_to_the_text() -> None:
    began = time.process_time()
    assert sum(1 for _ in cut("a" * (16 << 20), "d", 256)) == 65536
    assert time.process_time() - began < 10.0  # as many copies of the rest are a quarter of an hour


def test_json_lines_and_parquet_give_their_column(tmp_path: Path) -> None:
    rows = [{"body": "alpha", "n": 1}, {"body": None, "n": 2}, {"body": "beta", "n": 3}]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    datasets.Dataset.from_list(rows).to_parquet(str(tmp_path / "a.parquet"))
    for source in ("jsonl", "parquet"):
        data = DataConfig.model_validate({"source": source, "path": f"*.{source}", "column": "body"})
        assert list(read_documents(data, reach=Reach(tmp_path))) == [Document("alpha", "a"), Document("beta", "a")]


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
    with pytest.raises(DataError, match=r"cannot be read \(.*bad.bin|bad.bin is not UTF-8 text \(byte 0xff\)"):
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


# ---------------------------------------------------------------------------------------------------------- portions


def in_portions(data: DataConfig, base: Path) -> list[list[str]]:
    """The texts of each portion, each read twice."""
    portions = portions_of(data, reach=Reach(base))
    assert len({portion.name for portion in portions}) == len(portions)
    found = [[document.text for document in portion.read()] for portion in portions]
    assert found == [[document.text for document in portion.read()] for portion in portions]
    return found


@pytest.mark.parametrize("size", [1, 7, 64, 300, 10**6])
@pytest.mark.parametrize("source", ["jsonl", "text"])
def test_ranges_of_lines_have_each_line_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, size: int
) -> None:
    monkeypatch.setattr(files, "PORTION_BYTES", size)
    lines = [f"line {i} " + "é" * (i * 7 % 30) for i in range(40)]
    rows = [json.dumps({"text": line}, ensure_ascii=i % 2 == 0) for i, line in enumerate(lines)]
    write(tmp_path, a_jsonl="\n".join(rows[:25]), b_jsonl="\r\n".join(rows[25:]) + "\r\n\n")
    write(tmp_path, a_text="\n".join(lines[:25]) + "\n", b_text="\r\n".join(lines[25:]))
    data = DataConfig(source=source, path=f"*.{source}")
    found = in_portions(data, tmp_path)
    assert (len(found) > 2) == (size < 10**6)
    whole = [text for portion in found for text in portion]
    if source == "jsonl":
        assert whole == lines
    else:
        assert "".join(whole).splitlines() == lines
    assert sorted(texts(data, tmp_path)) == sorted(whole)


def test_small_files_share_a_portion_and_row_groups_are_portions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for i in range(40):
        write(tmp_path / "texts", **{f"t{i:02d}_txt": f"text {i}"})
    assert list(map(len, in_portions(DataConfig(source="text", path="texts/*.txt"), tmp_path))) == [40]
    rows = [{"text": f"row {i}"} for i in range(50)]
    datasets.Dataset.from_list(rows).to_parquet(str(tmp_path / "a.parquet"), batch_size=20)
    monkeypatch.setattr(files, "PORTION_BYTES", 10)
    data = DataConfig(source="parquet", path="a.parquet")
    assert list(map(len, in_portions(data, tmp_path))) == [20, 20, 10]
    assert texts(data, tmp_path) == [row["text"] for row in rows]


def test_compressed_files_and_arrays_of_rows_are_a_portion_each(tmp_path: Path) -> None:
    rows = [{"text": f"row {i}"} for i in range(10)]
    (tmp_path / "a.jsonl").write_text(json.dumps(rows))
    with gzip.open(tmp_path / "b.jsonl.gz", "wt") as file:
        file.write("".join(json.dumps(row) + "\n" for row in rows))
    data = DataConfig(source="jsonl", path="*.jsonl*")
    expected = [row["text"] for row in rows]
    assert in_portions(data, tmp_path) == [expected, expected]
    assert [portion.size for portion in portions_of(data, reach=Reach(tmp_path))] == [None, None]


def test_the_shards_of_a_dataset_are_portions(tmp_path: Path) -> None:
    for i in range(3):
        write(tmp_path / "set", **{f"part{i}_jsonl": "".join(f'{{"text": "{i} {j}"}}\n' for j in range(4))})
    data = DataConfig(source="huggingface", path=str(tmp_path / "set"))
    found = in_portions(data, tmp_path)
    assert list(map(len, found)) == [4, 4, 4]
    assert [text for portion in found for text in portion] == texts(data, tmp_path)


def test_what_nothing_divides_is_one_portion(tmp_path: Path) -> None:
    write(tmp_path, a_txt="1", b_txt="2", c_txt="3")
    data = DataConfig(source="text", path="*.txt", max_documents=2)
    assert in_portions(data, tmp_path) == [["1", "2"]]
    (portion,) = portions_of(PYTHON)
    assert next(portion.read()) == next(read_documents(PYTHON))
