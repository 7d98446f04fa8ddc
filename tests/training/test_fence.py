"""A data set of somebody else is obeyed within the fence: what it names, holds and packs leads to nothing else."""

import gzip
import io
import json
import os
import zipfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import aiohttp
import fsspec
import pyarrow.parquet
import pytest
from yarl import URL

from dipaco_swarm.errors import DataError
from dipaco_swarm.run.data import DataConfig
from dipaco_swarm.run.reach import Reach
from dipaco_swarm.training.documents import portions_of, read_documents
from dipaco_swarm.training.sources import fence
from tests.dataset_hub import NAME, Answering, AtHome, dataset_hub, serving

ROW = b'{"text": "alpha"}\n'


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[type[Answering]]:
    with dataset_hub(monkeypatch, tmp_path / "cache") as hub:
        yield hub


@pytest.fixture
def home() -> Iterator[tuple[type[Answering], str]]:
    with serving(AtHome) as found:
        yield found


def texts(**more: Any) -> list[str]:
    data = DataConfig.model_validate({"source": "huggingface", "path": NAME} | more)
    return [document.text for document in read_documents(data, reach=Reach(fenced=True))]


def readme(files: object, **more: object) -> bytes:
    said = {"configs": [{"config_name": "default", "data_files": [{"split": "train", "path": files}], **more}]}
    return f"---\n{json.dumps(said)}\n---\n".encode()


ROWS = b"".join(b'{"text": "row %d", "n": %d}\n' % (i, i) for i in range(500))


def parquet() -> bytes:
    with io.BytesIO() as table:
        pyarrow.parquet.write_table(pyarrow.table({"text": [f"cell {i}" for i in range(600)]}), table)
        return table.getvalue()


@pytest.mark.parametrize(
    "files",
    [
        {"a.jsonl": ROWS, "b.jsonl.gz": gzip.compress(ROWS)},
        {"a.json": json.dumps([json.loads(row) for row in ROWS.splitlines()]).encode()},
        {"a.parquet": parquet()},
        {"a.csv": b"text,n\none,1\n"},
        {"a.txt": b"one\r\ntwo\n\xc3\xa9\n"},
    ],
)
def test_a_data_set_of_the_hub_is_read_as_without_a_fence(hub: type[Answering], files: dict[str, bytes]) -> None:
    hub.files |= files
    free, fenced = (
        [list(portion.read()) for portion in portions_of(DataConfig(source="huggingface", path=NAME), reach=reach)]
        for reach in (Reach(), Reach(fenced=True))
    )
    assert fenced == free
    assert fenced[0]


@pytest.mark.parametrize(
    "pattern",
    ["PLACE/x.jsonl", "reference://*.jsonl::PLACE/x.json", "zip://*::simplecache::PLACE/x.zip", "/etc/*.jsonl"],
)
@pytest.mark.parametrize("where", ["README.md", ".huggingface.yaml", "data_dir"])
def test_a_data_set_names_files_of_its_own_alone(
    hub: type[Answering], home: tuple[type[Answering], str], pattern: str, where: str
) -> None:
    """It is looked at before the library looks for them, which asks servers, and has run what these answered."""
    at_home, place = home
    pattern = pattern.replace("PLACE", place)
    hub.files["data.jsonl"] = ROW
    if where == "data_dir":
        said = {"configs": [{"config_name": "default", "data_dir": os.path.dirname(pattern)}]}
        hub.files["README.md"] = f"---\n{json.dumps(said)}\n---\n".encode()
    else:
        hub.files[where] = readme([pattern]).strip(b"-\n") if where.endswith("yaml") else readme([pattern])
    with pytest.raises(DataError, match=r"reads what is in it|reads files of your machine"):
        texts()
    assert not at_home.asked


@pytest.mark.parametrize("kind", ["image", "audio"])
def test_nothing_is_decoded(hub: type[Answering], home: tuple[type[Answering], str], kind: str) -> None:
    at_home, place = home
    features = [{"name": "text", "dtype": "string"}, {"name": "more", "dtype": kind}]
    hub.files["data.jsonl"] = json.dumps({"text": "alpha", "more": f"{place}/x"}).encode() + b"\n"
    hub.files["README.md"] = readme("data.jsonl", features=features)
    assert texts() == ["alpha"]
    with pytest.raises(DataError, match=r"holds dict, not text"):
        texts(column="more")
    with pytest.raises(DataError, match=r"no column \"body\" .*can be one of \['more', 'text'\]"):
        texts(column="body")
    assert not at_home.asked


