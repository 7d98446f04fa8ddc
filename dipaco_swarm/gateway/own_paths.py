"""The writer that this machine is: paths that are loaded here."""

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import closing
from threading import Lock

from transformers import PreTrainedModel

from dipaco_swarm.algorithm.paths import PathIndex
from dipaco_swarm.client.trained_run import TrainedRun
from dipaco_swarm.errors import CheckpointError, UnreachableError
from dipaco_swarm.gateway.asked import Origin, Piece, SilentError, Task
from dipaco_swarm.gateway.scribe import Scribe
from dipaco_swarm.training.tokenizer import end_of_text_id
from dipaco_swarm.training.writing import Text, Written, think

PATHS = 4
"""In memory at once; who asks for others waits until they are loaded."""


class _Loaded:
    """A path in memory."""

    def __init__(self, network: PreTrainedModel, origin: Origin) -> None:
        self.network = network
        self.origin = origin
        self.scribe = Scribe(network)


class OwnPaths:
    """`Writer` for all paths of a run that can be loaded here. From any thread; texts of one path are written
    side by side."""

    def __init__(self, run: TrainedRun) -> None:
        self._run = run
        self._end_of_text = end_of_text_id(run.tokenizer)
        self._loaded: OrderedDict[PathIndex, _Loaded] = OrderedDict()
        self._loading = Lock()

    def write(self, task: Task) -> Iterator[Piece]:
        asked, loaded = task.asked, self._load(task.path)
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

    def think(self, path: PathIndex, text: Sequence[int], alternatives: int) -> tuple[list[Written], Origin]:
        loaded = self._load(path)
        return think(loaded.network, text, alternatives), loaded.origin

    def _load(self, path: PathIndex) -> _Loaded:
        with self._loading:
            if path in self._loaded:
                self._loaded.move_to_end(path)
                return self._loaded[path]
            if len(self._loaded) >= PATHS:
                self._loaded.popitem(last=False)
            model = self._run.model()
            try:
                network = self._run.load(model, path)
                states = {module: self._run.state_of(module) for module in self._run.table.modules_of(path)}
            except (CheckpointError, UnreachableError) as error:
                raise SilentError(str(error)) from error
            modules = {str(module): f"{state.version}:{state.digest}" for module, state in states.items()}
            self._loaded[path] = _Loaded(network.eval(), Origin(path, modules, ""))
            return self._loaded[path]
