"""A gateway whose writers say what a test wrote down, each token by a path: no model, no swarm."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import uvicorn
from starlette.applications import Starlette

from dipaco_swarm.algorithm.paths import PathIndex
from dipaco_swarm.gateway.asked import Origin, Over, Piece, SilentError, Task
from dipaco_swarm.gateway.gateway import Gateway
from dipaco_swarm.page.serving import bound
from dipaco_swarm.settings import Web
from dipaco_swarm.training.encoding import Indices
from dipaco_swarm.training.routed import Routing
from dipaco_swarm.training.writing import Written
from tests.gateway.test_words import TOKENIZER

PATHS = 4


def origin_of(path: int) -> Origin:
    digest = "d" * 64
    return Origin(
        PathIndex(path), {f"L0M{path // 2}": f"12:{digest}", f"L1M{path % 2}": f"9:{digest}"}, f"12D3peer-{path}"
    )


@dataclass
class Script:
    """What is written next, whatever is asked."""

    text: str = "an answer"
    turns: list[int] = field(default_factory=list)
    """The window router's choices, in turn; without any, path 0."""
    breaks_after: int | None = None
    """So many tokens come, and then nobody goes on."""
    gate: threading.Event = field(default_factory=threading.Event)
    """Not set: a writer waits after its first token."""
    asked: list[Task] = field(default_factory=list)

    # a writer

    def write(self, task: Task) -> Iterator[Piece]:
        self.asked.append(task)
        ids = TOKENIZER.encode(self.text).ids[task.drawn :]
        for place, token in enumerate(ids[: task.most_tokens]):
            if self.breaks_after is not None and task.drawn + place >= self.breaks_after:
                raise SilentError("peer 12345678: gone")
            yield Piece(Written(token, None), origin_of(task.path))
            self.gate.wait(20)

    def think(
        self, path: PathIndex, text: Sequence[int], alternatives: int, over: Over = lambda: False
    ) -> tuple[list[Written], Origin]:
        raise SilentError("it judges nothing")

    # a window router

    def choose(self, text: Sequence[int]) -> PathIndex:
        return PathIndex(self.turns.pop(0) if self.turns else 0)


def gateway_of(script: Script) -> Gateway:
    def assign(prefixes: Indices) -> Indices:
        return np.zeros((len(prefixes), 1), dtype=np.int64)

    routing = Routing(b"", TOKENIZER, assign)
    return Gateway("small", PATHS, 4, routing, script, lambda path: iter([script]))  # type: ignore[arg-type]


@contextmanager
def served(app: Callable[[Gateway], Starlette], script: Script) -> Iterator[str]:
    """The address of an application, in a thread of this process."""
    script.gate.set()
    door = bound(Web("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app(gateway_of(script)), log_config=None, lifespan="off"))
    thread = threading.Thread(target=server.run, args=([door],), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{door.getsockname()[1]}/"
    finally:
        script.gate.set()
        server.should_exit = True
        thread.join(10)
        door.close()
