"""A peer answers questions beside training: texts are gone on with as its path would, from the newest agreed states.

One thread writes a token of each question in turn; turns go round askers. Beside training it may take a small share of
the time, in bursts (`shares.py`); when that is used up, new questions are sent elsewhere. What is written comes from
agreed states, and not from what this peer has trained since: so everybody who has them can write it again, or go on
with it.
"""

import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Protocol

from dipaco_swarm.algorithm.paths import ModuleId, PathIndex
from dipaco_swarm.algorithm.state import ModuleState
from dipaco_swarm.machine.clock import Clock
from dipaco_swarm.peer.shares import Allowance, Turns
from dipaco_swarm.run.manifest import Manifest
from dipaco_swarm.swarm.asking import Say
from dipaco_swarm.swarm.questions import MAX_BATCH, AskText, Begins, NotNow, TextEnds, Tokens
from dipaco_swarm.training.inference import Sampling
from dipaco_swarm.training.modules import PathModel, build_network
from dipaco_swarm.training.tokenizer import end_of_text_id, load_tokenizer, vocabulary_size
from dipaco_swarm.training.writing import Written, think, write

log = logging.getLogger(__name__)

SECONDS_OF_ONE = 60.0
"""Of computing for one question; who wants more asks again, perhaps somebody else."""
PAUSED_SECONDS = 60.0
"""Whoever asks a peer whose machine is needed otherwise may ask again after this."""
OTHERS_SECONDS = 10.0
"""Whoever has several questions here and loses one to another asker may ask again after this."""


TELL_SECONDS = 0.03
"""Tokens that come closer together than this are told together: each message costs a token's time a part of itself."""


class InTraining(Protocol):
    """What the desk looks at of a path in training, from its own thread."""

    @property
    def path(self) -> PathIndex: ...

    @property
    def base(self) -> Mapping[ModuleId, ModuleState]:
        """The states that its modules were last agreed on."""
        ...

    @property
    def is_done(self) -> bool:
        """Nothing is trained beside answers any more."""
        ...


@dataclass(frozen=True)
class _Post:
    """What the peer trains."""

    manifest: Manifest
    peer: InTraining
    vocabulary: int
    end_of_text: int


@dataclass(eq=False)
class _Question:
    asked: AskText
    asker: str
    say: Say
    spent: float = 0.0
    tokens: Iterator[Written] | None = None
    """None: it has not begun."""
    untold: list[Written] = field(default_factory=list)
    told_at: float = float("-inf")
    ended: bool = False
    """Nobody listens any more."""

    def tell(self) -> None:
        """What is written and was not told yet."""
        if self.untold:
            self.say(_said(self.untold, self.asked))
            self.untold = []

    def end(self, word: TextEnds | NotNow) -> None:
        self.tell()
        self.say(word)


@dataclass(eq=False)
class _Loaded:
    """The path as it writes: the post, the states, and the network that they are in."""

    post: _Post
    states: Mapping[ModuleId, ModuleState]
    model: PathModel = field(repr=False)

    def is_of(self, post: _Post) -> bool:
        return post.peer.path == self.post.peer.path and post.manifest.stage.index == self.post.manifest.stage.index


