"""What is said on a stream on which somebody asks a peer to write, or to judge, a text with its path."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from dipaco_swarm.swarm.fields import Digest, Index, Message, ModuleName, Reason, Seconds, Version

MAX_TEXT = 1 << 14
"""Tokens of a text; who has a longer one reads it alone."""
MAX_NEW = 1 << 13
"""Tokens that are asked for at once."""
MAX_TEMPERATURE = 10
MAX_TOP_K = (1 << 24) - 1
MAX_SEED = (1 << 63) - 1
MAX_ALTERNATIVES = 20
MAX_LEVELS = 64
MAX_BATCH = 256
"""Tokens in one message."""
Token = Annotated[int, Field(ge=0, lt=1 << 24)]
Logprob = Annotated[float, Field(ge=-1e9, le=1e-3)]
Likeliest = Annotated[tuple[tuple[Token, Logprob], ...], Field(max_length=MAX_ALTERNATIVES)]


class AskText(Message):
    """Asker -> peer: go on with this text as your path would; or, with `most_tokens` 0, say what it thinks of it."""

    kind: Literal["ask-text"] = "ask-text"
    stage: Index
    path: Index
    text: tuple[Token, ...] = Field(min_length=1, max_length=MAX_TEXT)
    written: Annotated[int, Field(ge=0, lt=MAX_TEXT)] = 0
    """So many tokens at its end were written by this path like this."""
    drawn: Annotated[int, Field(ge=0, lt=MAX_TEXT)] = 0
    """So many were drawn with the seed, by this path or others."""
    most_tokens: Annotated[int, Field(ge=0, le=MAX_NEW)]
    temperature: Annotated[float, Field(ge=0, le=MAX_TEMPERATURE)] = 1.0
    top_k: Annotated[int, Field(ge=0, le=MAX_TOP_K)] = 0
    """0: all."""
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    seed: Annotated[int, Field(ge=-MAX_SEED - 1, le=MAX_SEED)] = 0
    alternatives: Annotated[int, Field(ge=0, le=MAX_ALTERNATIVES)] | None = None
    """How many of the likeliest tokens to name; None: say nothing of what the path thinks."""

    @model_validator(mode="after")
    def _fits_the_text(self) -> "AskText":
        if max(self.written, self.drawn) >= len(self.text):
            raise ValueError("more tokens were written than there are behind the first")
        return self


class NotNow(Message):
    """Peer -> asker: somebody else, please."""

    kind: Literal["not-now"] = "not-now"
    reason: Reason
    seconds: Seconds = 0.0
    """After so long it may be otherwise; 0: nobody knows."""


class Waits(Message):
    """Peer -> asker: others are before you; it begins in about so long. At most once, and before all else."""

    kind: Literal["waits"] = "waits"
    seconds: Seconds


class Begins(Message):
    """Peer -> asker: it comes, from these states of the path's modules, by level."""

    kind: Literal["begins"] = "begins"
    modules: tuple[tuple[ModuleName, Version, Digest], ...] = Field(min_length=1, max_length=MAX_LEVELS)


class Tokens(Message):
    """Peer -> asker: the next tokens."""

    kind: Literal["tokens"] = "tokens"
    tokens: tuple[Token, ...] = Field(min_length=1, max_length=MAX_BATCH)
    logprobs: tuple[Logprob | None, ...] = Field(default=(), max_length=MAX_BATCH)
    """Of each token, where that was asked for."""
    likeliest: tuple[Likeliest, ...] = Field(default=(), max_length=MAX_BATCH)

    @model_validator(mode="after")
    def _fit_each_other(self) -> "Tokens":
        if not len(self.logprobs) == len(self.likeliest) in (0, len(self.tokens)):
            raise ValueError("what is thought of tokens is said of each of them, or of none")
        return self


class TextEnds(Message):
    """Peer -> asker: that is all; the text is over, or has as many tokens as were asked for."""

    kind: Literal["text-ends"] = "text-ends"


Said = NotNow | Waits | Begins | Tokens | TextEnds
