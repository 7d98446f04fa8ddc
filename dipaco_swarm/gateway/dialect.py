"""Requests and answers in the words of OpenAI's interface, as JSON, with their bounds.

What is asked for and cannot be given is refused by name; keys that change nothing of the text (`user`, `metadata`) are
passed over. `top_k` and `reroute` are ours; `dipaco` in an answer says who wrote it, `written_by` in a stream who goes
on from there.
"""

import re
import secrets
import time
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from dipaco_swarm.errors import SwarmError
from dipaco_swarm.gateway.asked import Origin
from dipaco_swarm.training.inference import Sampling

MOST_TOKENS = 8192
"""Of one answer."""
LONGEST_TEXT = 1 << 20
"""Characters, or tokens, of one prompt; and characters of all that are given back (`echo`)."""
MOST_PROMPTS = 64
MOST_ANSWERS = 16
"""Of one prompt."""
MOST_IN_ALL = 4 * MOST_TOKENS
"""Tokens of all answers of one request, with those of prompts that are judged: it keeps one of the gateway's places
until the last one."""
MOST_LISTS = 10_000
"""Lists and objects in one request: each costs a thousand times what it took to send."""

Prompt = str | tuple[int, ...]
"""A text, or its tokens."""
Text = Annotated[str, Field(max_length=LONGEST_TEXT)]
StopWord = Annotated[str, Field(min_length=1, max_length=200)]
UNCHANGED: tuple[object, ...] = (0, 0.0, None, False, {}, [], "")
"""Values that ask for nothing."""

_QUOTED = re.compile(rb'"(?:[^"\\]|\\.)*+(?:"|\Z)', re.DOTALL)


class RefusedError(SwarmError):
    """A request that cannot be answered: for the client, as its dialect says it."""

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None, status: int = 400) -> None:
        super().__init__(message)
        self.status = status
        self.param = param
        self.code = code

    def body(self) -> dict[str, Any]:
        return error_body(str(self), "invalid_request_error", self.param, self.code)


def error_body(message: str, kind: str, param: str | None = None, code: str | None = None) -> dict[str, Any]:
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def _each_prompt(given: object) -> list[Prompt]:
    """The prompts in a text, in tokens, or in a list of either. Raises ValueError."""
    if isinstance(given, str) or (isinstance(given, list) and given and all(map(_is_token, given))):
        given = [given]
    if not isinstance(given, list) or not 1 <= len(given) <= MOST_PROMPTS:
        raise ValueError(f"give a text, a list of tokens, or a list of 1 to {MOST_PROMPTS} of these")
    return [_one_prompt(each) for each in given]


def _one_prompt(given: object) -> Prompt:
    if isinstance(given, str):
        found: Prompt = given
    elif isinstance(given, list) and all(map(_is_token, given)):
        found = tuple(given)
    else:
        raise ValueError("each is a text, or a list of tokens, which are numbers from 0 on")
    if len(found) > LONGEST_TEXT:
        raise ValueError(f"one is {len(found):,} long; at most {LONGEST_TEXT:,} characters or tokens are read")
    return found


def _is_token(given: object) -> bool:
    return isinstance(given, int) and not isinstance(given, bool) and given >= 0


class StreamOptions(BaseModel):
    include_usage: bool = False


class _NotHere(BaseModel):
    """What a request may have elsewhere, and here only with a value that asks for nothing."""

    model_config = ConfigDict(protected_namespaces=())

    presence_penalty: Any = None
    frequency_penalty: Any = None
    logit_bias: Any = None
    suffix: Any = None
    tools: Any = None
    functions: Any = None
    response_format: Any = None

    @model_validator(mode="after")
    def _ask_for_nothing(self) -> Self:
        for name in _NotHere.model_fields:
            value = getattr(self, name)
            if value not in UNCHANGED and value != {"type": "text"}:
                raise ValueError(f"{name} is not supported here; leave it out")
        return self


class _Request(_NotHere):
    """What both kinds of request have."""

    model: Annotated[str, Field(max_length=200)]
    temperature: Annotated[float, Field(ge=0, le=10)] = 1.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    top_k: Annotated[int, Field(ge=0, le=1_000_000)] = 0
    """0: among all tokens."""
    n: Annotated[int, Field(ge=1, le=MOST_ANSWERS)] = 1
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    stop: StopWord | Annotated[list[StopWord], Field(max_length=16)] | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    reroute: Annotated[int, Field(ge=1, le=MOST_TOKENS)] | None = None

    @model_validator(mode="after")
    def _has_a_seed_for_each(self) -> "_Request":
        if self.seed is not None and self.seed + self.n > 2**63:
            raise ValueError(f"seed is too large for {self.n} answers: each has one more than the one before")
        return self

    def _fits(self, prompts: int, tokens: int) -> None:
        """Raises ValueError where that is too much for one request."""
        if prompts * self.n * tokens > MOST_IN_ALL:
            raise ValueError(
                f"{prompts} prompts, {self.n} answers each, and {tokens:,} tokens each are more than {MOST_IN_ALL:,} "
                "tokens in all; ask for fewer at a time"
            )

    @property
    def sampling(self) -> Sampling:
        return Sampling(self.temperature, self.top_k or None, self.top_p)

    @property
    def stops(self) -> tuple[str, ...]:
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    @property
    def tells_usage(self) -> bool:
        """Whether a stream ends with what was used."""
        return self.stream_options is not None and self.stream_options.include_usage


