"""Whether peers write what their path writes: some answers are written again, from the states that they named.

By another peer of the path, who has these states as well: that costs nobody anything. Only where two peers differ, or
where a path is small, this machine fetches the states and writes for itself: they are eight bytes a parameter, from
members' lines.
"""

import logging
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from dipaco_swarm.algorithm.paths import ModuleId, PathIndex
from dipaco_swarm.algorithm.state import ModuleState
from dipaco_swarm.client.trained_run import TrainedRun
from dipaco_swarm.gateway.asked import Origin, SilentError, Task
from dipaco_swarm.gateway.peers import PeerWriter
from dipaco_swarm.swarm.asking import longest
from dipaco_swarm.swarm.interface import PeerName
from dipaco_swarm.training.modules import PathModel
from dipaco_swarm.training.tokenizer import end_of_text_id, vocabulary_size
from dipaco_swarm.training.writing import differences

log = logging.getLogger(__name__)

SHARE = 0.1
"""Of the answers that are checked; the first of each peer always is."""
WAITING = 16
"""Answers that wait to be checked; with more, some are not."""
SMALL_BYTES = 64 << 20
"""States of a path that may be fetched only because nobody else can be asked."""
TOKENS_FOR_A_DIFFERENCE = 50
"""One token of so many may differ: other processors round otherwise."""
CLOSING_SECONDS = 8.0
"""For a check that is under way when the program ends: a peer may be silent for five before that is noticed."""

StateOf = Callable[[ModuleId, str], ModuleState | None]
"""A state by its module and digest; None: nobody has it any more."""


@dataclass(frozen=True)
class Answered:
    """What a peer has written."""

    peer: PeerName
    task: Task
    tokens: tuple[int, ...]
    origin: Origin
    ended: bool = False
    """It says that the text is over after these."""


class Checks:
    """Writes some answers again, in a thread of its own, which ends with the program."""

    def __init__(
        self,
        run: TrainedRun,
        state_of: StateOf,
        distrust: Callable[[PeerName, str], None],
        writers: Callable[[PathIndex], Iterator[PeerWriter]],
    ) -> None:
        """`distrust`: is told who does not write what its path writes, and why. `writers`: peers of a path."""
        self._run = run
        self._state_of = state_of
        self._distrust = distrust
        self._writers = writers
        self._changed = threading.Condition()
        self._waiting: deque[Answered] = deque()
        self._met: set[PeerName] = set()
        self._thread: threading.Thread | None = None
        self._is_busy = False
        self._closed = False
        self.checked = 0

    def note(self, answered: Answered) -> None:
        """A peer has written this. Returns at once."""
        with self._changed:
            if self._closed or (answered.peer in self._met and random.random() > SHARE):
                return
            if len(self._waiting) == WAITING:
                log.debug("too many answers wait to be checked; one is not")
                return
            self._met.add(answered.peer)
            self._waiting.append(answered)
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="checks", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def close(self) -> None:
        """Nothing more is checked; a check that is under way ends soon. Returns at once."""
        with self._changed:
            self._closed = True
            self._waiting.clear()
            self._changed.notify_all()

    def finish(self, seconds: float) -> bool:
        """Let those that wait be checked, for so long at most. Whether that was enough."""
        done = self._settle(seconds)
        self.close()
        self._settle(CLOSING_SECONDS)
        return done

    def _settle(self, seconds: float) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: not self._is_busy and not self._waiting, timeout=seconds)

    def _work(self) -> None:
        while (answered := self._next()) is not None:
            try:
                self.check(answered)
            except Exception:  # one answer may not keep all others from being checked
                log.exception("an answer could not be checked")
            self.checked += 1

    def _next(self) -> Answered | None:
        with self._changed:
            self._is_busy = False
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._closed or bool(self._waiting))
            if self._closed:
                return None
            self._is_busy = True
            return self._waiting.popleft()

    def check(self, answered: Answered) -> None:
        """Ask somebody else; where the two differ, find out who is wrong."""
        other = self._second_opinion(answered)
        if other is not None and (other.tokens, other.ended) == (answered.tokens, answered.ended):
            return
        if other is None and not self._is_small:
            log.debug("nobody else has the states of an answer; it is not checked")
            return
        for each in filter(None, (answered, other)):
            if self._closed:
                return
            why = self.fault(each)
            if why is not None:
                self._distrust(each.peer, why)

    def _second_opinion(self, answered: Answered) -> Answered | None:
        """What another peer writes from the same states; None: nobody has them, or nobody writes it in the time that
        one answer may take."""
        task = replace(answered.task, most_tokens=len(answered.tokens) + answered.ended)
        deadline = time.monotonic() + longest(len(answered.tokens))
        for writer in self._writers(task.path):
            if self._closed or time.monotonic() > deadline:
                return None
            if writer.name == answered.peer:
                continue
            tokens: list[int] = []
            try:
                for piece in writer.write(task):
                    if piece.origin.modules != answered.origin.modules or self._closed or time.monotonic() > deadline:
                        break
                    tokens.append(piece.written.token)
                else:
                    return Answered(writer.name, task, tuple(tokens), answered.origin, len(tokens) < task.most_tokens)
            except SilentError as error:
                log.debug("no second opinion: %s", error)
        return None

    @cached_property
    def _is_small(self) -> bool:
        """Whether all states of a path may be fetched for a check."""
        return 8 * sum(self._run.parameters) <= SMALL_BYTES

    @cached_property
    def _vocabulary(self) -> int:
        return vocabulary_size(self._run.tokenizer)

    @cached_property
    def _model(self) -> PathModel:
        """That answers are written with again; made when the first one has to be."""
        return self._run.model()

    def fault(self, answered: Answered) -> str | None:
        """What is wrong with an answer; None: nothing, or it cannot be known."""
        if not answered.tokens:
            return None
        if max(answered.tokens) >= self._vocabulary:
            return "wrote tokens that do not exist"
        task, model = answered.task, self._model
        why = states_into(model, self._run.table.modules_of(task.path), answered.origin, self._state_of)
        if why != "":
            return why
        asked = task.asked
        written = (*answered.tokens, *([end_of_text_id(self._run.tokenizer)] if answered.ended else []))
        text = (*task.text, *written)
        found = differences(model.network, text, len(written), asked.sampling, asked.seed, task.drawn)
        if found is None or found <= len(written) // TOKENS_FOR_A_DIFFERENCE:
            return None
        return f"{found} of {len(written)} tokens are not what path {task.path} writes from the states named"


def states_into(model: PathModel, modules: Sequence[ModuleId], origin: Origin, state_of: StateOf) -> str | None:
    """Load what an answer was made with. What is wrong with its word; empty: nothing; None: nobody has the states."""
    if {str(module) for module in modules} != set(origin.modules):
        return "named other modules than the path has"
    for module in modules:
        state = state_of(module, origin.modules[str(module)].partition(":")[2])
        if state is None:
            log.debug("nobody has the state of %s that an answer was made with; it is not checked", module)
            return None
        model.load(module.level, state.params)
    return ""
