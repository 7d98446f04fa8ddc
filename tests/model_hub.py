"""As much of the Hugging Face hub as an upload of small files asks for."""

import base64
import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler

from tests.served import served


class Hub(BaseHTTPRequestHandler):
    """What came to it, and whether it says no."""

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


@contextmanager
def model_hub() -> Iterator[tuple[type[Hub], str]]:
    """A hub, and where it is."""
    kind = type("HubOfThisTest", (Hub,), {"made": [], "files": {}})
    with served(kind) as place:
        yield kind, place
