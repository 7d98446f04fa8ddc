"""Requests answered: as one JSON, or as a stream of events. No server in here: `app.py` has that."""

import secrets
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Protocol

from dipaco_swarm.algorithm.paths import PathIndex
from dipaco_swarm.gateway.asked import Asked, Origin, Over, go_on_unless
from dipaco_swarm.gateway.dialect import (
    LONGEST_TEXT,
    MOST_IN_ALL,
    ChatRequest,
    CompletionRequest,
    Frame,
    Prompt,
    RefusedError,
    path_in,
    signature,
    texts_of,
    usage,
    written_by,
)
from dipaco_swarm.gateway.gateway import Gateway
from dipaco_swarm.gateway.words import Words
from dipaco_swarm.training.writing import Written

Json = dict[str, Any]
Template = Callable[[list[dict[str, str]]], str]
"""Messages -> the prompt that the model was taught to answer. Raises RefusedError."""


@dataclass(frozen=True)
class Delta:
    """What has come of one answer since the last one."""

    text: str
    thoughts: tuple[Written, ...] = ()
    """Tokens with what was thought of them; none where nobody asked for that."""
    finish: str | None = None
    """`stop` or `length`, in the last one."""
    origin: Origin | None = None
    """Who writes from here on, where that is somebody else than before."""
    more: bool = False
    """What follows is there already."""


class Answer:
    """One text that is being written; `deltas` is to be read once."""

    def __init__(self, gateway: Gateway, asked: Asked, stop: tuple[str, ...], before: tuple[Written, ...] = ()) -> None:
        """`before`: the prompt, where it is given back with what was thought of it."""
        self._gateway = gateway
        self._asked = asked
        self._stop = stop
        self._before = before
        self.origins: list[Origin] = []
        self.tokens = 0

    @property
    def seed(self) -> int:
        return self._asked.seed

    def deltas(self) -> Iterator[Delta]:
        """Raises SilentError."""
        asked = self._asked
        words = Words(self._gateway.tokenizer, asked.ids, self._stop)
        if self._before:
            yield Delta("", self._before)
        fresh: Origin | None = None
        waits = False  # what was said last is sent with what follows it
        for piece in self._gateway.answer(asked):
            self.tokens += 1
            if not self.origins or self.origins[-1] != piece.origin:
                self.origins.append(piece.origin)
                fresh = piece.origin
            thoughts = (piece.written,) if asked.alternatives is not None else ()
            text = words.take(piece.written.token)
            if text or thoughts or (waits and not piece.more):
                yield Delta(text, thoughts, origin=fresh, more=piece.more)
                fresh, waits = None, piece.more
            if words.stopped:
                yield Delta("", finish="stop")
                return
        finish = "length" if self.tokens == asked.most_tokens else "stop"
        yield Delta(words.rest(), finish=finish, origin=fresh)


class Kind(Protocol):
    """How one of the two kinds of answer is written down."""

    frame: Frame
    prompt_tokens: int
    answers: list[Answer]

    def whole(self, index: int, deltas: list[Delta]) -> Json:
        """A choice of an answer that is given at once."""
        ...

    def part(self, index: int, delta: Delta, *, first: bool) -> Json:
        """A choice of one event of a stream."""
        ...


