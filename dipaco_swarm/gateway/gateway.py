"""A text is routed and written; when a writer falls silent another goes on; every W tokens the path may change."""

import logging
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property

import numpy as np
from tokenizers import Tokenizer

from dipaco_swarm.algorithm.paths import PathIndex
from dipaco_swarm.errors import UsageError
from dipaco_swarm.gateway.asked import Asked, Origin, Over, Piece, SilentError, Task, Writer, go_on_unless
from dipaco_swarm.swarm.questions import MAX_NEW
from dipaco_swarm.training.routed import Routing
from dipaco_swarm.training.tokenizer import begin_of_text_ids, prompt_ids, vocabulary_size
from dipaco_swarm.training.window_router import WindowRouter
from dipaco_swarm.training.writing import Written

log = logging.getLogger(__name__)

Writers = Callable[[PathIndex], Iterator[Writer]]
"""Who can write for a path, the best first. The next one is asked for when one has fallen silent."""


Note = Callable[[Writer, Task, Sequence[Piece], bool], None]
"""Who has written what of a task, and whether the text is over after that, as it says."""


class Gateway:
    """What a run answers. From any thread."""

    def __init__(
        self,
        name: str,
        num_paths: int,
        prefix_tokens: int,
        routing: Routing,
        window_router: WindowRouter | None,
        writers: Writers,
        note: Note = lambda writer, task, pieces, ended: None,
    ) -> None:
        """`name`: the run's. `prefix_tokens`: what its router reads. `note`: is told who has written what."""
        self.name = name
        self.num_paths = num_paths
        self._prefix_tokens = prefix_tokens
        self._routing = routing
        self._window_router = window_router
        self._writers = writers
        self._note = note

    @property
    def tokenizer(self) -> Tokenizer:
        return self._routing.tokenizer

    @cached_property
    def vocabulary(self) -> int:
        """Tokens that there are."""
        return vocabulary_size(self.tokenizer)

    def say(self, token: int) -> str:
        """One token as text."""
        text: str = self.tokenizer.decode([token], skip_special_tokens=False)
        return text

    @property
    def reroutes(self) -> bool:
        """Whether a path can be chosen anew in the middle of a text."""
        return self._window_router is not None

    def ids_of(self, text: str) -> tuple[int, ...]:
        """A prompt as tokens, with what stands before every text; an empty one is that alone."""
        return tuple(prompt_ids(self.tokenizer, text) or begin_of_text_ids(self.tokenizer))

    def path_of(self, ids: Sequence[int]) -> PathIndex:
        """The path of a text, by its first tokens."""
        return PathIndex(int(self._routing.paths(np.array([ids[: self._prefix_tokens]], dtype=np.int64))[0]))

    def answer(self, asked: Asked) -> Iterator[Piece]:
        """The tokens of an answer, at most `most_tokens`. Raises SilentError when nobody can write, or goes on."""
        path = self._first_path(asked)
        text, begun, most = list(asked.ids), 0, asked.most_tokens
        while (drawn := len(text) - len(asked.ids)) < most:
            ahead = most - drawn if asked.window is None else min(most - drawn, asked.window)
            task = Task(path, tuple(text), drawn - begun, drawn, ahead, asked)
            for piece in self._insist(task):
                text.append(piece.written.token)
                yield piece
            if len(text) - len(asked.ids) < drawn + ahead:
                return  # the text is over
            chosen = self._next_path(asked, path, text)
            if chosen != path:
                path, begun = chosen, len(text) - len(asked.ids)

    def think(
        self, ids: Sequence[int], alternatives: int, path: PathIndex | None, over: Over = lambda: False
    ) -> tuple[list[Written], Origin]:
        """What its path thinks of each token of a text. Raises SilentError when nobody can say, or it is over."""
        path = self.path_of(ids) if path is None else path
        why = ""
        for writer in self._writers(path):
            go_on_unless(over)
            try:
                return writer.think(path, ids, alternatives, over)
            except SilentError as error:
                why = str(error)
        raise SilentError(_nobody(path, why))

    def _insist(self, task: Task) -> Iterator[Piece]:
        """The tokens of a task, whoever writes them. Who goes on begins where the one before fell silent."""
        new: list[int] = []
        why, is_said_to_be_over = "", False
        for writer in self._writers(task.path):
            left, pieces, ended = _what_is_left(task, new), [], False
            try:
                for piece in writer.write(left):
                    if piece.written.token >= self.vocabulary:  # nobody could go on after that
                        raise SilentError("wrote a token that does not exist")
                    new.append(piece.written.token)
                    pieces.append(piece)
                    yield piece
                ended = 0 < len(pieces) < min(left.most_tokens, MAX_NEW)
                if new or is_said_to_be_over:
                    return
                # anybody can say that a text is over: of one without a word, two have to say so
                why, is_said_to_be_over = "wrote nothing", True
            except SilentError as error:
                if len(new) == task.most_tokens:
                    return
                why = str(error)
                log.info("a writer of path %d fell silent (%s); the next one goes on", task.path, why)
            finally:
                if pieces:
                    self._note(writer, left, pieces, ended)
        if not is_said_to_be_over:
            raise SilentError(_nobody(task.path, why))

    def _first_path(self, asked: Asked) -> PathIndex:
        if asked.path is not None:
            return asked.path
        if asked.window is not None and len(asked.ids) > self._prefix_tokens:
            return self._router().choose(asked.ids)
        return self.path_of(asked.ids)

    def _next_path(self, asked: Asked, path: PathIndex, text: Sequence[int]) -> PathIndex:
        return path if asked.window is None else self._router().choose(text)

    def _router(self) -> WindowRouter:
        if self._window_router is None:
            raise UsageError(f"the run {self.name} has no window router; leave out reroute")
        return self._window_router


def _what_is_left(task: Task, new: Sequence[int]) -> Task:
    """Of a task, after these tokens were written."""
    count = len(new)
    return Task(
        task.path,
        (*task.text, *new),
        task.written + count,
        task.drawn + count,
        task.most_tokens - count,
        task.asked,
    )


def _nobody(path: PathIndex, why: str) -> str:
    return f"nobody answers for path {path} now" + (f" ({why})" if why else "") + "; try again in a minute"