def test_a_format_that_is_hardly_text_is_not_read(hub: type[Answering]) -> None:
    hub.files["a.h5"] = b"no matter"
    with pytest.raises(DataError, match="read as hdf5; a volunteer reads json"):
        texts()


def zipped(**members: bytes) -> bytes:
    with io.BytesIO() as file:
        with zipfile.ZipFile(file, "w") as archive:
            for name, data in members.items():
                archive.writestr(name, data)
        return file.getvalue()


def test_an_archive_has_no_names_that_lead_elsewhere(hub: type[Answering]) -> None:
    hub.files["train.zip"] = zipped(**{"d/a.jsonl": ROW})
    assert texts() == ["alpha"]
    fsspec.get_filesystem_class("hf").clear_instance_cache()
    hub.files["train.zip"] = zipped(**{"d/a.jsonl::http:/127.0.0.1/x.jsonl": ROW})
    with pytest.raises(DataError, match="which leads elsewhere"):
        texts()


@pytest.mark.parametrize("file", ["data.jsonl.gz", "data.json.gz", "data.txt.gz"])
def test_no_line_and_no_array_is_of_any_length(
    hub: type[Answering], monkeypatch: pytest.MonkeyPatch, file: str
) -> None:
    """100 kB made a line of 100 MB, of which a row had 1 GB."""
    monkeypatch.setattr(fence, "LONGEST_LINE", 1 << 20)
    monkeypatch.setattr(fence, "LARGEST_WHOLE", 1 << 20)
    long = json.dumps({"text": "a" * (12 << 20)})
    hub.files[file] = gzip.compress((f"[{long}]" if "json." in file else long).encode())
    with pytest.raises(DataError, match="longer than 1 MB"):
        texts()


def test_paragraphs_are_refused(hub: type[Answering]) -> None:
    hub.files |= {"README.md": readme("a.txt", sample_by="paragraph"), "a.txt": b"one"}
    with pytest.raises(DataError, match="cut into paragraphs"):
        texts()


def redirecting(place: str) -> type[Answering]:
    class Redirecting(Answering):
        def answer(self, path: str, body: str) -> None:
            self.say(b"", 302, {"Location": f"{place}/status.json"})

    return Redirecting


async def asked(address: str) -> None:
    async with await fence.client() as session:
        await session.get(URL(address))


def test_no_server_leads_into_the_home_network(home: tuple[type[Answering], str]) -> None:
    at_home, place = home
    with ExitStack() as opened:
        _, address = opened.enter_context(serving(redirecting(place)))
        with pytest.raises(DataError, match=r"leads to http://127.*only https"):
            fsspec.asyn.sync(fsspec.asyn.get_loop(), asked, address)
        _, address = opened.enter_context(serving(redirecting("https://192.168.1.1")))
        with pytest.raises(DataError, match=r"leads to https://192.*your own network"):
            fsspec.asyn.sync(fsspec.asyn.get_loop(), asked, address)
    assert not at_home.asked


def test_a_name_that_is_an_address_at_home_is_not_asked(home: tuple[type[Answering], str]) -> None:
    at_home, place = home
    with pytest.raises(DataError, match=r"localhost is (127\.0\.0\.1|::1), which is in your own network"):
        fsspec.asyn.sync(fsspec.asyn.get_loop(), asked, place.replace("127.0.0.1", "localhost"))
    assert not at_home.asked


def test_what_is_read_at_an_address_is_read_by_that_client(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []

    async def client(**settings: Any) -> aiohttp.ClientSession:
        made.append(settings)
        raise DataError("it is this one")

    monkeypatch.setattr(fence, "client", client)
    data = DataConfig(source="jsonl", path="https://example.org/x.jsonl")
    with pytest.raises(DataError, match="it is this one"):
        list(read_documents(data, reach=Reach(fenced=True)))
    assert made
