"""Several sources in one run: their shares, their ends, their texts, however their files are packed."""

import bz2
import gzip
import json
import lzma
import zipfile
from collections import Counter
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import datasets
import pytest
import zstandard

from dipaco_swarm.errors import DataError
from dipaco_swarm.operator.check.mixing import times_read
from dipaco_swarm.run.config import DataConfig
from dipaco_swarm.run.reach import Reach
from dipaco_swarm.training.documents import documents_to_train_on, portions_of, read_documents
from dipaco_swarm.training.sources import opening


def rows_into(file: Path, count: int, text: str, **more: Any) -> None:
    """JSON lines, each with a number and a text."""
    rows = ({"text": f"{text} {i}", **more} for i in range(count))
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))


def mixture(*sources: dict[str, Any]) -> DataConfig:
    return DataConfig.model_validate_json(json.dumps({"sources": sources}))


def characters(documents: list[Any]) -> dict[str, float]:
    """The share of each domain in the characters."""
    count: Counter[str] = Counter()
    for document in documents:
        count[document.domain] += len(document.text)
    return {domain: amount / count.total() for domain, amount in count.items()}


@pytest.fixture
def three(tmp_path: Path) -> tuple[DataConfig, Reach]:
    """Long, short and middling documents of three kinds of files."""
    rows_into(tmp_path / "web.jsonl", 300, "web " * 400)
    datasets.Dataset.from_list([{"body": f"code {i} " * 5} for i in range(4000)]).to_parquet(
        str(tmp_path / "c.parquet")
    )
    (tmp_path / "books").mkdir()
    for i in range(40):
        (tmp_path / "books" / f"{i}.txt").write_text(f"book {i} " * 200)
    data = mixture(
        {"source": "jsonl", "path": "web.jsonl", "weight": 5, "domain": "web"},
        {"source": "parquet", "path": "c.parquet", "weight": 3, "column": "body", "domain": "code"},
        {"source": "text", "path": "books/*.txt", "weight": 2, "domain": "books"},
    )
    return data, Reach(tmp_path)


def test_weights_are_shares_of_characters_from_the_beginning_on(three: tuple[DataConfig, Reach]) -> None:
    data, reach = three
    documents = list(islice(documents_to_train_on(data, reach=reach), 1500))
    for some in (documents[:300], documents):
        assert characters(some) == pytest.approx({"web": 0.5, "code": 0.3, "books": 0.2}, abs=0.03)
    assert documents == list(islice(documents_to_train_on(data, reach=reach), 1500))


def test_each_source_is_read_once_where_nobody_trains_and_all_of_it(three: tuple[DataConfig, Reach]) -> None:
    data, reach = three
    documents = list(read_documents(data, reach=reach))
    assert Counter(document.domain for document in documents) == {"web": 300, "code": 4000, "books": 40}
    assert len(set(documents)) == len(documents)


def test_a_source_that_ends_is_read_again_until_all_were_read_once(tmp_path: Path) -> None:
    rows_into(tmp_path / "large.jsonl", 100, "large")
    rows_into(tmp_path / "small.jsonl", 10, "small")
    parts: list[dict[str, Any]] = [
        {"source": "jsonl", "path": "large.jsonl", "weight": 0.75, "domain": "large"},
        {"source": "jsonl", "path": "small.jsonl", "weight": 0.25, "domain": "small"},
    ]
    count = Counter(each.domain for each in documents_to_train_on(mixture(*parts), reach=Reach(tmp_path)))
    assert count["large"] == 100
    assert count["small"] == pytest.approx(38, abs=2)  # whose texts are a bit shorter

    parts[1]["epochs"] = 2
    documents = list(documents_to_train_on(mixture(*parts), reach=Reach(tmp_path)))
    assert Counter(each.domain for each in documents) == {"large": 100, "small": 20}
    assert {each.domain for each in documents[75:]} == {"large"}


def test_how_often_each_is_read_is_known_before(tmp_path: Path) -> None:
    assert times_read([100, 10], [0.75, 0.25], [4, 4]) == pytest.approx([1.0, 100 / 3 / 10])
    assert times_read([100, 10], [0.75, 0.25], [4, 2]) == [1.0, 2.0]
    assert times_read([10, 1000], [0.9, 0.1], [4, 1]) == [4.0, 1.0]
    assert times_read([7], [1.0], [4]) == [1.0]


def test_a_source_without_documents_is_named(tmp_path: Path) -> None:
    rows_into(tmp_path / "a.jsonl", 10, "a")
    (tmp_path / "empty.txt").write_text(" \n")
    data = mixture(
        {"source": "jsonl", "path": "a.jsonl", "weight": 1}, {"source": "text", "path": "empty.txt", "weight": 1}
    )
    with pytest.raises(DataError, match=r"data.sources\[1\] has no documents.*empty.txt"):
        list(read_documents(data, reach=Reach(tmp_path)))


def test_the_portions_of_a_mixture_are_those_of_its_sources(three: tuple[DataConfig, Reach]) -> None:
    data, reach = three
    portions = portions_of(data, reach=reach)
    assert len({portion.name for portion in portions}) == len(portions)
    found = [document for portion in portions for document in portion.read()]
    assert sorted(found, key=repr) == sorted(read_documents(data, reach=reach), key=repr)


def test_the_text_of_the_installation_may_be_a_part() -> None:
    data = mixture({"source": "python", "weight": 1, "domain": "installed"})
    assert {document.domain for document in islice(read_documents(data), 50)} == {"installed"}


# --------------------------------------------------------------------------------------------------------- templates