class AnswerDesk:
    """`Desk` of a volunteer. `close` ends its thread. All methods may be called from any thread."""

    def __init__(self, clock: Clock, device: str, at_once: int) -> None:
        """`at_once`: questions that are answered at the same time; others wait, or are sent elsewhere."""
        self._clock = clock
        self._device = device
        self._allowance = Allowance(clock)
        self._changed = threading.Condition()
        self._post: _Post | None = None
        self._questions: Turns[_Question] = Turns(at_once)
        self._loaded: _Loaded | None = None
        """Of the thread."""
        self._thread: threading.Thread | None = None
        self._closing = False
        self._resting = False
        self.tokens = 0
        """Written for others so far."""

    # the program's side ----------------------------------------------------------------------------------------------

    def enter(self, manifest: Manifest, peer: InTraining, fetch: Callable[[str], bytes]) -> None:
        """Answer for this path from now on: questions about another one go elsewhere, and what is being written, others
        go on with. Answers have all the time while nothing is trained."""
        tokenizer = load_tokenizer(fetch(manifest.tokenizer))
        with self._changed:
            self._post = _Post(manifest, peer, vocabulary_size(tokenizer), end_of_text_id(tokenizer))

    def close(self) -> None:
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()

    # who asks --------------------------------------------------------------------------------------------------------

    def take(self, asked: AskText, asker: str, say: Say) -> Callable[[], None]:
        question = _Question(asked, asker, say)
        with self._changed:
            refusal = self._refusal(asked, asker)
            if refusal is not None:
                say(refusal)
                return lambda: None
            waiting = len(self._questions)
            for gone in self._questions.add(question):
                gone.ended = True
                if gone is question:
                    gone.say(NotNow(reason=f"{waiting} questions are waiting", seconds=5.0))
                    return lambda: None
                gone.say(NotNow(reason="it is the turn of somebody else", seconds=OTHERS_SECONDS))
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="answers", daemon=True)
                self._thread.start()
            self._changed.notify_all()

        def end() -> None:
            question.ended = True

        return end

    def rest(self, *, resting: bool) -> None:
        """Answer nobody while the machine is needed otherwise: who asks goes on with somebody else."""
        with self._changed:
            self._resting = resting

    def _refusal(self, asked: AskText, asker: str) -> NotNow | None:
        post = self._post
        if self._resting:
            return NotNow(reason="its machine is needed otherwise", seconds=PAUSED_SECONDS)
        if post is None or self._closing:
            return NotNow(reason="not ready to answer", seconds=5.0)
        if (asked.stage, asked.path) != (post.manifest.stage.index, post.peer.path):
            return NotNow(reason=f"trains path {post.peer.path} of stage {post.manifest.stage.index}")
        if max(asked.text) >= post.vocabulary:
            return NotNow(reason=f"the model has tokens 0 to {post.vocabulary - 1} only")
        if not post.peer.is_done and (seconds := self._allowance.seconds_until_some(asker)) > 0:
            return NotNow(reason="has answered as much as it may beside training", seconds=seconds)
        return None

    # the thread ------------------------------------------------------------------------------------------------------

    def _work(self) -> None:
        while (question := self._next()) is not None:
            began = self._clock.monotonic()
            try:
                goes_on = self._go_on(question)
            except Exception:  # one question may not take the desk from all others
                log.exception("a question could not be answered")
                question.say(NotNow(reason="could not write it"))
                goes_on = False
            seconds = self._clock.monotonic() - began
            question.spent += seconds
            with self._changed:
                if self._post is not None and not self._post.peer.is_done:
                    self._allowance.spend(seconds, question.asker)
                self._questions.spent(question, seconds)
                if not goes_on:
                    self._questions.remove(question)

    def _next(self) -> _Question | None:
        """Whose turn it is; None at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._closing or len(self._questions))
            return None if self._closing else self._questions.next()

    def _go_on(self, question: _Question) -> bool:
        """Write its next token; whether there is more to do."""
        if question.ended:
            return False
        if self._resting:
            question.end(NotNow(reason="its machine is needed otherwise", seconds=PAUSED_SECONDS))
            return False
        if question.spent > SECONDS_OF_ONE:
            question.end(NotNow(reason=f"it took more than {SECONDS_OF_ONE:.0f} s"))
            return False
        loaded = self._load(begins=question.tokens is None)
        if loaded is None:
            question.end(NotNow(reason="has moved on", seconds=5.0))
            return False
        if question.tokens is None:
            question.say(Begins(modules=tuple((str(m), s.version, s.digest) for m, s in loaded.states.items())))
            if question.asked.most_tokens == 0:
                _judge(question, loaded)
                return False
            question.tokens = _written(question.asked, loaded)
            return True
        written = next(question.tokens, None)
        if written is None:
            question.end(TextEnds())
            return False
        self.tokens += 1
        question.untold.append(written)
        now = self._clock.monotonic()
        if now - question.told_at >= TELL_SECONDS or len(question.untold) == MAX_BATCH:
            question.tell()
            question.told_at = now
        return True

    def _load(self, *, begins: bool) -> _Loaded | None:
        """What writes: the newest states; or those that texts under way are written with. None: we have moved.

        `begins`: the question has no token yet.
        """
        with self._changed:
            post = self._post
            busy = any(question.tokens is not None for question in self._questions)
        loaded = self._loaded
        if post is None or (loaded is not None and not loaded.is_of(post)):
            self._loaded = loaded = None
        if post is None or (loaded is None and not begins):
            return None
        states = dict(post.peer.base)
        if loaded is not None and (not begins or busy or loaded.states == states):
            return loaded
        model = loaded.model if loaded is not None else self._network(post)
        for module, state in states.items():
            model.load(module.level, state.params)
        self._loaded = _Loaded(post, states, model)
        return self._loaded

    def _network(self, post: _Post) -> PathModel:
        config = post.manifest.rules
        model = PathModel(build_network(config.model, post.vocabulary, config.seed), config.levels)
        model.to(self._device)
        return model


def _written(asked: AskText, loaded: _Loaded) -> Iterator[Written]:
    tokens = write(
        loaded.model.network,
        asked.text,
        Sampling(asked.temperature, asked.top_k or None, asked.top_p),
        asked.seed,
        written=asked.written,
        drawn=asked.drawn,
        alternatives=asked.alternatives,
        end_of_text=loaded.post.end_of_text,
    )
    return islice(tokens, asked.most_tokens)


def _judge(question: _Question, loaded: _Loaded) -> None:
    found = think(loaded.model.network, question.asked.text, question.asked.alternatives or 0)
    for start in range(0, len(found), MAX_BATCH):
        question.say(_said(found[start : start + MAX_BATCH], question.asked))
    question.say(TextEnds())


def _said(written: list[Written], asked: AskText) -> Tokens:
    tokens = tuple(each.token for each in written)
    if asked.alternatives is None and asked.most_tokens:
        return Tokens(tokens=tokens)
    return Tokens(
        tokens=tokens,
        logprobs=tuple(None if each.logprob is None else min(each.logprob, 0.0) for each in written),
        likeliest=tuple(tuple((token, min(logprob, 0.0)) for token, logprob in each.likeliest) for each in written),
    )
