"""A peer answers questions beside training: texts are gone on with as its path would, from the newest agreed states.

One thread writes a token of each question in one pass; one that is new is read between two passes. Beside training it
may take a small share of the time, in bursts (`shares.py`); when that is used up, new questions are sent elsewhere.
What is written comes from agreed states, and not from what this peer has trained since: so everybody who has them can
write it again, or go on with it.
"""

import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from dipaco_swarm.algorithm.paths import ModuleId, PathIndex
from dipaco_swarm.algorithm.state import ModuleState
from dipaco_swarm.machine.clock import Clock
from dipaco_swarm.peer.shares import Allowance, Turns
from dipaco_swarm.run.manifest import Manifest
from dipaco_swarm.swarm.asking import Say
from dipaco_swarm.swarm.questions import MAX_BATCH, AskText, Begins, NotNow, TextEnds, Tokens, Waits
from dipaco_swarm.training.inference import Sampling
from dipaco_swarm.training.modules import PathModel, build_network
from dipaco_swarm.training.tokenizer import end_of_text_id, load_tokenizer, vocabulary_size
from dipaco_swarm.training.writing import Batch, Text, Written, thoughts

log = logging.getLogger(__name__)

SECONDS_OF_ONE = 60.0
"""Of computing for one question; who wants more asks again, perhaps somebody else."""
PAUSED_SECONDS = 60.0
"""Whoever asks a peer whose machine is needed otherwise may ask again after this."""
OTHERS_SECONDS = 10.0
"""Whoever has several questions here and loses one to another asker may ask again after this."""
ENOUGH = "has answered as much as it may beside training"
VERSIONS = 2
"""Of a path in memory: the one that new texts are written with, and while texts of one before go on, that one."""

TELL_SECONDS = 0.08
"""Tokens that come closer together than this are told together, but for the first: each message costs the time of a
token a part of itself, and twelve a second are more than a reader wants."""


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

    @property
    def place(self) -> tuple[int, PathIndex]:
        """Stage and path, as questions name them."""
        return self.manifest.stage.index, self.peer.path


@dataclass(eq=False)
class _Question:
    asked: AskText
    asker: str
    say: Say
    spent: float = 0.0
    reading: Iterator[None] | None = None
    """What it is read by, a part at a time; None: nobody has begun."""
    text: Text | None = None
    """None: it is not read yet."""
    began: float = 0.0
    """When that was."""
    written: int = 0
    """Tokens."""
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
    """The path as it writes: the post, which states, the network that they are in, and what is written with it."""

    post: _Post
    modules: tuple[tuple[str, int, str], ...]
    """Version and digest of each."""
    model: PathModel = field(repr=False)
    going: dict[Text, _Question] = field(default_factory=dict)
    read: list[_Question] = field(default_factory=list)
    """Which are being read, a part at a time, and what is not to be written at all."""

    def __post_init__(self) -> None:
        self.batch = Batch(self.model.network)

    def is_of(self, post: _Post) -> bool:
        return post.place == self.post.place

    @property
    def is_in_use(self) -> bool:
        return bool(self.going or self.read)

    def leave(self, question: _Question) -> None:
        """It is not gone on with; one that is not here is passed over."""
        self.read = [each for each in self.read if each is not question]
        if question.text is not None and self.going.pop(question.text, None) is not None:
            self.batch.remove(question.text)