class Completion:
    """POST /v1/completions"""

    def __init__(self, gateway: Gateway, request: CompletionRequest, over: Over) -> None:
        """Raises RefusedError; SilentError when the prompt is to be judged and nobody can, or it is over."""
        self.frame = Frame("cmpl", "text_completion", request.model)
        self._gateway = gateway
        self._request = request
        self._echoes: list[str] = []
        self.answers: list[Answer] = []
        path, seed = _path_and_seed(gateway, request)
        echoes = _echoes(gateway, request)  # before a long text is cut into tokens
        prompts = []
        for prompt in request.prompt:
            go_on_unless(over)
            prompts.append(_ids_of(gateway, prompt))
        self.prompt_tokens = sum(map(len, prompts))
        if request.judges_prompts:
            _check_judged(self.prompt_tokens, request.n)
        for ids, echo in zip(prompts, echoes, strict=True):
            before: tuple[Written, ...] = ()
            if request.judges_prompts:
                before = tuple(gateway.think(ids, request.alternatives or 0, path, over)[0])
            for asked in _each(request, ids, path, seed):
                self.answers.append(Answer(gateway, asked, request.stops, before))
                self._echoes.append(echo)

    def whole(self, index: int, deltas: list[Delta]) -> Json:
        text = self._echoes[index] + "".join(delta.text for delta in deltas)
        thoughts = tuple(written for delta in deltas for written in delta.thoughts)
        return {"text": text, **self._rest(index, thoughts), "finish_reason": deltas[-1].finish}

    def part(self, index: int, delta: Delta, *, first: bool) -> Json:
        text = (self._echoes[index] if first else "") + delta.text
        return {"text": text, **self._rest(index, delta.thoughts), "finish_reason": delta.finish}

    def _rest(self, index: int, thoughts: tuple[Written, ...]) -> Json:
        if self._request.alternatives is None:
            return {"index": index, "logprobs": None}
        say, offsets, offset = self._gateway.say, [], 0
        for written in thoughts:
            offsets.append(offset)
            offset += len(say(written.token))
        return {
            "index": index,
            "logprobs": {
                "tokens": [say(written.token) for written in thoughts],
                "token_logprobs": [written.logprob for written in thoughts],
                "top_logprobs": [_by_text(say, written) for written in thoughts],
                "text_offset": offsets,
            },
        }


class Chat:
    """POST /v1/chat/completions"""

    def __init__(self, gateway: Gateway, request: ChatRequest, template: Template) -> None:
        """Raises RefusedError."""
        self.frame = Frame("chatcmpl", "chat.completion.chunk" if request.stream else "chat.completion", request.model)
        self._gateway = gateway
        self._thinks = request.alternatives is not None
        path, seed = _path_and_seed(gateway, request)
        ids = _ids_of(gateway, template(texts_of(request.messages)))
        self.prompt_tokens = len(ids)
        self.answers = [Answer(gateway, asked, request.stops) for asked in _each(request, ids, path, seed)]

    def whole(self, index: int, deltas: list[Delta]) -> Json:
        text = "".join(delta.text for delta in deltas)
        thoughts = tuple(written for delta in deltas for written in delta.thoughts)
        return {
            "index": index,
            "message": {"role": "assistant", "content": text},
            "logprobs": self._thoughts(thoughts),
            "finish_reason": deltas[-1].finish,
        }

    def part(self, index: int, delta: Delta, *, first: bool) -> Json:
        said: Json = {"role": "assistant", "content": delta.text} if first else {"content": delta.text}
        if delta.finish is not None and not delta.text and not first:
            said = {}
        return {
            "index": index,
            "delta": said,
            "logprobs": self._thoughts(delta.thoughts),
            "finish_reason": delta.finish,
        }

    def _thoughts(self, thoughts: tuple[Written, ...]) -> Json | None:
        if not self._thinks:
            return None
        return {
            "content": [
                {
                    **self._token(written.token, written.logprob),
                    "top_logprobs": [self._token(token, logprob) for token, logprob in written.likeliest],
                }
                for written in thoughts
            ]
        }

    def _token(self, token: int, logprob: float | None) -> Json:
        text = self._gateway.say(token)
        return {"token": text, "logprob": logprob, "bytes": list(text.encode())}


def at_once(kind: Kind, over: Over) -> Json:
    """The whole answer. Raises SilentError."""
    choices = [kind.whole(index, list(_unless(over, answer))) for index, answer in enumerate(kind.answers)]
    return kind.frame(choices, usage=_used(kind), dipaco=_signed(kind))


@dataclass(frozen=True)
class Part:
    """An event of a stream."""

    fields: Json
    more: bool = False
    """The next one is there already: they can be sent together."""


