"""From one manifest to the next: the first stage, the stage after, and the end."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dipaco_swarm.algorithm.generations import generation_of
from dipaco_swarm.algorithm.paths import ModuleId, PathTable, grid
from dipaco_swarm.algorithm.stages import parent, table_of
from dipaco_swarm.algorithm.state import vector_to_bytes
from dipaco_swarm.events.operator import FittingRouter, RouterFitted, StartingFrom, TrainingTokenizer
from dipaco_swarm.operator.surroundings import Surroundings
from dipaco_swarm.operator.workshop import FittedRouter, States
from dipaco_swarm.run.config import RunConfig
from dipaco_swarm.run.lengths import RoundLengths
from dipaco_swarm.run.manifest import Closing, Manifest, Restored, Stage
from dipaco_swarm.strategies import ROUTERS


@dataclass(frozen=True)
class Seeds:
    """What the modules of a stage were when the next one began with them."""

    params: Mapping[ModuleId, str]
    """Blob of the parameters of each."""
    momenta: Mapping[ModuleId, str]
    """Blob of its outer momentum, where the next stage has the same modules; else none."""
    version: int
    """So many rounds the stage has made."""


class Stages:
    """Makes manifests. Each has the next revision; nothing is published here.

    All methods raise HomeError when the disk has no room for the files that a manifest names.
    """

    def __init__(self, around: Surroundings) -> None:
        self._around = around

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
            decays=tuple(tuple(places) for places in around.workshop.decays(tokenizer)),
            feature_seeds=tuple(seeds),
        )
        if config.stages[0].num_paths == 1:
            return bare
        around.screen.event(FittingRouter(config.stages[0].router, table_of(config, 0).num_paths))
        fitted = around.workshop.fit_router(bare, 0, None, around.fetch)
        around.screen.event(RouterFitted(fitted.prefixes, fitted.shares))
        of_modules = {module: seeds[module.level] for module in table_of(config, 0).modules}
        return bare.model_copy(update={"stages": (self._routed(0, fitted, of_modules, 0),)})

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
        if manifest.closing is not None:  # what was prepared went by another run file
            update |= {"scoring": None, "closing": None, "coming": None}
        goes_on = stage.rounds != manifest.stage.rounds or len(after.stages) > index + 1
        if manifest.finished and (goes_on or after.rerouting != before.rerouting):
            update |= {"finished": False, "window_router": None}
        return manifest.model_copy(update={**update, "stages": (*manifest.stages[:-1], stage)})

    def gone_back(self, manifest: Manifest, states: States) -> Manifest:
        """The manifest of a run that goes on from these states, whatever was done since they were made.

        What was prepared of the next stage is given up, and a run that was finished goes on.
        """
        stage = manifest.stage
        restored = {
            str(module): Restored(generation=generation_of(state.work), version=state.version, digest=state.digest)
            for module, state in states.items()
        }
        stage = stage.model_copy(update={"restored": {**stage.restored, **restored}})
        update = {"revision": manifest.revision + 1, "stages": (*manifest.stages[:-1], stage), "finished": False}
        given_up = {"scoring": None, "closing": None, "coming": None, "window_router": None}
        return manifest.model_copy(update={**update, **given_up})

    def put(self, manifest: Manifest, states: States) -> Seeds:
        """Put down these states of the manifest's modules, for the stage after it to begin with."""
        put_blob, index = self._around.swarm.put_blob, manifest.stage.index + 1
        params = {module: put_blob(vector_to_bytes(state.params)) for module, state in states.items()}
        momenta = {}
        if table_of(self._around.config, index).rows == manifest.stage.table:  # the modules go on as they were
            momenta = {module: put_blob(vector_to_bytes(state.momentum)) for module, state in states.items()}
        return Seeds(params, momenta, manifest.stage.rounds or 0)

    def with_features(self, manifest: Manifest, seeds: Seeds) -> Manifest:
        """The manifest as the next router is fitted with it: the dense model of the warm-up is what it reads prefixes
        with, from then on and unchanged."""
        if manifest.stage.router is not None or manifest.stage.index != 0:
            return manifest
        levels = PathTable(manifest.stage.table).num_levels
        features = tuple(seeds.params[ModuleId(level, 0)] for level in range(levels))
        return manifest.model_copy(update={"feature_seeds": features})

    def closing(self, manifest: Manifest, seeds: Seeds, sample: str | None) -> Manifest:
        """The manifest of a stage whose rounds are done, and that trains on: the next one is prepared from these
        states. `sample`: blob of what paths are to score."""
        params = {str(module): digest for module, digest in seeds.params.items()}
        return manifest.model_copy(
            update={"revision": manifest.revision + 1, "closing": Closing(params=params), "scoring": sample}
        )

    def coming(self, manifest: Manifest, seeds: Seeds, fitted: FittedRouter | None) -> Manifest:
        """The manifest that says what the next stage will be. `fitted`: its router; None: it has one path."""
        stage = self.next_stage(manifest, seeds, fitted)
        return manifest.model_copy(update={"revision": manifest.revision + 1, "coming": stage, "scoring": None})

    def ending(self, manifest: Manifest, ends: Mapping[ModuleId, int]) -> Manifest:
        """The manifest that says at which version each module is done, in a stage that has trained on."""
        assert manifest.closing is not None, "the stage goes on"
        closing = manifest.closing.model_copy(update={"ends": {str(module): end for module, end in ends.items()}})
        return manifest.model_copy(update={"revision": manifest.revision + 1, "closing": closing})

    def opened(self, manifest: Manifest, seeds: Seeds) -> Manifest:
        """The manifest in which the stage that was coming has begun, with these states."""
        coming = manifest.coming
        assert coming is not None, "there is no stage to open"
        table = PathTable(coming.table)
        params = {str(m): seeds.params[before] for m, before in self._starts(coming.index, table, manifest).items()}
        momenta = {str(module): digest for module, digest in seeds.momenta.items()}
        stage = coming.model_copy(update={"seeds": params, "momenta": momenta})
        update = {"revision": manifest.revision + 1, "stages": (*manifest.stages, stage)}
        return manifest.model_copy(update={**update, "scoring": None, "closing": None, "coming": None})

    def _starts(self, index: int, table: PathTable, manifest: Manifest) -> dict[ModuleId, ModuleId]:
        """The module of the manifest's stage that each module of stage `index` starts from."""
        before = PathTable(manifest.stage.table)
        if ROUTERS[self._around.config.stages[index].router].paths == "one":
            return {module: ModuleId(module.level, 0) for module in table.modules}
        return {module: parent(self._around.config, index, module, before) for module in table.modules}

    def after(self, manifest: Manifest, seeds: Seeds, fitted: FittedRouter | None) -> Manifest:
        """The manifest with one stage more. `fitted`: its router; None: it has one path."""
        stage = self.next_stage(manifest, seeds, fitted)
        return manifest.model_copy(
            update={"revision": manifest.revision + 1, "stages": (*manifest.stages, stage), "scoring": None}
        )

    def next_stage(self, manifest: Manifest, seeds: Seeds, fitted: FittedRouter | None) -> Stage:
        """The stage after the manifest's, whose modules start from these."""
        config, index = self._around.config, manifest.stage.index + 1
        before = PathTable(manifest.stage.table)
        first_step = manifest.stage.first_step + manifest.lengths.before(seeds.version)
        if fitted is None:
            of_levels = [seeds.params[ModuleId(level, 0)] for level in range(before.num_levels)]
            stage = self._single(index, of_levels, first_step)
        else:
            starts = self._starts(index, table_of(config, index), manifest)
            seed_of = {module: seeds.params[start] for module, start in starts.items()}
            rests = range(before.num_paths if ROUTERS[config.stages[index].router].paths == "added" else 0)
            stage = self._routed(index, fitted, seed_of, first_step, tuple(rests))
        momenta = {str(module): digest for module, digest in seeds.momenta.items()}
        return stage.model_copy(update={"momenta": momenta}) if momenta else stage

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
        index: int,
        fitted: FittedRouter,
        seed_of: Mapping[ModuleId, str],
        first_step: int,
        resting: tuple[int, ...] = (),
    ) -> Stage:
        config = self._around.config
        return Stage(
            index=index,
            table=table_of(config, index).rows,
            path_weights=fitted.shares,
            router=self._around.swarm.put_blob(fitted.data),
            overlap=config.stages[index].overlap,
            text_characters=fitted.text_characters,
            resting=resting,
            seeds={str(module): seed for module, seed in seed_of.items()},
            rounds=config.at(index).rounds_of(config.stages[index]),
            first_step=first_step,
        )


def _rounds_of(config: RunConfig, index: int, lengths: RoundLengths) -> int | None:
    """After which a stage ends whose rounds have these lengths."""
    stage, there = config.stages[index], config.at(index)
    if stage.tokens is None:
        return stage.rounds
    steps, since = math.ceil(stage.tokens / there.tokens_per_step), lengths.since[-1][0]
    return since + math.ceil(max(0, steps - lengths.before(since)) / lengths.at(since))