class AnswerDesk:
    """`Desk` of a volunteer. `close` ends its thread. All methods may be called from any thread."""

    def __init__(self, clock: Clock, device: str, at_once: int) -> None:
        """`at_once`: questions that are answered at the same time; others wait, or are sent elsewhere."""
        self._clock = clock
        self._device = device
        self._allowance = Allowance(clock)
        self._changed = threading.Condition()
        self._post: _Post | None = None
        self._at_once = at_once
        self._questions: Turns[_Question] = Turns(at_once)
        self._loaded: list[_Loaded] = []
        """Of the thread; new texts are written with the last one."""
        self._thread: threading.Thread | None = None
        self._closing = False
        self._resting = False
        self._text_seconds = 2.0
        """From a text's beginning to its end: a mean that forgets."""
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
            before = len(self._questions)
            wait = self._text_seconds * max(0, before + 1 - self._at_once) / self._at_once
            left = self._questions.add(question)
            for gone in left:
                gone.ended = True
                if gone is question:
                    gone.say(NotNow(reason=f"{before} questions are before", seconds=wait))
                    return lambda: None
                gone.say(NotNow(reason="it is the turn of somebody else", seconds=OTHERS_SECONDS))
            if wait and not left:
                say(Waits(seconds=wait))
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
        if (asked.stage, asked.path) != post.place:
            return NotNow(reason=f"trains path {post.peer.path} of stage {post.manifest.stage.index}")
        if max(asked.text) >= post.vocabulary:
            return NotNow(reason=f"the model has tokens 0 to {post.vocabulary - 1} only")
        if not post.peer.is_done and (seconds := self._allowance.seconds_until_some(asker)) > 0:
            return NotNow(reason=ENOUGH, seconds=seconds)
        return None

    # the thread ------------------------------------------------------------------------------------------------------

    def _work(self) -> None:
        while (questions := self._next()) is not None:
            for question in questions:
                self._ends_early(question)
            new = next((each for each in questions if each.text is None and not each.ended), None)
            if new is not None:
                self._timed([new], partial(self._read, new))
            for loaded in list(self._loaded):
                if loaded.going:
                    self._timed(list(loaded.going.values()), partial(self._go_on, loaded))

    def _next(self) -> list[_Question] | None:
        """Whose turn it is; None at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._closing or len(self._questions))
            return None if self._closing else self._questions.begun()

    def _timed(self, questions: Sequence[_Question], work: Callable[[], None]) -> None:
        """Do something for these questions together; each has its part of the time."""
        began = self._clock.monotonic()
        try:
            work()
        except Exception:  # one question may not take the desk from all others
            log.exception("a question could not be answered")
            for question in questions:
                self._end(question, NotNow(reason="could not write it"))
        seconds = (self._clock.monotonic() - began) / len(questions)
        with self._changed:
            for question in questions:
                question.spent += seconds
                if self._post is not None and not self._post.peer.is_done:
                    self._allowance.spend(seconds, question.asker)
                self._questions.spent(question, seconds)

    def _ends_early(self, question: _Question) -> None:
        """Take it away where it cannot be gone on with."""
        with self._changed:
            post = self._post
        here = post is not None and (question.asked.stage, question.asked.path) == post.place
        if question.ended:
            self._end(question, None)
        elif self._resting:
            self._end(question, NotNow(reason="its machine is needed otherwise", seconds=PAUSED_SECONDS))
        elif question.spent > SECONDS_OF_ONE:
            self._end(question, NotNow(reason=f"it took more than {SECONDS_OF_ONE:.0f} s"))
        elif post is None or not here:
            self._end(question, NotNow(reason="has moved on", seconds=5.0))
        elif not post.peer.is_done and (seconds := self._allowance.seconds_without_any(question.asker)) > 0:
            self._end(question, NotNow(reason=ENOUGH, seconds=seconds))

    def _end(self, question: _Question, word: TextEnds | NotNow | None) -> None:
        """`word`: what it is told last; None: nobody listens."""
        question.ended = True
        for loaded in self._loaded:
            loaded.leave(question)
        self._loaded = [each for each in self._loaded if each.is_in_use or each is self._loaded[-1]]
        with self._changed:
            self._questions.remove(question)
        if word is not None:
            question.end(word)

    def _read(self, question: _Question) -> None:
        """A part of it; others take their turns between two of these."""
        question.reading = question.reading or self._begin(question)
        next(question.reading, None)

    def _begin(self, question: _Question) -> Iterator[None]:
        """Read it, and write its first token; or say what is thought of it."""
        loaded, asked = self._load(), question.asked
        if loaded is None:
            self._end(question, NotNow(reason="has moved on", seconds=5.0))
            return
        loaded.read.append(question)
        question.say(Begins(modules=loaded.modules))
        if asked.most_tokens == 0:
            for found in thoughts(loaded.model.network, asked.text, asked.alternatives or 0):
                for start in range(0, len(found), MAX_BATCH):
                    question.say(_said(found[start : start + MAX_BATCH], asked))
                yield
            self._end(question, TextEnds())
            return
        question.began = self._clock.monotonic()
        yield from self._first(question, loaded, _text_of(asked, loaded))

    def _first(self, question: _Question, loaded: _Loaded, text: Text) -> Iterator[None]:
        """Read a text, which goes on with the others then."""
        word = yield from loaded.batch.reading(text)
        loaded.leave(question)
        question.text = text
        loaded.going[text] = question
        self._take(question, word)

    def _go_on(self, loaded: _Loaded) -> None:
        """Write a token of each text; one whose context is cut now is read before it goes on."""
        for text in loaded.batch.take_full():
            question = loaded.going.pop(text)
            loaded.read.append(question)
            question.tell()
            question.text, question.reading = None, self._first(question, loaded, text)
        for text, written in loaded.batch.go_on():
            self._take(loaded.going[text], written)

    def _take(self, question: _Question, written: Written | None) -> None:
        if question.ended:  # meanwhile
            self._end(question, None)
            return
        if written is not None:
            self.tokens += 1
            question.written += 1
            question.untold.append(written)
        if written is None or question.written == question.asked.most_tokens:
            self._text_seconds += 0.3 * (self._clock.monotonic() - question.began - self._text_seconds)
            self._end(question, TextEnds())
            return
        now = self._clock.monotonic()
        if now - question.told_at >= TELL_SECONDS or len(question.untold) == MAX_BATCH:
            question.tell()
            question.told_at = now

    def _load(self) -> _Loaded | None:
        """What a new text is written with: the newest states; those before, while texts of even older ones go on, as
        then all the room is taken. None: we have moved."""
        with self._changed:
            post = self._post
        if post is None:
            return None
        states = post.peer.base
        modules = tuple((str(module), state.version, state.digest) for module, state in states.items())
        going = [loaded for loaded in self._loaded if loaded.is_in_use and loaded.is_of(post)]
        newest = self._loaded[-1] if self._loaded and self._loaded[-1].is_of(post) else None
        if newest is not None and (newest.modules == modules or len(going) == VERSIONS):
            return newest
        model = self._network(post) if newest is None or newest.is_in_use else newest.model
        for module, state in states.items():
            model.load(module.level, state.params)
        self._loaded = [*going, _Loaded(post, modules, model)]
        return self._loaded[-1]

    def _network(self, post: _Post) -> PathModel:
        config = post.manifest.rules
        model = PathModel(build_network(config.model, post.vocabulary, config.seed), config.levels)
        model.to(self._device)
        return model


def _text_of(asked: AskText, loaded: _Loaded) -> Text:
    return Text(
        loaded.model.network,
        asked.text,
        Sampling(asked.temperature, asked.top_k or None, asked.top_p),
        asked.seed,
        asked.written,
        asked.drawn,
        asked.alternatives,
        loaded.post.end_of_text,
    )


def _said(written: list[Written], asked: AskText) -> Tokens:
    tokens = tuple(each.token for each in written)
    if asked.alternatives is None and asked.most_tokens:
        return Tokens(tokens=tokens)
    return Tokens(
        tokens=tokens,
        logprobs=tuple(None if each.logprob is None else min(each.logprob, 0.0) for each in written),
        likeliest=tuple(tuple((token, min(logprob, 0.0)) for token, logprob in each.likeliest) for each in written),
    )