def in_parts(kind: Kind, over: Over, *, tells_usage: bool) -> Iterator[Part]:
    """The events of a stream. Raises SilentError."""
    for index, answer in enumerate(kind.answers):
        first = True
        for delta in _unless(over, answer):
            part = kind.part(index, delta, first=first)
            if delta.origin is not None:
                part["written_by"] = written_by(delta.origin)
            yield Part(kind.frame([part], **({"usage": None} if tells_usage else {})), delta.more)
            first = False
    yield Part(kind.frame([], **({"usage": _used(kind)} if tells_usage else {}), dipaco=_signed(kind)))


def _unless(over: Over, answer: Answer) -> Iterator[Delta]:
    """What comes of an answer until the program is over. Raises SilentError then, and when nobody goes on."""
    with closing(answer.deltas()) as deltas:  # type: ignore[type-var]
        for delta in deltas:
            yield delta
            if delta.finish is None:
                go_on_unless(over)


def _used(kind: Kind) -> Json:
    return usage(kind.prompt_tokens, sum(answer.tokens for answer in kind.answers))


def _signed(kind: Kind) -> list[Json]:
    return [signature(answer.origins, answer.seed) for answer in kind.answers]


def _echoes(gateway: Gateway, request: CompletionRequest) -> list[str]:
    """What is given back of each prompt. Raises RefusedError where that is too much for one request."""
    if not request.echo:
        return [""] * len(request.prompt)
    found = [
        each if isinstance(each, str) else gateway.tokenizer.decode(list(_ids_of(gateway, each)))
        for each in request.prompt
    ]
    if sum(map(len, found)) * request.n > LONGEST_TEXT:
        raise RefusedError(
            f"echo: prompts and answers are so many that more than {LONGEST_TEXT:,} characters would be given back; "
            "leave it out, or ask for fewer at a time",
            param="echo",
        )
    return found


def _check_judged(tokens: int, answers: int) -> None:
    """Raises RefusedError where that is too much for one request."""
    if tokens * answers > MOST_IN_ALL:
        raise RefusedError(
            f"echo: prompts of {tokens:,} tokens, {answers} answers each, are more than {MOST_IN_ALL:,} tokens "
            "of which to say the logprobs; ask for fewer at a time",
            param="echo",
        )


def _each(
    request: CompletionRequest | ChatRequest, ids: tuple[int, ...], path: PathIndex | None, seed: int
) -> list[Asked]:
    """What is asked for one prompt: `n` texts, each with a seed of its own."""
    most, alternatives = request.most_tokens, request.alternatives
    return [
        Asked(ids, request.sampling, seed + choice, most, alternatives, path, request.reroute)
        for choice in range(request.n)
    ]


def _path_and_seed(gateway: Gateway, request: CompletionRequest | ChatRequest) -> tuple[PathIndex | None, int]:
    path = path_in(request.model, gateway.name, gateway.num_paths)
    if request.reroute is not None and (path is not None or not gateway.reroutes):
        why = "one path was asked for by its name" if path is not None else "this run has no window router"
        raise RefusedError(f"reroute: {why}; leave it out", param="reroute")
    seed = secrets.randbelow(1 << 31) if request.seed is None else request.seed
    return None if path is None else PathIndex(path), seed


def _ids_of(gateway: Gateway, prompt: Prompt) -> tuple[int, ...]:
    """A prompt as tokens that there are. Raises RefusedError."""
    ids = gateway.ids_of(prompt) if isinstance(prompt, str) else prompt
    if not ids:
        raise RefusedError("prompt: it is empty; give some text to go on from", param="prompt")
    if (largest := max(ids)) >= gateway.vocabulary:
        raise RefusedError(
            f"prompt: the token {largest} does not exist; this model has tokens 0 to {gateway.vocabulary - 1}",
            param="prompt",
        )
    return ids


def _by_text(say: Callable[[int], str], written: Written) -> dict[str, float] | None:
    """The likeliest tokens and the one that was taken, by what they say; of two that say the same the likelier."""
    if written.logprob is None:
        return None
    found: dict[str, float] = {}
    for token, logprob in (*written.likeliest, (written.token, written.logprob)):
        found[say(token)] = max(logprob, found.get(say(token), logprob))
    return found
