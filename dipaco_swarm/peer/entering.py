"""Into a stage: path, shard, model, the newest state of each module, and what is left of our own progress."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache, partial

from torch import Tensor

from dipaco_swarm.algorithm.pacing.pacing import pacing_of
from dipaco_swarm.algorithm.paths import ModuleId, PathIndex, PathTable
from dipaco_swarm.algorithm.progress import ModuleProgress, Part, resumed
from dipaco_swarm.algorithm.stages import generations, last_versions, outer_rules, state_at_start
from dipaco_swarm.algorithm.state import ModuleState
from dipaco_swarm.events.training import Loss
from dipaco_swarm.events.volunteer import EndedUnsaved, NothingHeldOut, Resumed, StageBegan
from dipaco_swarm.machine.beside import Beside, Work
from dipaco_swarm.machine.manners import Pause
from dipaco_swarm.machine.stopping import Stopped
from dipaco_swarm.outer_round import announce
from dipaco_swarm.path_in_training import PathInTraining, RoundRules
from dipaco_swarm.peer.arriving import NewestOnEntering
from dipaco_swarm.peer.keeping import Keeping
from dipaco_swarm.peer.moving import StageMove
from dipaco_swarm.peer.next_stage import NextStage
from dipaco_swarm.peer.path_choice import PathChoice, number_of
from dipaco_swarm.peer.resting import RestingTrainer
from dipaco_swarm.peer.snapshots import OwnSnapshots
from dipaco_swarm.peer.surroundings import Surroundings
from dipaco_swarm.peer.workbench import Bench, Preparation
from dipaco_swarm.run.manifest import Manifest, Stage
from dipaco_swarm.swarm.cards import Card
from dipaco_swarm.swarm.groups import group_of
from dipaco_swarm.swarm.interface import Residual
from dipaco_swarm.swarm.newest import NewestStates
from dipaco_swarm.training.checkpoint import Checkpoint
from dipaco_swarm.training.inner import InnerState

LOOK_SECONDS = 0.1


@dataclass(frozen=True)
class Post:
    """A path of a stage, entered."""

    manifest: Manifest
    """Of when it was entered."""
    peer: PathInTraining
    bench: Bench
    snapshots: OwnSnapshots | None
    """In a run with early stopping."""
    was_ready: bool = False
    """Whether it was prepared beside training in the stage before: others come as well, and nobody waits for them."""


class Entering:
    """Makes a post of a manifest."""

    def __init__(
        self,
        around: Surroundings,
        keeping: Keeping,
        choice: PathChoice,
        next_stage: NextStage,
        moving: StageMove,
        beside: Beside,
    ) -> None:
        self._around = around
        self._beside = beside
        self._next_stage = next_stage
        self._moving = moving
        self._keeping = keeping
        self._choice = choice

    def enter(self, manifest: Manifest, left_behind: Mapping[ModuleId, ModuleState]) -> Post:
        """Get ready for the manifest's stage. `left_behind`: modules of the path that we were on in this stage.

        Raises Stopped when asked to stop meanwhile, SwarmError when this machine cannot train the stage.
        """
        around, stage = self._around, manifest.stage
        table = PathTable(stage.table)
        prepared = self._next_stage.take(manifest)
        path = self._choice.on_entering(stage, table, None if prepared is None else prepared.path)
        modules = table.modules_of(path)
        self._keeping.keep_manifest()
        around.screen.event(StageBegan(stage.index, path, table.num_paths, tuple(map(str, modules))))
        saved, rules = self._keeping.load(stage.index, path), _rules(manifest)
        # who has a state trains on while a newer one comes, but where steps are counted and all wait for all
        may_train_on = rules.rounds.overlaps and not pacing_of(manifest.rules.rounds.pacing).whole
        fetch, follow = self._moving.fetching(), rules.follow
        sizes = cache(partial(around.workbench.sizes, manifest, around.fetch))
        states = NewestOnEntering(
            around,
            stage,
            at_hand=[left_behind, self._keeping.salvaged],
            start=lambda module: state_at_start(stage, module, fetch),
            size=lambda module: sizes()[module.level],
            follow=follow,
            trains_on=may_train_on and saved is not None,
            begins_earlier=may_train_on,
        )
        ours: Mapping[ModuleId, ModuleState | None]
        ours = {module: None if saved is None else saved.base[module] for module in modules}
        if prepared is not None:
            bench = prepared.bench
            around.workbench.begin(bench)
        else:
            coming = self._beside.begin(partial(states.of, ours), "states")  # while documents are read
            swarm, tell = around.swarm, around.screen.event
            wanted = Preparation(manifest, path, swarm.peer, around.fetch, tell, swarm.sharing, around.stop)
            bench = around.workbench.prepare(wanted)
            ours = self._awaited(coming)
            states = replace(states, trains_on=may_train_on)  # others have gone on meanwhile
        base = states.of(ours)
        peer = PathInTraining(
            swarm=around.swarm,
            stage=stage.index,
            table=table,
            path=path,
            groups={module: group_of(manifest.rules, stage, table, module) for module in modules},
            rules=rules,
            model=bench.model,
            trainer=RestingTrainer(
                bench.trainer,
                around.settings.cpu_share,
                around.stop.wait,
                lambda: isinstance(around.manners.now, Pause),
            ),
            batches=iter(()),
            newest=NewestStates(around.swarm, follow=follow, again_after=around.swarm.timing.unsent_again),
            progress={module: ModuleProgress(state) for module, state in base.items()},
            aside=self._keeping.shelf.copy_of,
            card=Card(around.settings.nickname),
            moves=self._choice.moves,
            left_behind={module: state for module, state in left_behind.items() if module not in modules},
            generations=generations(stage),
        )
        self._load(peer, saved, manifest)
        # replicas of a path read the shard in different orders, or they would do the same work
        peer.batches = bench.batches(manifest.config.seed + number_of(around.swarm.peer), peer.batches_consumed)
        announce(peer)
        snapshots = self._own_snapshots(manifest, peer, bench)
        self._choice.arrived()
        if around.desk is not None:
            around.desk.enter(manifest, peer, around.fetch)
        return Post(manifest, peer, bench, snapshots, was_ready=prepared is not None)

    def _awaited(self, coming: Work[dict[ModuleId, ModuleState]]) -> dict[ModuleId, ModuleState]:
        while not coming.is_over:
            if self._around.stop.wait(LOOK_SECONDS):
                raise Stopped
        return coming.result()

    def _load(self, peer: PathInTraining, saved: Checkpoint | None, manifest: Manifest) -> None:
        """Put the agreed states into the model, and on top of them the local progress that is still of use."""
        around, given, unsaved = self._around, self._keeping.given(peer.stage, peer.path), self._unsaved(peer, saved)
        why: Loss = "damaged checkpoint" if saved is None and self._keeping.damaged else "killed"
        for module, state in peer.base.items():
            progress = ModuleProgress(state, given_at=given.get(module), part=Part(0, state.params))
            vector = state.params
            if saved is not None:
                part = self._keeping.part_given(saved, module)
                ours = ModuleProgress(saved.base[module], saved.tokens[module], given.get(module), part)
                left = resumed(ours, state, saved.local[module])
                progress, vector, local = left.progress, left.params, ours.tokens - left.given + unsaved
                around.book.dropped(peer, module, ours.version, left.given, "not acknowledged", local=local)
                around.book.dropped(peer, module, ours.version, left.stale, "stale", local=unsaved)
                around.book.dropped(peer, module, ours.version, left.taken_back, "taken back", local=unsaved)
            version = state.version if saved is None else saved.base[module].version
            around.book.dropped(peer, module, version, unsaved, why, local=progress.tokens)
            peer.progress[module] = progress
            peer.model.load(module.level, vector)
            peer.swarm.hold(peer.stage, module, state)
        if saved is None:
            steps = peer.rules.step_at(peer.version)
            peer.trainer.load_state(InnerState(steps, self._moments_before(manifest.stage, peer.path)))
            return
        peer.trainer.load_state(saved.inner)
        peer.batches_consumed = saved.shard_cursor
        residuals = {module: Residual(saved.base[module].version, left) for module, left in saved.residuals.items()}
        peer.swarm.resume_residuals(peer.stage, peer.path, residuals)

    def _unsaved(self, peer: PathInTraining, saved: Checkpoint | None) -> int:
        """Tokens that earlier lives have trained on the path since the checkpoint."""
        in_checkpoint = 0 if saved is None else saved.trained
        peer.trained = max(in_checkpoint, self._keeping.trained(peer.stage, peer.path))
        if saved is not None:
            self._around.screen.event(Resumed(saved.inner.steps_done))
        if peer.trained > in_checkpoint:
            self._around.screen.event(EndedUnsaved(peer.trained - in_checkpoint))
        return peer.trained - in_checkpoint

    def _moments_before(self, stage: Stage, path: PathIndex) -> Mapping[str, Tensor]:
        """Of the inner optimizer, from the stage before, where the path goes on and was ours; else none."""
        before = self._keeping.load(stage.index - 1, path) if stage.momenta else None
        return {} if before is None else before.inner.tensors

    def _own_snapshots(self, manifest: Manifest, peer: PathInTraining, bench: Bench) -> OwnSnapshots | None:
        config, around = manifest.config.early_stopping, self._around
        if config is None:
            return None
        loss_of = bench.loss_on_slice(config.max_sequences)
        own = OwnSnapshots(peer, config.every, loss_of, around.settings.home, around.run)
        if loss_of is None:
            around.screen.event(NothingHeldOut(peer.path))
        own.offer_kept()
        return own


def _rules(manifest: Manifest) -> RoundRules:
    config, stage = manifest.rules, manifest.stage
    return RoundRules(
        outer_rules(config, stage),
        config.rounds,
        config.tokens_per_step,
        last_versions(manifest),
        stage.first_step,
        manifest.lengths,
        manifest.decays,
    )
