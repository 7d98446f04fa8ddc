"""Files that a browser is given, and what every answer to one says: nothing of elsewhere, nothing in between the lines.

Shared by the page of a run and by the page that asks it something (`gateway/`).
"""

import hashlib
from collections.abc import Awaitable, Callable
from importlib.resources import files

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

SECURITY = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "manifest-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}
EVENTS = {"cache-control": "no-store", "x-accel-buffering": "no"}
"""What a stream of events says besides, so that nobody between us keeps it back."""
TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}

Answer = Callable[[Request], Awaitable[Response]]


class Guarded:
    """What every answer says to a browser."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in SECURITY.items():
                    headers[name] = value
            await send(message)

        await self._app(scope, receive, answer if scope["type"] == "http" else send)


def files_of(package: str, *names: str) -> list[tuple[str, Answer]]:
    """Files in the folder `static` of a package, each with its place; `names`: these alone."""
    found = []
    for file in sorted(files(package).joinpath("static").iterdir(), key=lambda each: each.name):
        suffix = f".{file.name.rpartition('.')[2]}"
        if suffix in TYPES and (not names or file.name in names):
            place = "/" if file.name == "index.html" else f"/{file.name}"
            found.append((place, _file(file.read_bytes(), TYPES[suffix])))
    return found


def _file(data: bytes, kind: str) -> Answer:
    """A route's answer."""
    tag = f'"{hashlib.sha256(data).hexdigest()[:20]}"'
    headers = {"etag": tag, "cache-control": "no-cache"}

    async def answer(request: Request) -> Response:
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers=headers)
        return Response(data, media_type=kind, headers=headers)

    return answer
