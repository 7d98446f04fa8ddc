"""The node's collection of scores: names that send slowly, or nothing, do not keep it from scoring itself."""

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

import numpy as np

from dipaco_swarm.algorithm.paths import ModuleId, PathIndex, PathTable
from dipaco_swarm.errors import UnreachableError
from dipaco_swarm.operator.scores import LOOK_SECONDS, ScoreCollection, staffed_paths
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


def test_a_peer_is_on_one_path_that_there_is_whatever_it_announces() -> None:
    """One that said it was on a hundred, and slow, had the node wait for centuries before it scored anything itself."""
    table = PathTable(((0, 0), (0, 1), (1, 0), (1, 1)))

    def members(stage: int, module: ModuleId) -> list[Announcement]:
        honest = [
            Announcement(PeerName(f"honest {path}"), 1, module, PathIndex(path), 5, "0" * 64, tokens_per_second=5000.0)
            for path in range(3)
            if module in table.modules_of(PathIndex(path))
        ]
        of_liar = PathIndex(3 if module == ModuleId(0, 1) else 1000 + module.level)
        liar = Announcement(PeerName("liar"), 1, module, of_liar, 5, "0" * 64, tokens_per_second=1e-3)
        return [*honest, liar]

    swarm = cast(Swarm, SimpleNamespace(members=members))
    stage = manifest().stage.model_copy(update={"table": table.rows, "path_weights": (0.25,) * 4})
    staffed = staffed_paths(swarm, manifest().model_copy(update={"stages": (stage,)}))
    assert sorted(staffed) == [0, 1, 2, 3]
    assert staffed[PathIndex(3)] < 1.0 < staffed[PathIndex(0)]
