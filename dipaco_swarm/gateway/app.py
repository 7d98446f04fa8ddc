"""The ASGI application: which URL is what, who may ask, and how errors are told. Nothing that was asked is kept.

/                       a page that asks; whoever opens it needs the key for everything else
/about                  what that page has to know of the run
/v1/...                 OpenAI's interface
/health                 that somebody is there
"""

import hmac
import json
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from itertools import chain
from threading import BoundedSemaphore
from typing import Any, TypeVar

from anyio import fail_after, from_thread
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

from dipaco_swarm.errors import SwarmError
from dipaco_swarm.gateway.answering import Chat, Completion, Json, Kind, Part, Template, at_once, in_parts
from dipaco_swarm.gateway.asked import Over, SilentError
from dipaco_swarm.gateway.dialect import (
    ChatRequest,
    CompletionRequest,
    RefusedError,
    error_body,
    model_list,
    parsed,
    path_in,
)
from dipaco_swarm.gateway.gateway import Gateway
from dipaco_swarm.page.statics import EVENTS, Guarded, files_of
from dipaco_swarm.settings import Web

log = logging.getLogger(__name__)

AT_ONCE = 32
"""Requests that are answered at the same time; each keeps a thread, of which the server has forty."""
MOST_BYTES = 8 << 20
"""Of a request."""
PIECE = 1 << 16
"""Bytes of an answer that are sent together: the next ones wait until these are on their way."""
READ_SECONDS = 30.0
"""For a request to come, and for whoever is told something to take it: places are few."""
LOOK_SECONDS = 0.5
"""So often it is looked whether somebody still waits for an answer."""
SHARED = ("base.css", "format.js", "icon.svg", "theme.js")
"""What this page has in common with the page of a run."""

Words = TypeVar("Words", CompletionRequest, ChatRequest)


