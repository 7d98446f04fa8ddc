"""From a stage to the next one: seeds, scores and a router are made beside the node's loop, one after the other.

    a run that waits        a paced run, whose peers train on meanwhile
    ----------------------------------------------------------------------------------------------
                            what is there is put down as the manifest's `closing`
    scores are asked for    the same, of `closing`
    a router is fitted      the same; `coming` says what the next stage will be, and peers get ready for it
                            `closing` says at which version modules are done, when peers are ready (readiness.py)
    the stage is open       the same; its seeds are these last versions

All that was done is in the manifest, or is done again after a restart.
"""

import math
import sys
from collections.abc import Callable
from functools import partial

from dipaco_swarm.algorithm.paths import ModuleId
from dipaco_swarm.algorithm.stages import last_versions, table_of
from dipaco_swarm.dashboard.status import status_of
from dipaco_swarm.dashboard.views import duration
from dipaco_swarm.errors import HomeError, SwarmError
from dipaco_swarm.events.operator import (
    AskingForScores,
    CannotGoOn,
    FittingRouter,
    RouterFitted,
    RouterKept,
    RunFinished,
    TrainsOn,
)
from dipaco_swarm.machine.beside import Beside
from dipaco_swarm.operator.desk import Desk
from dipaco_swarm.operator.keeping import Keeping
from dipaco_swarm.operator.readiness import Readiness
from dipaco_swarm.operator.routers import WindowRouters
from dipaco_swarm.operator.scores import ScoreCollection, StatesThen, pieces_to_score, staffed_paths
from dipaco_swarm.operator.stages import Seeds, Stages
from dipaco_swarm.operator.surroundings import Surroundings
from dipaco_swarm.operator.workshop import FittedRouter, RoutingSample, States
from dipaco_swarm.run.manifest import Manifest
from dipaco_swarm.strategies import ROUTERS
from dipaco_swarm.training.scoring import Scores

AGAIN_SECONDS = 600.0
"""Until what could not be made is tried again: a source that could not be read may be there."""


