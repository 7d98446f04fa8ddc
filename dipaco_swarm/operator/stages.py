"""From one manifest to the next: the first stage, the stage after, and the end."""

import math
from collections.abc import Callable, Sequence

from dipaco_swarm.algorithm.paths import ModuleId, PathTable, grid
from dipaco_swarm.algorithm.stages import parent, table_of
from dipaco_swarm.algorithm.state import vector_to_bytes
from dipaco_swarm.events.operator import AskingForScores, StartingFrom, TrainingTokenizer
from dipaco_swarm.operator.routers import Routers
from dipaco_swarm.operator.surroundings import Surroundings
from dipaco_swarm.operator.workshop import States
from dipaco_swarm.run.config import RunConfig
from dipaco_swarm.run.lengths import RoundLengths
from dipaco_swarm.run.manifest import Manifest, Stage
from dipaco_swarm.strategies import ROUTERS
from dipaco_swarm.training.scoring import Scores


class Stages:
    """Makes manifests. Each has the next revision; nothing is published here.

    All methods raise HomeError when the disk has no room for the files that a manifest names.
    """

    def __init__(self, around: Surroundings, routers: Routers) -> None:
        self._around = around
        self._routers = routers

    def first(self) -> Manifest:
        """The first manifest: tokenizer, seed modules, first stage."""
        around, config = self._around, self._around.config
        model = config.model
        if config.tokenizer.path is None and model.checkpoint is None:
            around.screen.event(TrainingTokenizer(config.tokenizer.vocab_size))
        tokenizer = around.workshop.tokenizer()
        vectors = around.workshop.first_seeds(tokenizer)
        if model.checkpoint is not None:
            around.screen.event(StartingFrom(model.checkpoint, model.model_type, sum(map(len, vectors))))
        seeds = [around.swarm.put_blob(vector_to_bytes(vector)) for vector in vectors]
        bare = Manifest(
            revision=0,
            config=config,
            tokenizer=around.swarm.put_blob(tokenizer),
            stages=(self._single(0, seeds, 0),),
            feature_seeds=tuple(seeds),
        )
        if config.stages[0].num_paths == 1:
            return bare
        return bare.model_copy(update={"stages": (self._routed(bare, 0, None, lambda m: seeds[m.level], 0),)})

    def asking_for_scores(self, manifest: Manifest) -> Manifest:
        """The same stage, with the routing sample for everybody to score under the path that they train."""
        around = self._around
        sample = around.workshop.routing_sample(manifest.stage.index + 1, around.fetch(manifest.tokenizer))
        digest = around.swarm.put_blob(sample.data)
        around.screen.event(AskingForScores(sample.pieces))
        return manifest.model_copy(update={"revision": manifest.revision + 1, "scoring": digest})

    def ending_at(self, manifest: Manifest, rounds: int) -> Manifest:
        """The same stage, which ends when every module has this version, or before that if it was to."""
        ending = manifest.stage.model_copy(update={"rounds": min(rounds, manifest.stage.rounds or rounds)})
        return manifest.model_copy(
            update={"revision": manifest.revision + 1, "stages": (*manifest.stages[:-1], ending)}
        )

    def extended(self, manifest: Manifest, config: RunConfig, heard_at: int) -> Manifest:
        """The manifest of a run file that was changed. `heard_at`: a version by which every peer has heard of it."""
        index = manifest.stage.index
        before, after = manifest.config, config
        stage, lengths = manifest.stage, manifest.lengths
        update: dict[str, object] = {"revision": manifest.revision + 1, "config": config}
        steps = after.at(index).rounds.inner_steps
        if steps != before.at(index).rounds.inner_steps:
            lengths = lengths.changed(heard_at, steps)
            stage = stage.model_copy(update={"inner_steps": lengths.since})
        ends = [(each.stages[index].rounds, each.stages[index].tokens) for each in (before, after)]
        if ends[0] != ends[1] or (lengths != manifest.lengths and after.stages[index].tokens is not None):
            stage = stage.model_copy(update={"rounds": _rounds_of(after, index, lengths)})
        if stage.rounds != manifest.stage.rounds:
            update["scoring"] = None  # of paths that go on now
        goes_on = stage.rounds != manifest.stage.rounds or len(after.stages) > index + 1
        if manifest.finished and (goes_on or after.rerouting != before.rerouting):
            update |= {"finished": False, "window_router": None}
        return manifest.model_copy(update={**update, "stages": (*manifest.stages[:-1], stage)})

    def after(self, manifest: Manifest, states: States, scores: Scores | None) -> Manifest:
        """The manifest with one stage more, whose modules start from these states."""
        config, index, put_blob = self._around.config, manifest.stage.index + 1, self._around.swarm.put_blob
        before = PathTable(manifest.stage.table)
        blobs = {module: put_blob(vector_to_bytes(s.params)) for module, s in states.items()}
        first_step = manifest.stage.first_step + manifest.lengths.before(manifest.stage.rounds or 0)
        if manifest.stage.router is None and manifest.stage.index == 0:
            # the dense model of the warm-up is what the router reads prefixes with, from now on and unchanged
            features = tuple(blobs[ModuleId(level, 0)] for level in range(before.num_levels))
            manifest = manifest.model_copy(update={"feature_seeds": features})
        if config.stages[index].num_paths == 1:
            stage = self._single(index, [blobs[ModuleId(lv, 0)] for lv in range(before.num_levels)], first_step)
        else:
            stage = self._routed(manifest, index, scores, lambda m: blobs[parent(config, index, m, before)], first_step)
        if stage.table == manifest.stage.table:  # the modules go on as they were
            momenta = {str(m): put_blob(vector_to_bytes(s.momentum)) for m, s in states.items()}
            stage = stage.model_copy(update={"momenta": momenta})
        return manifest.model_copy(
            update={"revision": manifest.revision + 1, "stages": (*manifest.stages, stage), "scoring": None}
        )

    def finished(self, manifest: Manifest, window_router: str | None) -> Manifest:
        return manifest.model_copy(
            update={"revision": manifest.revision + 1, "finished": True, "window_router": window_router}
        )

    def _single(self, index: int, seeds: Sequence[str], first_step: int) -> Stage:
        config = self._around.config
        return Stage(
            index=index,
            table=grid([1] * len(seeds)).rows,
            path_weights=(1.0,),
            router=None,
            seeds={str(ModuleId(level, 0)): seed for level, seed in enumerate(seeds)},
            rounds=config.at(index).rounds_of(config.stages[index]),
            first_step=first_step,
        )

    def _routed(
        self,
        manifest: Manifest,
        index: int,
        scores: Scores | None,
        seed_of: Callable[[ModuleId], str],
        first_step: int,
    ) -> Stage:
        """Fit the stage's router on the routing sample, and describe the stage."""
        config, stage, table = (
            self._around.config,
            self._around.config.stages[index],
            table_of(self._around.config, index),
        )
        fitted = self._routers.fit(manifest, index, scores)
        return Stage(
            index=index,
            table=table.rows,
            path_weights=fitted.shares,
            router=self._around.swarm.put_blob(fitted.data),
            overlap=stage.overlap,
            resting=tuple(range(len(manifest.stage.table))) if ROUTERS[stage.router].paths == "added" else (),
            seeds={str(module): seed_of(module) for module in table.modules},
            rounds=config.at(index).rounds_of(stage),
            first_step=first_step,
        )


def _rounds_of(config: RunConfig, index: int, lengths: RoundLengths) -> int | None:
    """After which a stage ends whose rounds have these lengths."""
    stage, there = config.stages[index], config.at(index)
    if stage.tokens is None:
        return stage.rounds
    steps, since = math.ceil(stage.tokens / there.tokens_per_step), lengths.since[-1][0]
    return since + math.ceil(max(0, steps - lengths.before(since)) / lengths.at(since))
