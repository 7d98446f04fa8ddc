"""Whether peers write what their path writes: some answers are written again, from the states that they named.

By another peer of the path, who has these states as well: that costs nobody anything. Only where two peers differ, or
where a path is small, this machine fetches the states and writes for itself: they are eight bytes a parameter, from
members' lines.
"""

import logging
import queue
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from dipaco_swarm.algorithm.paths import ModuleId, PathIndex
from dipaco_swarm.algorithm.state import ModuleState
from dipaco_swarm.client.trained_run import TrainedRun
from dipaco_swarm.gateway.asked import Origin, SilentError, Task
from dipaco_swarm.gateway.peers import PeerWriter
from dipaco_swarm.swarm.interface import PeerName
from dipaco_swarm.training.modules import PathModel, level_sizes
from dipaco_swarm.training.tokenizer import vocabulary_size
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

StateOf = Callable[[ModuleId, str], ModuleState | None]
"""A state by its module and digest; None: nobody has it any more."""


@dataclass(frozen=True)
class Answered:
    """What a peer has written."""

    peer: PeerName
    task: Task
    tokens: tuple[int, ...]
    origin: Origin


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
        self._waiting: queue.Queue[Answered | None] = queue.Queue(WAITING)
        self._met: set[PeerName] = set()
        self._thread: threading.Thread | None = None
        self.checked = 0

    def note(self, answered: Answered) -> None:
        """A peer has written this. Returns at once."""
        if answered.peer in self._met and random.random() > SHARE:
            return
        self._met.add(answered.peer)
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="checks", daemon=True)
            self._thread.start()
        try:
            self._waiting.put_nowait(answered)
        except queue.Full:
            log.debug("too many answers wait to be checked; one is not")

    def close(self) -> None:
        """Those that wait are checked first."""
        if self._thread is not None:
            self._waiting.put(None)
            self._thread.join()

    def _work(self) -> None:
        while (answered := self._waiting.get()) is not None:
            self.check(answered)
            self.checked += 1

    def check(self, answered: Answered) -> None:
        """Ask somebody else; where the two differ, find out who is wrong."""
        other = self._second_opinion(answered)
        if other is not None and other.tokens == answered.tokens:
            return
        if other is None and not self._is_small:
            log.debug("nobody else has the states of an answer; it is not checked")
            return
        for each in filter(None, (answered, other)):
            why = self.fault(each)
            if why is not None:
                self._distrust(each.peer, why)

    def _second_opinion(self, answered: Answered) -> Answered | None:
        """What another peer writes from the same states; None: nobody has them."""
        task = replace(answered.task, most_tokens=len(answered.tokens))
        for writer in self._writers(task.path):
            if writer.name == answered.peer:
                continue
            tokens: list[int] = []
            try:
                for piece in writer.write(task):
                    if piece.origin.modules != answered.origin.modules:
                        break
                    tokens.append(piece.written.token)
                else:
                    return Answered(writer.name, task, tuple(tokens), answered.origin)
            except SilentError as error:
                log.debug("no second opinion: %s", error)
        return None

    @cached_property
    def _is_small(self) -> bool:
        """Whether all states of a path may be fetched for a check."""
        config = self._run.manifest.rules
        sizes = level_sizes(config.model, config.levels, vocabulary_size(self._run.tokenizer))
        return 8 * sum(sizes) <= SMALL_BYTES

    @cached_property
    def _model(self) -> PathModel:
        """That answers are written with again; made when the first one has to be."""
        return self._run.model()

    def fault(self, answered: Answered) -> str | None:
        """What is wrong with an answer; None: nothing, or it cannot be known."""
        task, model = answered.task, self._model
        why = states_into(model, self._run.table.modules_of(task.path), answered.origin, self._state_of)
        if why != "":
            return why
        asked = task.asked
        text = (*task.text, *answered.tokens)
        found = differences(model.network, text, len(answered.tokens), asked.sampling, asked.seed, task.drawn)
        if found is None or found <= len(answered.tokens) // TOKENS_FOR_A_DIFFERENCE:
            return None
        return f"{found} of {len(answered.tokens)} tokens are not what path {task.path} writes from the states named"


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
