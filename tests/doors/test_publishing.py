"""A folder to the hub, by its own library: a hub of this test, one that says no, and none at all."""

from collections.abc import Iterator
from pathlib import Path

import huggingface_hub.constants
import pytest

from dipaco_swarm.client.publishing import push
from dipaco_swarm.errors import UnreachableError, UsageError
from tests.model_hub import Hub, model_hub

FILES = {"config.json": b"{}\n", "modules/L0M0.safetensors": b"\x00\x01binary\xff", "README.md": b"# a model\n"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, data in FILES.items():
        file = tmp_path / "model" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)
    return tmp_path / "model"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Hub]]:
    with model_hub() as (kind, place):
        monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", place)
        monkeypatch.setenv("HF_TOKEN", "hf_of_this_test")
        yield kind


def test_every_file_of_the_folder_arrives(folder: Path, hub: type[Hub]) -> None:
    assert "me/model" in push(folder, "me/model")
    assert hub.made == ["model"]
    assert {name: data for name, data in hub.files.items() if name in FILES} == FILES


def test_an_account_that_may_not_is_told_what_to_do(folder: Path, hub: type[Hub]) -> None:
    hub.refuse = 403
    with pytest.raises(UsageError, match=r"does not let this account write me/model \(403\).*HF_TOKEN"):
        push(folder, "me/model")
    hub.refuse = 400
    with pytest.raises(UnreachableError, match="the hub refuses me/model"):
        push(folder, "me/model")


def test_a_name_that_is_none_is_refused_before_anything_is_sent(folder: Path, hub: type[Hub]) -> None:
    with pytest.raises(UsageError, match="cannot be pushed"):
        push(folder, "me/a/model")
    assert not hub.made


def test_without_a_hub_the_folder_is_still_there(folder: Path, hub: type[Hub], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(UnreachableError, match=r"cannot be reached.*hf upload me/model"):
        push(folder, "me/model")
    assert (folder / "config.json").exists()
