"""A volunteer's part in a re-route: score the operator's routing sample under its path, beside training.

A path's peers divide the sample's shares. Each begins at another place, leaves out what others have announced, and says
now and then what it has: so a peer that leaves loses only what it was at, and the others come to it.
"""

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
from torch import Tensor

from dipaco_swarm.algorithm.paths import PathIndex
from dipaco_swarm.algorithm.state import vector_from_bytes, vector_to_bytes
from dipaco_swarm.errors import HomeError
from dipaco_swarm.events.volunteer import CannotWrite, Scored
from dipaco_swarm.machine.beside import Beside, Work
from dipaco_swarm.machine.stopping import Stopped
from dipaco_swarm.path_in_training import PathInTraining
from dipaco_swarm.peer.surroundings import Surroundings
from dipaco_swarm.peer.workbench import Bench
from dipaco_swarm.run.manifest import Manifest
from dipaco_swarm.swarm.interface import PeerName
from dipaco_swarm.training.scoring import (
    SHARES,
    Scores,
    ScoreStatement,
    in_hexadecimal,
    pieces_of,
    scores_to_bytes,
    topic_of,
)

LOOK_SECONDS = 10.0
"""Between two looks at what others have scored; and so often we say what we have."""
DOUBT_SECONDS = 60.0
"""The node still asks so long after all shares were announced: somebody is not believed, so we score those as well."""
AGAIN_SECONDS = 10.0
"""After a full disk."""


@dataclass
class _Task:
    """A sample that is being scored."""

    sample: str
    path: PathIndex
    is_wanted: bool = True
    work: Work[int] | None = field(default=None, repr=False)


class Scoring:
    """Scores each routing sample once. `look` never waits."""

    def __init__(self, around: Surroundings, beside: Beside) -> None:
        self._around = around
        self._beside = beside
        self._task: _Task | None = None
        """The routing sample that we were asked to score last."""
        self._again_at = -math.inf

    def look(self, peer: PathInTraining, bench: Bench, newest: Manifest) -> None:
        """Begin to score what the operator asks for; say what came of it. Raises what made it impossible."""
        task = self._task
        if task is not None and task.work is not None:
            was_left, task.is_wanted = not task.is_wanted, newest.scoring == task.sample
            self._end(task)
            if was_left and task.work is None:
                task = self._task = None
        if newest.scoring is None or newest.stage.index != peer.stage or not (newest.closing or peer.is_done):
            return
        if task is not None and (task.sample == newest.scoring or task.work is not None):
            return
        if self._around.clock.monotonic() < self._again_at:
            return
        self._task = task = _Task(newest.scoring, peer.path)
        shares = _Shares(self._around, newest, task, self._place(peer))
        then = _params_then(self._around, peer, newest)
        task.work = self._beside.begin(lambda: shares.score(bench, then), "scoring")

    def leave(self) -> None:
        """Score no more before the next look; what is scored is offered."""
        if self._task is not None:
            self._task.is_wanted = False

    def _end(self, task: _Task) -> None:
        if task.work is None or not task.work.is_over:
            return
        work, task.work = task.work, None
        around = self._around
        try:
            scored = work.result()
        except HomeError as error:
            around.notices.failing("scores", CannotWrite(error=str(error), again_seconds=AGAIN_SECONDS))
            self._task, self._again_at = None, around.clock.monotonic() + AGAIN_SECONDS
            return
        around.notices.recovered("scores")
        if scored:
            around.screen.event(Scored(scored, task.path))

    def _place(self, peer: PathInTraining) -> float:
        """Where we begin, 0 to 1: peers of the path in the order of their names, as far as we see them."""
        swarm = self._around.swarm
        said = [said for module in peer.modules for said in swarm.members(peer.stage, module)]
        names = sorted({swarm.peer, *(each.peer for each in said if each.path == peer.path)})
        return names.index(swarm.peer) / len(names)


class _Shares:
    """What one peer does of a sample; in a thread of its own."""

    def __init__(self, around: Surroundings, manifest: Manifest, task: _Task, place: float) -> None:
        self._around = around
        self._task = task
        self._topic = topic_of(manifest)
        self._first = int(place * SHARES)
        self._scores: dict[int, Scores] = {}
        self._announced: str | None = None
        self._said_at = self._looked_at = -math.inf
        self._others: frozenset[int] = frozenset()
        """Shares that others say they have."""
        self._all_since = math.inf

    def score(self, bench: Bench, params: Callable[[], list[Tensor]]) -> int:
        """Score shares until all have been announced, or nobody asks any more; how many pieces that were."""
        sample = self._around.fetch(self._task.sample)
        scorer = bench.scorer(sample, params())
        for share in self._next(scorer.pieces):
            self._scores[share] = scorer.score(pieces_of(share, scorer.pieces))
            if self._now() - self._said_at > LOOK_SECONDS:
                self._say()
        self._say()
        return sum(map(len, self._scores.values()))

    def _next(self, pieces: int) -> Iterator[int]:
        """The shares that we score, one after the other."""
        every = [share for share in range(SHARES) if pieces_of(share, pieces)]
        order = [share for share in every if share >= self._first] + [share for share in every if share < self._first]
        while self._goes_on():
            left = [share for share in order if share not in self._scores]
            if not left:
                return
            self._look()
            free = [share for share in left if share not in self._others]
            if free:
                self._all_since = math.inf
                yield free[0]
                continue
            self._say()
            self._all_since = min(self._all_since, self._now())
            if self._now() - self._all_since > DOUBT_SECONDS:
                yield left[0]
            else:
                self._around.stop.wait(LOOK_SECONDS)

    def _goes_on(self) -> bool:
        if self._around.stop():
            raise Stopped
        return self._task.is_wanted

    def _look(self) -> None:
        if self._now() - self._looked_at < LOOK_SECONDS:
            return
        swarm = self._around.swarm
        said: Mapping[PeerName, bytes] = swarm.statements(self._topic, timeout=swarm.timing.look_up)
        shares: set[int] = set()
        for peer, statement in said.items():
            try:
                one = ScoreStatement.model_validate_json(statement)
            except ValueError:
                continue  # the operator's node names who says such things
            if peer != swarm.peer and one.path == self._task.path:
                shares |= one.scored
        self._others, self._looked_at = frozenset(shares), self._now()

    def _say(self) -> None:
        """Offer what we have so far. Raises HomeError when the disk is full."""
        if not self._scores:
            return
        swarm, self._said_at = self._around.swarm, self._now()
        data = scores_to_bytes(np.concatenate([self._scores[share] for share in sorted(self._scores)]))
        digest = swarm.put_blob(data)
        if digest == self._announced:
            return
        statement = ScoreStatement(path=self._task.path, scores=digest, shares=in_hexadecimal(self._scores))
        swarm.publish(self._topic, statement.to_bytes())
        self._announced = digest

    def _now(self) -> float:
        return self._around.clock.monotonic()


def _params_then(around: Surroundings, peer: PathInTraining, manifest: Manifest) -> Callable[[], list[Tensor]]:
    """The parameters that a path is scored with, level by level: those that the node put down when the stage's rounds
    were done, mostly our own; or the last ones, where nothing is trained on."""
    base = peer.base
    if manifest.closing is None:
        return lambda: [base[module].params for module in peer.modules]
    then = manifest.closing.params

    def params() -> list[Tensor]:
        ours = {hashlib.sha256(vector_to_bytes(state.params)).hexdigest(): state.params for state in base.values()}
        digests = [then[str(module)] for module in peer.modules]
        return [ours[d] if d in ours else vector_from_bytes(around.fetch(d)) for d in digests]

    return params
