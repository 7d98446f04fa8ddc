"""What is asked of a model, and what comes back, as values."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from dipaco_swarm.algorithm.paths import PathIndex
from dipaco_swarm.training.inference import Sampling
from dipaco_swarm.training.writing import Written

Over = Callable[[], bool]
"""Whether nobody is answered any more: the program is being ended, or who has asked has gone."""


@dataclass(frozen=True)
class Asked:
    """A text to be gone on with."""

    ids: tuple[int, ...]
    """The prompt, at least one token."""
    sampling: Sampling
    seed: int
    most_tokens: int
    alternatives: int | None = None
    """How many of the likeliest tokens to name at each place; None: say nothing of what paths think."""
    path: PathIndex | None = None
    """Who writes; None: the run's router says."""
    window: int | None = None
    """Route anew every so many tokens; None: once."""


@dataclass(frozen=True)
class Origin:
    """Who wrote, with which parameters: whoever has them can write it again."""

    path: PathIndex
    modules: Mapping[str, str]
    """Of each module of the path (L0M1), the version and digest of its state, as `12:4fd2...`."""
    by: str
    """The peer's name; empty: this machine."""


@dataclass(frozen=True)
class Piece:
    """A token of an answer, and whose it is."""

    written: Written
    origin: Origin
    more: bool = False
    """What follows is there already, and need not be waited for."""


@dataclass(frozen=True)
class Task:
    """What a writer is asked: tokens after a text, of one path."""

    path: PathIndex
    text: tuple[int, ...]
    """The prompt and what was written after it."""
    written: int
    """So many of its last tokens were written by this path, without a break."""
    drawn: int
    """So many tokens were drawn with the seed."""
    most_tokens: int
    asked: Asked = field(repr=False)


class SilentError(Exception):
    """A writer has stopped in the middle, or did not begin. Somebody else may go on."""


def go_on_unless(over: Over) -> None:
    """Raises SilentError."""
    if over():
        raise SilentError("this gateway is being ended; ask again in a minute")


class Writer(Protocol):
    """Who can write for a path: a peer that trains it, or this machine."""

    def write(self, task: Task) -> Iterator[Piece]:
        """The next tokens, at most `most_tokens`, fewer where the text ends. Raises SilentError."""
        ...

    def think(
        self, path: PathIndex, text: Sequence[int], alternatives: int, over: Over = lambda: False
    ) -> tuple[list[Written], Origin]:
        """What the path thinks of each token of a text. Raises SilentError."""
        ...