class CompletionRequest(_Request):
    """POST /v1/completions"""

    prompt: Annotated[list[Prompt], BeforeValidator(_each_prompt)]
    max_tokens: Annotated[int, Field(ge=0, le=MOST_TOKENS)] | None = 16
    logprobs: Annotated[int, Field(ge=0, le=20)] | bool | None = None
    echo: bool = False
    best_of: int | None = None

    @model_validator(mode="after")
    def _can_be_done(self) -> "CompletionRequest":
        if self.best_of not in (None, self.n):
            raise ValueError("best_of is not supported here; leave it out, or make it n")
        self._fits(len(self.prompt), self.most_tokens)
        return self

    @property
    def alternatives(self) -> int | None:
        return None if self.logprobs is None or self.logprobs is False else int(self.logprobs)

    @property
    def judges_prompts(self) -> bool:
        """Whether it is said what a path thinks of them."""
        return self.echo and self.alternatives is not None

    @property
    def most_tokens(self) -> int:
        return 16 if self.max_tokens is None else self.max_tokens


class Part(BaseModel):
    """Of a message: text, and nothing else."""

    type: Literal["text"]
    text: Text


class ChatMessage(BaseModel):
    role: Literal["system", "developer", "user", "assistant"]
    content: Text | Annotated[list[Part], Field(max_length=1000, fail_fast=True)]

    @property
    def text(self) -> str:
        return self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)


class ChatRequest(_Request):
    """POST /v1/chat/completions"""

    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=1000)]
    max_tokens: Annotated[int, Field(ge=1, le=MOST_TOKENS)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1, le=MOST_TOKENS)] | None = None
    logprobs: bool | None = False
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None

    @model_validator(mode="after")
    def _can_be_done(self) -> "ChatRequest":
        self._fits(1, self.most_tokens)
        return self

    @property
    def alternatives(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None

    @property
    def most_tokens(self) -> int:
        return self.max_completion_tokens or self.max_tokens or 512


def parsed(kind: type[BaseModel], body: bytes) -> Any:
    """A request. Raises RefusedError, which names the key."""
    if _has_many_lists(body):
        raise RefusedError(f"the request has more than {MOST_LISTS:,} lists and objects")
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or None
        what = str(first["msg"]).removeprefix("Value error, ")
        raise RefusedError(f"{where}: {what}" if where else what, param=where) from None


def _has_many_lists(body: bytes) -> bool:
    """Texts may have as many brackets as they like."""

    def brackets(text: bytes) -> int:
        return text.count(b"[") + text.count(b"{")

    return brackets(body) > MOST_LISTS and brackets(_QUOTED.sub(b"", body)) > MOST_LISTS


# ------------------------------------------------------------------------------------------------------------- answers


class Frame:
    """What all parts of one answer have in common."""

    def __init__(self, prefix: str, kind: str, model: str) -> None:
        self._fields = {
            "id": f"{prefix}-{secrets.token_hex(12)}",
            "object": kind,
            "created": int(time.time()),
            "model": model,
        }

    def __call__(self, choices: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
        return {**self._fields, "choices": choices, **more}


def usage(prompt: int, completion: int) -> dict[str, int]:
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}


def signature(origins: Iterable[Origin], seed: int) -> dict[str, Any]:
    """Who wrote an answer, so that anybody who has these modules can write it again."""
    runs: list[Origin] = []
    for origin in origins:
        if not runs or runs[-1] != origin:
            runs.append(origin)
    return {"seed": seed, "written_by": [written_by(origin) for origin in runs]}


def written_by(origin: Origin) -> dict[str, Any]:
    """Who wrote some of it."""
    return {"path": int(origin.path), "modules": dict(origin.modules), "by": origin.by or "this gateway"}


def model_list(name: str, num_paths: int, created: int) -> dict[str, Any]:
    """GET /v1/models: the routed model, and each path for itself."""
    names = [name, *(path_name(name, path) for path in range(num_paths) if num_paths > 1)]
    return {
        "object": "list",
        "data": [{"id": each, "object": "model", "created": created, "owned_by": "dipaco-swarm"} for each in names],
    }


def path_name(name: str, path: int) -> str:
    """How a client names one path."""
    return f"{name}:path-{path}"


def path_in(model: str, name: str, num_paths: int) -> int | None:
    """The path that a client names; None: the routed model. Raises RefusedError when there is no such model."""
    if model == name:
        return None
    rest = model.removeprefix(f"{name}:path-")
    if rest != model and rest.isascii() and rest.isdecimal() and len(rest) < 10 and int(rest) < num_paths:
        return int(rest)
    there = f"{name}, and {name}:path-0 to {name}:path-{num_paths - 1}" if num_paths > 1 else name
    raise RefusedError(
        f"the model {model[:80]!r} does not exist; there is {there}", param="model", code="model_not_found", status=404
    )


def texts_of(messages: Sequence[ChatMessage]) -> list[dict[str, str]]:
    """Messages as a chat template takes them."""
    return [{"role": message.role, "content": message.text} for message in messages]