class Preparing:
    """What comes after a stage that is done. `renewed` never waits and never computes."""

    def __init__(self, around: Surroundings, stages: Stages, keeping: Keeping, beside: Beside) -> None:
        self._around = around
        self._stages = stages
        self._keeping = keeping
        self._desk = Desk(beside, around.swarm.clock)
        self._windows = WindowRouters(around, self._desk)
        self._doing = ""
        self._put: Seeds | None = None
        """What the next stage begins with, in a run that waits."""
        self._collection: ScoreCollection | None = None
        self._fitted: FittedRouter | None = None
        self._readiness = Readiness(around, self._desk)
        self._again_at = -math.inf

    @property
    def activity(self) -> str | None:
        """What is being done just now, for people; None: nothing."""
        seconds = self._desk.seconds
        return f"{self._doing}, for {duration(seconds)}" if self._doing and seconds else self._doing or None

    def clear(self) -> None:
        """Begin anew: the run goes on by other rules, or is in another stage."""
        self._desk.clear()
        self._put = self._collection = self._fitted = None
        self._doing = ""
        self._again_at = -math.inf

    def renewed(self, manifest: Manifest) -> Manifest:
        """The manifest after a stage is done, one step further: the next stage, or the end; the same one while a step
        goes on, or when it cannot be made: then the run is served as it is, and that is tried again later, or at once
        by another run file. Raises HomeError when the disk is full."""
        now = self._around.swarm.clock.boottime()
        if now < self._again_at:
            return manifest
        try:
            return self._one_step_further(manifest)
        except HomeError:
            raise
        except SwarmError as error:
            after = manifest.stage.index
            self.clear()
            self._again_at = now + AGAIN_SECONDS
            self._doing = f"what follows stage {after} cannot be made"
            self._around.screen.event(CannotGoOn(after, str(error), AGAIN_SECONDS))
            return manifest

    def _one_step_further(self, manifest: Manifest) -> Manifest:
        config, index = self._around.config, manifest.stage.index + 1
        if index == len(config.stages):
            return self._end(manifest)
        if manifest.closing is not None:
            self._readiness.look(manifest, self._keeping.states)
        if manifest.coming is not None:
            return self._open(manifest)
        needs_scores = ROUTERS[config.stages[index].router].needs_scores
        put = self._put if manifest.closing is None else _put_down(manifest)
        if put is None or (needs_scores and manifest.scoring is None):
            return self._ask(manifest, index, needs_scores=needs_scores)
        scores = None
        if needs_scores:
            scores = self._scores(manifest)
            if scores is None:
                return manifest
        ready = self._stages.with_features(manifest, put)
        if config.stages[index].num_paths != 1 and self._fitted is None:
            self._fit(ready, index, scores)
            return manifest
        if manifest.trains_on:
            next_one = self._stages.coming(ready, put, self._fitted)
        else:
            next_one = self._stages.after(ready, put, self._fitted)
        self.clear()
        return next_one

    def _open(self, manifest: Manifest) -> Manifest:
        """The manifest of a stage that trains on, on the way to the next one, which is known and got ready for."""
        index, keeping, readiness = manifest.stage.index + 1, self._keeping, self._readiness
        assert manifest.closing is not None, "a stage that comes has one before it that is closing"
        if not manifest.closing.ends:
            self._doing = f"the peers get ready for stage {index}"
            if not readiness.is_reached(manifest):
                return manifest
            return self._stages.ending(manifest, readiness.ends(manifest))
        self._doing = f"the last rounds before stage {index}"
        ends = last_versions(manifest)
        reached = readiness.lowered(manifest, ends)
        if reached != ends:
            return self._stages.ending(manifest, reached)
        if any(keeping.states[module].version < end for module, end in ends.items()):
            return manifest
        states = dict(keeping.states)
        done = self._desk.done(("open", index), lambda: self._stages.put(manifest, states))
        if done is None:
            return manifest
        self.clear()
        return self._stages.opened(manifest, done.result)

    def _ask(self, manifest: Manifest, index: int, *, needs_scores: bool) -> Manifest:
        """Put down what the next stage begins with; and ask for scores, where they are needed."""
        states, workshop = dict(self._keeping.states), self._around.workshop
        most = self._pieces(manifest)

        def work() -> tuple[Seeds, RoutingSample | None]:
            sample = None
            if needs_scores and manifest.scoring is None:
                sample = workshop.routing_sample(index, self._around.fetch(manifest.tokenizer), most)
            return self._stages.put(manifest, states), sample

        self._doing = f"writing down what stage {index} begins with"
        done = self._desk.done(("ask", index), work)
        if done is None:
            return manifest
        put, sample = done.result
        digest = None if sample is None else self._around.swarm.put_blob(sample.data)
        if sample is not None:
            self._around.screen.event(AskingForScores(sample.pieces))
        if manifest.trains_on:
            self._around.screen.event(TrainsOn(manifest.stage.index))
            return self._stages.closing(manifest, put, digest)
        self._put = put
        if digest is None:
            return manifest
        return manifest.model_copy(update={"revision": manifest.revision + 1, "scoring": digest})

    def _pieces(self, manifest: Manifest) -> Callable[[float], int]:
        """How many pieces of so many tokens the routing sample may have: all, where nothing is trained meanwhile."""
        if not manifest.trains_on:
            return lambda tokens: sys.maxsize
        swarm, stage = self._around.swarm, manifest.stage
        pace = status_of(swarm, manifest).round_seconds
        seconds = None if pace is None else pace * (stage.rounds or 0)
        return partial(pieces_to_score, staffed_paths(swarm, manifest), len(stage.table), seconds)

    def _scores(self, manifest: Manifest) -> Scores | None:
        """None until every path has its scores."""
        around, stage = self._around, manifest.stage
        states: States = dict(self._keeping.states)
        if manifest.closing is not None:
            states = StatesThen(manifest.closing.params, around.fetch)
        if self._collection is None:
            self._doing = "reading the routing sample"
            made = self._desk.done(("scorer", stage.index), lambda: around.workshop.scorer(manifest, around.fetch))
            if made is None:
                return None
            self._collection = ScoreCollection(manifest, around.swarm, made.result, states)
        collection = self._collection
        if not collection.missing:
            return collection.matrix()
        self._desk.done(("scores", stage.index), lambda: collection.collect(staffed_paths(around.swarm, manifest)))
        self._doing = collection.activity
        return None

    def _fit(self, manifest: Manifest, index: int, scores: Scores | None) -> None:
        """Have the router of stage `index` fitted."""
        around, key = self._around, ("fit", index)
        if not self._desk.is_at(key):
            kind, paths = around.config.stages[index].router, table_of(around.config, index).num_paths
            around.screen.event(FittingRouter(kind, paths))
            self._doing = f"fitting the router of stage {index}"
        done = self._desk.done(key, lambda: around.workshop.fit_router(manifest, index, scores, around.fetch))
        if done is None:
            return
        self._fitted = fitted = done.result
        if fitted.kept_because is not None:
            around.screen.event(RouterKept(manifest.stage.index, fitted.kept_because))
        around.screen.event(RouterFitted(fitted.prefixes, fitted.shares))

    def _end(self, manifest: Manifest) -> Manifest:
        """The run's last manifest, when its window router is there."""
        router = None
        if self._around.config.rerouting is not None:
            self._doing = self._windows.activity
            done = self._windows.made(manifest, self._keeping.states)
            if done is None:
                return manifest
            router = done.result
        self.clear()
        self._around.screen.event(RunFinished())
        return self._stages.finished(manifest, router)


def _put_down(manifest: Manifest) -> Seeds:
    """What a stage that trains on had when its rounds were done."""
    assert manifest.closing is not None, "its rounds are not done"
    params = {ModuleId.parse(module): digest for module, digest in manifest.closing.params.items()}
    return Seeds(params, {}, manifest.stage.rounds or 0)
