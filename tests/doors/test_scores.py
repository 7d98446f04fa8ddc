"""The node's collection of scores: names that send slowly, or nothing, do not keep it from scoring itself."""

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

import numpy as np

from dipaco_swarm.algorithm.paths import PathIndex, PathTable
from dipaco_swarm.errors import UnreachableError
from dipaco_swarm.operator.scores import LOOK_SECONDS, ScoreCollection
from dipaco_swarm.operator.workshop import PathScorer
from dipaco_swarm.swarm.interface import Announcement, PeerName, Swarm
from dipaco_swarm.swarm.timing import Timing
from dipaco_swarm.training.scoring import ScoreStatement
from tests.doors.test_manifest import manifest

PIECES, NAMES = 640, 50


@dataclass
class Drippers:
    """A swarm in which many names say that they have scored path 0, and none sends the scores."""

    now: float = 0.0
    asked: int = 0
    timing = Timing()

    @property
    def clock(self) -> Any:
        return SimpleNamespace(monotonic=lambda: self.now)

    def members(self, stage: int, module: object) -> list[Announcement]:
        path = PathIndex(0)
        return [Announcement(PeerName(str(i)), 0, cast(Any, module), path, 1, "d" * 64) for i in range(NAMES)]

    def statements(self, topic: str, timeout: float) -> dict[PeerName, bytes]:
        said = ScoreStatement(path=0, scores="0" * 64, shares="f" * 16).to_bytes()
        return {PeerName(str(i)): said for i in range(NAMES)}

    def fetch_blob(self, digest: str, *, timeout: float, limit: int, of: str) -> bytes:
        self.now += timeout
        self.asked += 1
        raise UnreachableError("nobody sends it")


@dataclass
class Scorer:
    swarm: Drippers
    pieces: int = PIECES
    tokens: float = 100.0

    def score(self, path: PathIndex, states: object, some: range) -> Any:
        self.swarm.now += 1.0
        return np.zeros(len(some))


def test_however_many_names_send_nothing_the_node_scores_what_is_late() -> None:
    swarm = Drippers()
    asking = manifest().model_copy(update={"scoring": "1" * 64})
    paths = PathTable(asking.stage.table).num_paths
    collection = ScoreCollection(asking, cast(Swarm, swarm), cast(PathScorer, Scorer(swarm)), {})
    looks = 0
    while collection.missing:
        began, asked = swarm.now, swarm.asked
        collection.collect({PathIndex(path): 1e6 for path in range(paths)})
        looks += 1
        assert swarm.asked - asked <= 1 + LOOK_SECONDS / swarm.timing.dial
        assert swarm.now - began < 4 * LOOK_SECONDS
    assert looks < 10 * paths
