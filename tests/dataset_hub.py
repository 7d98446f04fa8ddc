"""As much of the Hugging Face hub as reading data sets asks for, and a machine of the home network."""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from urllib.parse import parse_qs

import datasets.config
import huggingface_hub.constants
import pytest

from tests.served import served

NAME = "somebody/set"
COMMIT = "1" * 40
NOTHING: Mapping[str, str] = {}


class Answering(BaseHTTPRequestHandler):
    """Says what `answer` finds, and keeps what was asked."""

    asked: list[str]
    files: dict[str, bytes]
    sizes: dict[str, int]
    """Of files that are larger, as they are said to be, than what there is of them."""

    def do_GET(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        self.asked.append(f"{self.command} {self.path}")
        self.answer(self.path.split("?")[0], self.rfile.read(length).decode())

    do_HEAD = do_POST = do_GET

    def answer(self, path: str, body: str) -> None:
        raise NotImplementedError

    def log_message(self, *said: object) -> None: ...

    def say(self, data: bytes, status: int = 200, headers: Mapping[str, str] = NOTHING) -> None:
        self.send_response(status)
        for key, value in ({"Content-Length": str(len(data))} | dict(headers)).items():
            self.send_header(key, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)


class DatasetHub(Answering):
    """One data set, `NAME`."""

    def answer(self, path: str, body: str) -> None:
        if found := re.fullmatch(rf"/datasets/{NAME}/resolve/[^/]+/(.+)", path):
            self._file(found[1])
        elif "/tree/" in path:
            self.say(json.dumps([self._listed(name) for name in self.files]).encode())
        elif "/paths-info/" in path:
            wanted = parse_qs(body)["paths"] if "paths=" in body else json.loads(body)["paths"]
            self.say(json.dumps([self._listed(name) for name in wanted if name in self.files]).encode())
        elif path.startswith(f"/api/datasets/{NAME}"):
            siblings = [{"rfilename": name} for name in self.files]
            self.say(json.dumps({"id": NAME, "sha": COMMIT, "siblings": siblings, "tags": []}).encode())
        else:
            self.say(b"{}", 404)

    def _file(self, name: str) -> None:
        if name not in self.files:
            self.say(b"", 404, {"X-Error-Code": "EntryNotFound"})
            return
        data = self.files[name]
        about = {"X-Repo-Commit": COMMIT, "ETag": f'"{hashlib.sha1(data).hexdigest()}"', "Accept-Ranges": "bytes"}
        wanted = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range") or "")
        if wanted is None:
            self.say(data, 200, about | {"Content-Length": str(self.sizes.get(name, len(data)))})
            return
        start, end = int(wanted[1]), min(int(wanted[2]) + 1, len(data))
        self.say(data[start:end], 206, about | {"Content-Range": f"bytes {start}-{end - 1}/{len(data)}"})

    def _listed(self, name: str) -> dict[str, object]:
        data = self.files[name]
        size = self.sizes.get(name, len(data))
        return {"type": "file", "oid": hashlib.sha1(data).hexdigest(), "size": size, "path": name}


class AtHome(Answering):
    """A page that is no document: it answers whoever asks, and nobody is to ask."""

    def answer(self, path: str, body: str) -> None:
        self.say(b'{"text": "secret"}\n')


@contextmanager
def serving(kind: type[Answering]) -> Iterator[tuple[type[Answering], str]]:
    """What it is asked and has, and where it is."""
    own = type(f"{kind.__name__}OfThisTest", (kind,), {"asked": [], "files": {}, "sizes": {}})
    with served(own) as place:
        yield own, place


@contextmanager
def dataset_hub(patch: pytest.MonkeyPatch, cache: Path) -> Iterator[type[Answering]]:
    """The hub that the libraries ask, whose files a test puts there."""
    with serving(DatasetHub) as (hub, place):
        template = place + "/{repo_id}/resolve/{revision}/{filename}"
        patch.setattr(huggingface_hub.constants, "ENDPOINT", place)
        patch.setattr(huggingface_hub.constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        patch.setattr("huggingface_hub.file_download.HUGGINGFACE_CO_URL_TEMPLATE", template, raising=False)
        patch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(cache))
        patch.setattr(datasets.config, "HF_ENDPOINT", place)
        yield hub