def test_a_template_makes_a_text_of_several_fields(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        {"title": "One", "text": "first", "year": 1999},
        {"title": None, "text": "second", "year": 2000},
        {"title": "", "text": " ", "year": None},
        {"title": "Four {x}", "text": "fourth", "year": 2.5},
    ]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    datasets.Dataset.from_list([{**row, "year": 7} for row in rows]).to_parquet(str(tmp_path / "a.parquet"))
    template = "{title}\n\n{text} {{{year}}}"
    data = DataConfig(source="jsonl", path="a.jsonl", template=template)
    texts = [document.text for document in read_documents(data, reach=Reach(tmp_path))]
    assert texts == ["One\n\nfirst {1999}", "\n\nsecond {2000}", "Four {x}\n\nfourth {2.5}"]
    data = DataConfig(source="parquet", path="a.parquet", template=template)
    assert next(read_documents(data, reach=Reach(tmp_path))).text == "One\n\nfirst {7}"


def test_a_field_that_is_missing_is_named_with_its_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dipaco_swarm.training.sources.files.PORTION_BYTES", 100)
    rows_into(tmp_path / "a.jsonl", 30, "text", title="a title")
    with open(tmp_path / "a.jsonl", "a") as file:
        file.write('{"text": "no title"}\n')
    data = DataConfig(source="jsonl", path="a.jsonl", template="{title}: {text}")
    with pytest.raises(DataError, match=r'no field "title", which data.template names, in .*a.jsonl, line 31 '):
        list(read_documents(data, reach=Reach(tmp_path)))
    (tmp_path / "a.jsonl").write_text('{"title": "t", "text": ["a"]}\n')
    with pytest.raises(DataError, match=r'column "text" holds list, not text, in .*line 1 '):
        list(read_documents(data, reach=Reach(tmp_path)))


def test_a_line_that_is_no_json_is_named(tmp_path: Path) -> None:
    rows_into(tmp_path / "a.jsonl", 5, "text")
    with open(tmp_path / "a.jsonl", "a") as file:
        file.write('{"text": "broken\n')
    with pytest.raises(DataError, match=r"a.jsonl, line 6: "):
        list(read_documents(DataConfig(source="jsonl", path="a.jsonl"), reach=Reach(tmp_path)))


@pytest.mark.parametrize(
    ("template", "says"),
    [
        ("no field", "names no field"), ("{}", "name of a field"), ("{a:>9}", "nothing else"), ("{a", "written twice"),
        ("{a.__class__}", "nothing else"), ("{a[0]}", "nothing else"), ("{text}" * 10_000, "at most 4096 characters"),
        ("{a}" * 5, "each 4 times"), ("".join(f"{{f{i}}}" for i in range(65)), "may name 64 fields"),
    ],
)  # fmt: skip
def test_a_template_that_is_none_is_refused(template: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        DataConfig(source="jsonl", path="a", template=template)


# -------------------------------------------------------------------------------------------------------- compression


def zipped(data: bytes) -> Callable[[Path], None]:
    def write(file: Path) -> None:
        half = data.index(b"\n", len(data) // 2) + 1
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("part/2.jsonl", data[half:])
            archive.writestr("part/1.jsonl", data[:half])

    return write


def in_two_frames(data: bytes) -> bytes:
    return b"".join(zstandard.ZstdCompressor().compress(part) for part in (data[:50], data[50:]))


PACKED: dict[str, Callable[[bytes], bytes]] = {
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": in_two_frames,
}


@pytest.mark.parametrize("ending", [*PACKED, ".zip"])
def test_compressed_files_are_read_like_others(tmp_path: Path, ending: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert ending in opening.COMPRESSED
    lines = [f"row {i} " + "é" * i for i in range(40)]
    jsonl = "".join(json.dumps({"text": line}) + "\n" for line in lines).encode()
    text = "".join(f"{line}\n" for line in lines).encode()
    for name, content in (("a.jsonl", jsonl), ("b.txt", text)):
        if ending == ".zip":
            zipped(content)(tmp_path / (name + ending))
        else:
            (tmp_path / (name + ending)).write_bytes(PACKED[ending](content))
    data = DataConfig(source="jsonl", path="a.jsonl" + ending)
    (portion,) = portions_of(data, reach=Reach(tmp_path))
    assert [document.text for document in portion.read()] == lines
    monkeypatch.setattr("dipaco_swarm.training.sources.files.PORTION_BYTES", 300)
    data = DataConfig(source="text", path="b.txt" + ending)
    found = [document.text for document in read_documents(data, reach=Reach(tmp_path))]
    assert len(found) > 2, "nobody holds a large compressed file whole"
    assert "".join(found).splitlines() == lines


@pytest.mark.parametrize("ending", [*PACKED, ".zip"])
def test_a_damaged_compressed_file_is_named(tmp_path: Path, ending: str) -> None:
    (tmp_path / f"a.jsonl{ending}").write_bytes(b"not compressed at all")
    with pytest.raises(DataError, match=r"cannot be read \(.*a.jsonl"):
        list(read_documents(DataConfig(source="jsonl", path=f"a.jsonl{ending}"), reach=Reach(tmp_path)))
    whole = b"".join(json.dumps({"text": f"{i * 7919}"}).encode() + b"\n" for i in range(2000))
    if ending in PACKED:
        packed = PACKED[ending](whole)
        (tmp_path / f"a.jsonl{ending}").write_bytes(packed[: len(packed) // 2])
        with pytest.raises(DataError, match=r"cannot be read \(.*a.jsonl"):
            list(read_documents(DataConfig(source="jsonl", path=f"a.jsonl{ending}"), reach=Reach(tmp_path)))
