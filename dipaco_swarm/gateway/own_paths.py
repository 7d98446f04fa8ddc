"""The writer that this machine is: paths that are loaded here."""

import logging
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import closing
from threading import Lock, Thread

from transformers import PreTrainedModel

from dipaco_swarm.algorithm.paths import PathIndex
from dipaco_swarm.client.trained_run import TrainedRun
from dipaco_swarm.errors import CheckpointError, UnreachableError
from dipaco_swarm.gateway.asked import Origin, Over, Piece, SilentError, Task, go_on_unless
from dipaco_swarm.gateway.scribe import Scribe
from dipaco_swarm.training.tokenizer import end_of_text_id
from dipaco_swarm.training.writing import Text, Written, thoughts

log = logging.getLogger(__name__)

PATHS = 4
"""In memory at once; who asks for others waits until they are loaded."""


class _Loaded:
    """A path in memory."""

    def __init__(self, network: PreTrainedModel, origin: Origin) -> None:
        self.network = network
        self.origin = origin
        self.scribe = Scribe(network)
        self.thinking = Lock()
        """For one part of a text: of each of its tokens there is a number for every token that there is."""


class OwnPaths:
    """`Writer` for all paths of a run that can be loaded here. From any thread; texts of one path are written
    side by side."""

    def __init__(self, run: TrainedRun) -> None:
        self._run = run
        self._end_of_text = end_of_text_id(run.tokenizer)
        self._paths: OrderedDict[PathIndex, Future[_Loaded]] = OrderedDict()
        """Loaded, or being loaded; the last is the one that was asked for last."""
        self._lock = Lock()
        self._loading = Lock()

    def begin(self, path: PathIndex) -> "Future[_Loaded]":
        """It is loaded, or will be, by a thread of its own; SilentError when it cannot be. Returns at once."""
        with self._lock:
            if (there := self._paths.get(path)) is not None:
                self._paths.move_to_end(path)
                return there
            while len(self._paths) >= PATHS:
                self._paths.popitem(last=False)
            coming = self._paths[path] = Future[_Loaded]()
        Thread(target=self._work, args=(path, coming), name=f"path {path}", daemon=True).start()
        return coming

    def write(self, task: Task) -> Iterator[Piece]:
        asked, loaded = task.asked, self.begin(task.path).result()
        text = Text(
            loaded.network,
            task.text,
            asked.sampling,
            asked.seed,
            task.written,
            task.drawn,
            asked.alternatives,
            self._end_of_text,
        )
        with closing(loaded.scribe.write(text, task.most_tokens)) as tokens:  # type: ignore[type-var]
            for written, more in tokens:
                yield Piece(written, loaded.origin, more)

    def think(
        self, path: PathIndex, text: Sequence[int], alternatives: int, over: Over = lambda: False
    ) -> tuple[list[Written], Origin]:
        loaded, found = self.begin(path).result(), list[Written]()
        parts = thoughts(loaded.network, text, alternatives)
        while len(found) < len(text):
            go_on_unless(over)
            with loaded.thinking:
                found += next(parts)
        return found, loaded.origin

    def _work(self, path: PathIndex, coming: "Future[_Loaded]") -> None:
        try:
            with self._loading:  # one after the other: each has the whole line, and no more memory than it needs
                loaded = self._load(path)
        except (CheckpointError, UnreachableError) as error:
            self._give_up(path, coming, str(error))
        except Exception:  # whoever waits for it is told
            log.exception("path %d could not be loaded", path)
            self._give_up(path, coming, f"path {path} could not be loaded")
        else:
            coming.set_result(loaded)

    def _give_up(self, path: PathIndex, coming: "Future[_Loaded]", why: str) -> None:
        """Whoever asks next has it tried again."""
        with self._lock:
            if self._paths.get(path) is coming:
                del self._paths[path]
        coming.set_exception(SilentError(why))

    def _load(self, path: PathIndex) -> _Loaded:
        network = self._run.load(self._run.model(), path)
        states = {module: self._run.state_of(module) for module in self._run.table.modules_of(path)}
        modules = {str(module): f"{state.version}:{state.digest}" for module, state in states.items()}
        return _Loaded(network.eval(), Origin(path, modules, ""))