class Doors:
    """What is behind each URL."""

    def __init__(
        self,
        gateway: Callable[[], Gateway],
        template: Template | None,
        api_key: str | None,
        asks_peers: bool,
        over: Over,
    ) -> None:
        """`gateway`: called for each request. `template`: None: no chat. `api_key`: what clients have to show."""
        self._over = over
        self._room = BoundedSemaphore(AT_ONCE)
        self._gateway = gateway
        self._template = template
        self._api_key = api_key
        self._asks_peers = asks_peers
        self._since = int(time.time())

    async def health(self, request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def about(self, request: Request) -> Response:
        gateway = await run_in_threadpool(self._gateway)
        found = {
            "run": gateway.name,
            "paths": gateway.num_paths,
            "chats": self._template is not None,
            "reroutes": gateway.reroutes,
            "asks_peers": self._asks_peers,
        }
        return JSONResponse(found, headers={"cache-control": "no-store"})

    async def models(self, request: Request) -> Response:
        gateway = await run_in_threadpool(self._gateway)
        return JSONResponse(model_list(gateway.name, gateway.num_paths, self._since))

    async def model(self, request: Request) -> Response:
        name, gateway = request.path_params["name"], await run_in_threadpool(self._gateway)
        path_in(name, gateway.name, gateway.num_paths)
        return JSONResponse({"id": name, "object": "model", "created": self._since, "owned_by": "dipaco-swarm"})

    async def completions(self, request: Request) -> Response:
        return await self._answered(
            request, CompletionRequest, lambda asked, over: Completion(self._gateway(), asked, over)
        )

    async def chat(self, request: Request) -> Response:
        template = self._template
        if template is None:
            raise RefusedError(
                "this run's tokenizer has no chat template: its model goes on with texts and was not taught to chat; "
                "use /v1/completions, or start the gateway with --chat-template FILE"
            )
        return await self._answered(request, ChatRequest, lambda asked, over: Chat(self._gateway(), asked, template))

    async def _answered(self, request: Request, words: type[Words], make: Callable[[Words, Over], Kind]) -> Response:
        """Who has a place sends what is asked, has it read, and answered; all but the first in a thread."""
        if not self._room.acquire(blocking=False):
            raise RefusedError(
                f"this gateway answers {AT_ONCE} requests at once; ask again soon",
                code="rate_limit_exceeded",
                status=429,
            )
        with ExitStack() as room:
            room.callback(self._room.release)
            body, has_gone = await _body(request), _has_gone(request)

            def over() -> bool:
                return self._over() or has_gone()

            def begun() -> tuple[Words, Kind]:
                asked: Words = parsed(words, body)
                return asked, make(asked, over)

            asked, kind = await run_in_threadpool(begun)
            if not asked.stream:
                whole = await run_in_threadpool(lambda: JSONResponse(at_once(kind, over)))
                return InTime(_pieces(bytes(whole.body)), room, whole.headers, "application/json")
            parts = in_parts(kind, self._over, tells_usage=asked.tells_usage)
            first = await run_in_threadpool(next, parts)  # what fails before the first token is an ordinary error
            return InTime(_events(first, parts), room, EVENTS, "text/event-stream")

    def admit(self, request: Request) -> None:
        """Raises RefusedError for who may not ask."""
        if self._api_key is None or request.scope["path"] == "/health":
            return
        shown = request.headers.get("authorization", "").removeprefix("Bearer ")
        if not hmac.compare_digest(shown.encode(), self._api_key.encode()):
            raise RefusedError("this gateway wants an API key: Authorization: Bearer KEY", code="no_key", status=401)


def build_app(
    gateway: Callable[[], Gateway],
    *,
    template: Template | None = None,
    api_key: str | None = None,
    hosts: Sequence[str] = Web("127.0.0.1", 0).names,
    asks_peers: bool = False,
    over: Over = lambda: False,
) -> Starlette:
    """`gateway`: gives what answers the next request. `hosts`: by which names it may be called; `("*",)`: by any.

    `asks_peers`: whether strangers see what is asked; the page says so. `over`: whether the program is being ended.
    """
    doors = Doors(gateway, template, api_key, asks_peers, over)

    def door(path: str, method: str, answer: Any) -> Route:
        async def endpoint(request: Request) -> Response:
            try:
                doors.admit(request)
                answered: Response = await answer(request)
                return answered
            except (SwarmError, SilentError) as error:
                return _refused(error)

        return Route(path, endpoint, methods=[method])

    return Starlette(
        routes=[
            door("/health", "GET", doors.health),
            door("/about", "GET", doors.about),
            door("/v1/models", "GET", doors.models),
            door("/v1/models/{name:path}", "GET", doors.model),
            door("/v1/completions", "POST", doors.completions),
            door("/v1/chat/completions", "POST", doors.chat),
            *(Route(place, file) for place, file in files_of("dipaco_swarm.page", *SHARED)),
            *(Route(place, file) for place, file in files_of("dipaco_swarm.gateway")),
        ],
        middleware=[
            Middleware(Guarded),
            Middleware(TrustedHostMiddleware, allowed_hosts=list(hosts), www_redirect=False),
        ],
        exception_handlers={404: _no_such_place, 405: _no_such_place},
    )


class InTime(StreamingResponse):
    """An answer in pieces; it takes room until its last one is sent, or nobody listens."""

    def __init__(
        self, pieces: Iterator[str] | AsyncIterator[bytes], room: ExitStack, headers: Mapping[str, str], kind: str
    ) -> None:
        super().__init__(pieces, media_type=kind, headers=headers)
        self._room = room.pop_all()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def in_time(message: Message) -> None:
            with fail_after(READ_SECONDS):
                await send(message)

        with self._room, suppress(ClientDisconnect, TimeoutError):
            await super().__call__(scope, receive, in_time)


def _has_gone(request: Request) -> Over:
    """Whether nobody waits for the answer any more; asked now and then in the thread that makes it."""
    looked, gone = time.monotonic(), False

    def has_gone() -> bool:
        nonlocal looked, gone
        if not gone and time.monotonic() - looked >= LOOK_SECONDS:
            looked, gone = time.monotonic(), from_thread.run(request.is_disconnected)
        return gone

    return has_gone


async def _body(request: Request) -> bytes:
    """Raises RefusedError when it is too long, or no JSON by its own word."""
    if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
        raise RefusedError("send JSON, with the header Content-Type: application/json", status=415)
    found = bytearray()
    try:
        with fail_after(READ_SECONDS):
            async for chunk in request.stream():
                found += chunk
                if len(found) > MOST_BYTES:
                    raise RefusedError(f"the request has more than {MOST_BYTES >> 20} MB", status=413)
    except TimeoutError:
        raise RefusedError(f"the request took more than {READ_SECONDS:.0f} s to come", status=408) from None
    except ClientDisconnect:
        raise RefusedError("the request broke off") from None
    return bytes(found)


async def _pieces(data: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(data), PIECE):
        yield data[start : start + PIECE]


def _events(first: Part, parts: Iterator[Part]) -> Iterator[str]:
    """Server-sent events; several at once where they came at once. A stream that breaks off ends with an error, and
    without [DONE]."""
    together = ""
    with closing(parts):  # type: ignore[type-var]
        try:
            for part in chain((first,), parts):
                together += _event(part.fields)
                if not part.more:
                    yield together
                    together = ""
        except (SwarmError, SilentError) as error:
            yield together + _event(error_body(str(error), "server_error"))
            return
    yield together + "data: [DONE]\n\n"


def _event(fields: Json) -> str:
    return f"data: {json.dumps(fields, ensure_ascii=False)}\n\n"


def _refused(error: Exception) -> Response:
    if isinstance(error, RefusedError):
        again = {"retry-after": "5"} if error.status == 429 else None
        return JSONResponse(error.body(), error.status, again)
    if isinstance(error, SilentError):
        return JSONResponse(error_body(str(error), "server_error"), 503, {"retry-after": "30"})
    return JSONResponse(error_body(str(error), "invalid_request_error"), 400)


async def _no_such_place(request: Request, error: Exception) -> Response:
    status: int = getattr(error, "status_code", 404)
    there = "/, /v1/models, /v1/completions, /v1/chat/completions, /health"
    return JSONResponse(
        error_body(f"{request.method} {request.url.path} does not exist; there is {there}", "invalid_request_error"),
        status,
    )
