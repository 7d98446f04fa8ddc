"""A folder to the hub, by its own library: a hub of this test, one that says no, and none at all."""

import base64
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import huggingface_hub.constants
import pytest

from dipaco_swarm.client.publishing import push
from dipaco_swarm.errors import UnreachableError, UsageError

FILES = {"config.json": b"{}\n", "modules/L0M0.safetensors": b"\x00\x01binary\xff", "README.md": b"# a model\n"}


class Hub(BaseHTTPRequestHandler):
    """As much of the hub as an upload of small files asks for."""

    refuse: int | None = None
    made: list[str]
    files: dict[str, bytes]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.refuse is not None:
            self._answer({"error": "no"}, self.refuse)
        elif self.path == "/api/repos/create":
            self.made.append(json.loads(body)["name"])
            self._answer({"url": f"https://huggingface.co/me/{self.made[-1]}", "name": f"me/{self.made[-1]}"})
        elif "/preupload/" in self.path:
            asked = [file["path"] for file in json.loads(body)["files"]]
            self._answer({"files": [{"path": p, "uploadMode": "regular", "shouldIgnore": False} for p in asked]})
        elif "/commit/" in self.path:
            for line in map(json.loads, body.decode().splitlines()):
                if line["key"] == "file":
                    self.files[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
            self._answer(
                {"commitUrl": "https://huggingface.co/me/model/commit/1", "commitOid": "1" * 40, "success": True}
            )
        else:
            self._answer({"valid": True})

    def do_GET(self) -> None:
        self._answer({"sha": "1" * 40, "id": "me/model", "siblings": []})

    def log_message(self, *said: object) -> None: ...

    def _answer(self, value: object, status: int = 200) -> None:
        data = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, data in FILES.items():
        file = tmp_path / "model" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)
    return tmp_path / "model"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Hub]]:
    kind = type("HubOfThisTest", (Hub,), {"made": [], "files": {}})
    server = ThreadingHTTPServer(("127.0.0.1", 0), kind)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setenv("HF_TOKEN", "hf_of_this_test")
    yield kind
    server.shutdown()
    thread.join()
    server.server_close()


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
