"""The life of a peer: join, take a path, rounds until the stage changes, move on, leave.

What to do next is decided in `algorithm/plan.py`; a round is `outer_round.run_outer_round`. This file connects them to
the run's manifest, the shard on disk, the checkpoint and the screen.
"""

import logging
import math
import threading
import time
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from dipaco_swarm.algorithm.paths import ModuleId, PathIndex, PathTable
from dipaco_swarm.algorithm.plan import (
    CatchUp,
    Claim,
    Leave,
    MoveOn,
    Score,
    Situation,
    Train,
    Wait,
    better_claim,
    next_action,
)
from dipaco_swarm.algorithm.stages import most_paths, state_at_start
from dipaco_swarm.algorithm.state import ModuleState
from dipaco_swarm.choosing import PathChoice, number_of, trainers_of
from dipaco_swarm.dashboard.metrics import Metrics
from dipaco_swarm.dashboard.screens import Screen, open_screen
from dipaco_swarm.dashboard.views import ModuleView, PeerView
from dipaco_swarm.errors import ManifestError, UnreachableError, UsageError
from dipaco_swarm.manifest import Manifest, OuterConfig, RunConfig, Stage, open_manifest
from dipaco_swarm.outer_round import (
    PathInTraining,
    RoundReport,
    RoundRules,
    announce,
    catch_up,
    catch_ups,
    holdings,
    run_outer_round,
)
from dipaco_swarm.serving import OwnSnapshots
from dipaco_swarm.settings import PeerSettings
from dipaco_swarm.stopping import Stopping, stopping_on_signals
from dipaco_swarm.swarm.interface import Agreed, Announcement, Kept, ModuleGroup, Swarm
from dipaco_swarm.training import checkpoint as checkpoints
from dipaco_swarm.training.bank import write_whole
from dipaco_swarm.training.checkpoint import Checkpoint
from dipaco_swarm.training.documents import read_documents
from dipaco_swarm.training.early import run_of
from dipaco_swarm.training.inner import InnerState, InnerTrainer, StepReport, TrainingSettings
from dipaco_swarm.training.modules import PathModel, build_network
from dipaco_swarm.training.routed import Routing, load_routing, shard_recipe
from dipaco_swarm.training.scoring import (
    ScoreStatement,
    sample_from_bytes,
    score_sample,
    scores_to_bytes,
    topic_of,
)
from dipaco_swarm.training.shards import Shard, ShardProgress, build_shard
from dipaco_swarm.training.tokenizer import vocabulary_size

log = logging.getLogger(__name__)

MANIFEST_SECONDS = 20.0
MANIFEST_PAUSES = (2, 4, 8, 16, 30)
"""A bootstrap node that has just been started has its manifest after a minute."""
BLOB_SECONDS = 600.0
LOOK_UP_SECONDS = 20.0
STATE_SECONDS = 600.0
WATCH_SECONDS = 3.0
"""How often the manifest is looked for in the background."""
CHECKPOINT_SECONDS = 60.0
"""A crash loses at most this much local progress; a clean end loses none."""
REDRAW_SECONDS = 0.5
STAY_ROUNDS = 3
"""A peer with --path auto looks before its first round of a stage, and then so often, where it is needed."""
IDLE_LOOK_SECONDS = 5.0
"""... and so often while its own path has nothing left to do."""
ACCEPTED_STALENESS = 1
"""Local progress from an older version than this is dropped when catching up (SPEC 7.5)."""


def run_peer(settings: PeerSettings) -> None:
    """Train one path of a run until Ctrl+C, or until what the settings say. Raises SwarmError."""
    from dipaco_swarm.swarm.libp2p import open_swarm
    from dipaco_swarm.swarm.node import NodeSettings

    _device(settings.device)  # before anything slow: a wrong choice should cost no waiting
    with stopping_on_signals() as stop, open_screen(settings.screen) as screen:
        screen.event(f"joining {settings.address.name}")
        with open_swarm(settings.address, settings.home, NodeSettings(settings.listen or DEFAULT_LISTEN)) as swarm:
            stop.tell(swarm.interrupt)
            Volunteer(settings, swarm, screen, stop).live()
        screen.event("left the swarm; the same command goes on from here")


DEFAULT_LISTEN = "/ip4/0.0.0.0/tcp/0"


class Volunteer:
    """A peer and its surroundings. `live` is its whole life; constructing it does nothing."""

    def __init__(self, settings: PeerSettings, swarm: Swarm, screen: Screen, stop: Stopping) -> None:
        self._settings = settings
        self._swarm = swarm
        self._screen = screen
        self._stop = stop
        self._run = run_of(settings.address.name, settings.address.fingerprint)
        self._metrics = Metrics(settings.home / "metrics.jsonl")
        self._show = PeerShow(screen, swarm, settings.address.name, self._metrics)
        self._cache = settings.cache or settings.home / "cache"
        self._made: Counter[int] = Counter()
        """Outer steps per level since we were started: modules have their own clocks."""
        self._rounds = 0
        self._scored: str | None = None
        """The routing sample that we have scored last."""
        self._snapshots: OwnSnapshots | None = None
        """Of the path of now, in a run with early stopping."""
        self._choice = PathChoice(swarm, settings.path, settings.home)
        self._left: dict[ModuleId, ModuleState] = {}
        """Modules of the path that we moved away from within this stage."""

    def live(self) -> None:
        """Join, and train stage after stage until asked to stop or finished."""
        if self._settings.threads is not None:
            torch.set_num_threads(self._settings.threads)
        manifest = self._first_manifest()
        if manifest is None:
            return
        config = manifest.config
        paths = most_paths(config)
        if self._settings.path is not None and not 0 <= self._settings.path < paths:
            raise UsageError(
                f"path {self._settings.path} does not exist: the run {config.name} has paths 0 to {paths - 1}; choose "
                "one of them, or --path auto"
            )
        self._swarm.take_part(config.wire.codec, config.limits.norm_clip, config.limits.max_members)
        with ManifestWatch(self._swarm, self._settings.address.fingerprint) as watch, suppress(_Stopped):
            while manifest is not None and not self._stop():
                manifest = self._train(self._enter(manifest), manifest, watch)

    def _first_manifest(self) -> Manifest | None:
        """The run's manifest. None when asked to stop; raises UnreachableError when nobody here knows the run."""
        for pause in (*MANIFEST_PAUSES, None):
            try:
                signed = self._swarm.newest_manifest(timeout=MANIFEST_SECONDS)
            except UnreachableError:
                if pause != MANIFEST_PAUSES[0]:
                    raise
                signed = None  # a node in its first second does not speak for its run yet
            if signed is not None:
                return open_manifest(signed, self._settings.address.fingerprint)
            if pause is not None:
                self._screen.event(f"nobody has sent the run's manifest yet; asking again in {pause} s")
            if self._stop.wait(pause or 0):
                return None
        raise UnreachableError(self._settings.address.nobody_knows_it)

    # ------------------------------------------------------------------------------------------------------ entering

    def _enter(self, manifest: Manifest) -> PathInTraining:
        """Get ready for the manifest's stage: path, shard, model, module states."""
        stage = manifest.stage
        table = PathTable(stage.table)
        path = self._choice.on_entering(stage, table)
        modules = table.modules_of(path)
        self._keep_manifest()
        self._screen.event(f"stage {stage.index}: path {path} of {table.num_paths}, {_names(modules)}")
        routing = load_routing(manifest, stage, self._fetch, remember=self._cache / "features")
        shard = self._shard(manifest, stage, path, routing)
        model = PathModel(
            build_network(manifest.config.model, vocabulary_size(routing.tokenizer), manifest.config.seed),
            manifest.config.levels,
        )
        device = _device(self._settings.device)
        model.to(device)
        saved = checkpoints.load(self._checkpoint_file(stage.index, path), self._run)
        settings = TrainingSettings(device, self._settings.threads, self._settings.micro_batch)
        trainer = InnerTrainer(model, manifest.config.inner, settings)
        base = {module: self._state_of(stage, module, saved) for module in modules}
        peer = PathInTraining(
            swarm=self._swarm,
            stage=stage.index,
            table=table,
            path=path,
            groups={module: _group(manifest.config, stage, table, module) for module in modules},
            rules=RoundRules(
                _outer_rules(manifest.config, stage),
                manifest.config.rounds,
                manifest.config.tokens_per_step,
                stage.rounds,
            ),
            model=model,
            trainer=trainer,
            batches=iter(()),
            base=base,
            tokens=dict.fromkeys(modules, 0),
            moves=self._choice.moves,
            left_behind={module: state for module, state in self._left.items() if module not in modules},
        )
        self._load(peer, saved, stage, manifest)
        # replicas of a path read the shard in different orders, or they would do the same work
        seed = manifest.config.seed + number_of(self._swarm.peer)
        peer.batches = shard.batches(manifest.config.inner.batch_sequences, seed, peer.batches_consumed)
        announce(peer)
        self._snapshots = self._own_snapshots(manifest, peer, shard)
        self._choice.arrived()
        return peer

    def _own_snapshots(self, manifest: Manifest, peer: PathInTraining, shard: Shard) -> OwnSnapshots | None:
        config = manifest.config
        if config.early_stopping is None:
            return None
        own = OwnSnapshots(
            peer, config.early_stopping, config.router.prefix_tokens, shard, self._settings.home, self._run
        )
        if own.too_small is not None:
            self._screen.event(own.too_small)
        return own

    def _keep_manifest(self) -> None:
        """Keep the manifest beside the checkpoints, so that they can be used without the swarm."""
        signed = self._swarm.newest_manifest(timeout=MANIFEST_SECONDS)
        if signed is not None:
            write_whole(self._settings.home / "manifest.json", signed)

    def _load(self, peer: PathInTraining, saved: Checkpoint | None, stage: Stage, manifest: Manifest) -> None:
        """Put the agreed states into the model, and on top of them the local progress that is still of use."""
        for module, state in peer.base.items():
            progress = None
            if saved is not None and state.version - saved.base[module].version <= ACCEPTED_STALENESS:
                progress = saved.local[module] - saved.base[module].params
                peer.tokens[module] = saved.tokens[module]
            peer.model.load(module.level, state.params if progress is None else state.params + progress)
            peer.swarm.hold(peer.stage, module, state)
        if saved is not None:
            peer.trainer.load_state(saved.inner)
            peer.batches_consumed = saved.shard_cursor
            self._screen.event(f"going on from the checkpoint at step {saved.inner.steps_done}")
            return
        versions = min(state.version for state in peer.base.values())
        steps = stage.first_step + versions * manifest.config.rounds.inner_steps
        peer.trainer.load_state(InnerState(steps, self._moments_before(stage, peer.path)))

    def _moments_before(self, stage: Stage, path: PathIndex) -> Mapping[str, Tensor]:
        """Of the inner optimizer, from the stage before, where the path goes on and was ours; else none."""
        before = checkpoints.load(self._checkpoint_file(stage.index - 1, path), self._run) if stage.momenta else None
        return {} if before is None else before.inner.tensors

    def _shard(self, manifest: Manifest, stage: Stage, path: PathIndex, routing: Routing) -> Shard:
        def tell(progress: ShardProgress) -> None:
            if self._stop():
                raise _Stopped
            if progress.documents % 2048 == 0:
                self._screen.event(f"reading documents: {progress.documents:,}, {progress.sequences:,} sequences")

        recipe = shard_recipe(manifest, stage, path)
        shard = build_shard(
            lambda: read_documents(manifest.config.data),
            routing.tokenizer,
            manifest.config.data,
            manifest.config.router,
            routing.assign,
            path,
            cache=self._cache / "shards",
            key=recipe.key(),
            hold_out=recipe.hold_out,
            remember=self._cache / "tokens" / manifest.tokenizer[:32],
            on_progress=tell,
        )
        self._screen.event(f"shard ready: {shard.num_sequences:,} sequences, {shard.num_tokens:,} tokens")
        return shard

    def _state_of(self, stage: Stage, module: ModuleId, saved: Checkpoint | None) -> ModuleState:
        """The state that the group is at: from the checkpoint, the seed, or whoever holds it."""
        ours = saved.base[module] if saved is not None else state_at_start(stage, module, self._fetch)
        if module in self._left and self._left[module].version > ours.version:
            ours = self._left[module]
        while not self._stop():
            self._swarm.look_up(stage.index, [module], timeout=LOOK_UP_SECONDS)
            members = self._swarm.members(stage.index, module)
            others = [Claim(said.version, said.digest) for said in members if said.peer != self._swarm.peer]
            better = better_claim(Claim(ours.version, ours.digest), others)
            if better is None:
                return ours
            state = self._swarm.fetch_state(
                stage.index, module, better.digest, timeout=STATE_SECONDS, parameters=len(ours.params)
            )
            if state is not None:
                self._screen.event(f"fetched {module} at version {state.version}")
                return state
            self._screen.event(f"nobody sends {module} at version {better.version} just now; asking again in 2 s")
            self._stop.wait(2)
        raise _Stopped

    def _fetch(self, digest: str) -> bytes:
        """A blob; keeps asking while nobody has it."""
        while True:
            try:
                return self._swarm.fetch_blob(digest, timeout=BLOB_SECONDS)
            except UnreachableError as error:
                if self._stop():
                    raise _Stopped from None
                self._screen.event(f"{error}; asking again in 5 s")
                if self._stop.wait(5):
                    raise _Stopped from None

    # ------------------------------------------------------------------------------------------------------ training

    def _train(self, peer: PathInTraining, manifest: Manifest, watch: "ManifestWatch") -> Manifest | None:
        """Rounds of one stage. Returns the manifest of the next stage, or None to leave."""
        begun = any(state.version > 0 for state in peer.base.values())
        said, saved_at, looked_at = "", time.monotonic(), 0.0
        look_at = self._rounds + (STAY_ROUNDS if self._left else 0)  # who has just moved stays for a while
        while True:
            newest = watch.newest or manifest
            if newest.stage.index == peer.stage:  # the operator may have said when it ends
                peer.rules = replace(peer.rules, last_version=newest.stage.rounds)
            if self._snapshots is not None and not self._stop() and (best := self._snapshots.look()) is not None:
                self._screen.event(best)
            done = all(peer.is_done(module) for module in peer.modules)
            peers = 1 if begun else _peers_in_sight(peer)
            now = Situation(
                stopping=self._stop() or self._rounds_are_over(),
                newer_stage=newest.stage.index > peer.stage,
                run_finished=newest.finished,
                leaves_when_finished=self._settings.until_finished,
                stage_done=done,
                begun=begun,
                peers=peers,
                peers_needed=manifest.config.min_peers,
                catch_up=catch_ups(peer),
                scores_wanted=done and newest.scoring not in (None, self._scored),
            )
            match next_action(now):
                case Leave():
                    self._save(peer)
                    self._swarm.announce([])
                    return None
                case MoveOn():
                    self._save(peer)
                    self._left = {}
                    return newest
                case CatchUp() as task:
                    self._catch_up(peer, task)
                case Score():
                    self._score(peer, newest)
                case Wait(reason):
                    if reason != said:
                        self._screen.event(reason)
                        said = reason
                    self._show.now(peer, manifest, reason)
                    if done and not newest.finished and time.monotonic() - looked_at > IDLE_LOOK_SECONDS:
                        looked_at = time.monotonic()
                        if self._is_needed_elsewhere(peer, newest):
                            return newest
                    self._stop.wait(0.5)
                case Train():
                    if self._rounds >= look_at:
                        if self._is_needed_elsewhere(peer, newest):
                            return newest
                        look_at = self._rounds + STAY_ROUNDS
                    begun = True
                    watched = self._show.watching(peer, manifest)
                    report = run_outer_round(peer, stop=self._stop, on_step=watched.step, on_due=watched.due)
                    self._note(report, peer)
                    self._show.now(peer, manifest, "training")
                    if time.monotonic() - saved_at > CHECKPOINT_SECONDS:
                        self._save(peer)
                        saved_at = time.monotonic()

    def _is_needed_elsewhere(self, peer: PathInTraining, manifest: Manifest) -> bool:
        """Whether to move to another path now, with --path auto; everything is kept and saved then."""
        path = self._choice.after_a_stay(manifest.stage, peer.table, peer.path, peer.rules.last_version)
        if path == peer.path:
            return False
        self._screen.event(f"moving from path {peer.path} to path {path}, where help is needed more")
        self._save(peer)
        self._left = dict(peer.base)
        for module, state in peer.left_behind.items():
            if self._is_held_elsewhere(peer.stage, module, state.version):
                self._swarm.release(peer.stage, module)
            else:
                self._left[module] = state
        self._swarm.announce(holdings(peer.swarm.peer, peer.stage, self._left))  # nobody waits for us there any more
        return True

    def _is_held_elsewhere(self, stage: int, module: ModuleId, version: int) -> bool:
        members = self._swarm.members(stage, module)
        return any(said.version >= version for said in members if said.peer != self._swarm.peer)

    def _score(self, peer: PathInTraining, manifest: Manifest) -> None:
        """Score the operator's routing sample under our path, and say where the scores are."""
        assert manifest.scoring is not None
        self._scored = manifest.scoring
        vocabulary = peer.model.network.config.vocab_size
        sample = sample_from_bytes(self._fetch(manifest.scoring), vocabulary, manifest.config.data.sequence_length)
        for module in peer.modules:
            peer.model.load(module.level, peer.base[module].params)
        scores = score_sample(peer.model.network, sample, manifest.config.router.prefix_tokens)
        digest = self._swarm.put_blob(scores_to_bytes(scores))
        statement = ScoreStatement(path=peer.path, scores=digest)
        self._swarm.say(topic_of(manifest), statement.to_bytes())
        self._screen.event(f"scored {len(scores):,} pieces of the routing sample under path {peer.path}")

    def _rounds_are_over(self) -> bool:
        return self._settings.rounds is not None and self._rounds >= self._settings.rounds

    def _catch_up(self, peer: PathInTraining, task: CatchUp) -> None:
        ours = peer.base[task.module].version
        if catch_up(peer, task):
            self._screen.event(f"{task.module}: caught up from version {ours} to {task.to.version}")
        else:
            self._screen.event(f"{task.module}: nobody sends version {task.to.version} just now; asking again")
            self._stop.wait(1)

    def _note(self, report: RoundReport, peer: PathInTraining) -> None:
        """Tell the person what came out of a round."""
        if not report.outcomes:
            return
        agreed = []
        noted = {}
        for module, outcome in report.outcomes.items():
            if isinstance(outcome, Agreed):
                digest = peer.base[module].digest
                noted[str(module)] = {
                    "version": report.versions[module],
                    "digest": digest,
                    "peers": len(outcome.contributors),
                }
                self._made[module.level] += 1
                others = len(outcome.contributors) - 1
                agreed.append(f"{module} v{report.versions[module]} with {others} other{'' if others == 1 else 's'}")
            elif isinstance(outcome, Kept) and not self._stop():
                self._screen.event(f"{module}: {outcome.reason}; nothing lost")
        self._rounds = self._show.rounds = max(self._made.values(), default=0)
        self._metrics.round(peer.stage, peer.path, peer.trainer.steps_done, self._rounds, noted)
        if agreed:
            self._show.last_agreed = f"{', '.join(agreed)}, at {time.strftime('%H:%M:%S')}"
            loss = "" if math.isnan(report.loss) else f"loss {report.loss:.3f}, "
            self._screen.event(f"round {self._rounds}: {loss}{', '.join(agreed)}")

    # ------------------------------------------------------------------------------------------------------- keeping

    def _checkpoint_file(self, stage: int, path: PathIndex) -> Path:
        return self._settings.home / "checkpoints" / f"stage-{stage}-path-{path}.safetensors"

    def _save(self, peer: PathInTraining) -> None:
        checkpoints.save(
            self._checkpoint_file(peer.stage, peer.path),
            Checkpoint(
                run=self._run,
                stage=peer.stage,
                path=peer.path,
                base=peer.base,
                local={module: peer.model.vector(module.level) for module in peer.modules},
                tokens=peer.tokens,
                inner=peer.trainer.state(),
                shard_cursor=peer.batches_consumed,
            ),
        )


class _Stopped(Exception):
    """Asked to stop in the middle of getting ready."""


class ManifestWatch:
    """Looks for newer manifests in the background, so that a silent bootstrap node never holds up training."""

    def __init__(self, swarm: Swarm, fingerprint: str) -> None:
        self._swarm = swarm
        self._fingerprint = fingerprint
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, name="manifest", daemon=True)
        self.newest: Manifest | None = None

    def __enter__(self) -> "ManifestWatch":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()

    def _look(self) -> None:
        while not self._over.wait(WATCH_SECONDS if self.newest else 0.1):
            try:
                signed = self._swarm.newest_manifest(timeout=MANIFEST_SECONDS)
            except ManifestError as error:
                log.warning("ignored a manifest: %s", error)
                continue
            except UnreachableError as error:
                log.debug("%s", error)
                continue
            if signed is not None:
                manifest = open_manifest(signed, self._fingerprint)
                if self.newest is None or manifest.revision > self.newest.revision:
                    self.newest = manifest


class PeerShow:
    """Keeps what the volunteer's screen shows between two redraws."""

    def __init__(self, screen: Screen, swarm: Swarm, run: str, metrics: Metrics) -> None:
        self._screen = screen
        self._swarm = swarm
        self._run = run
        self._metrics = metrics
        self._losses: deque[float] = deque(maxlen=400)
        self._tokens = 0
        self._drawn = 0.0
        self._steps_in_round = 0
        self.rounds = 0
        self.last_agreed: str | None = None

    def watching(self, peer: PathInTraining, manifest: Manifest) -> "_Watching":
        self._steps_in_round = 0
        return _Watching(self, peer, manifest)

    def step(self, peer: PathInTraining, manifest: Manifest, report: StepReport) -> None:
        self._losses.append(report.loss)
        self._tokens += report.tokens
        self._steps_in_round += 1
        self._metrics.step(peer.stage, peer.path, report.step, report.loss, report.tokens, report.seconds)
        if time.monotonic() - self._drawn > REDRAW_SECONDS:
            self._drawn = time.monotonic()
            self.now(peer, manifest, "training")

    def now(self, peer: PathInTraining, manifest: Manifest, activity: str) -> None:
        """Redraw."""
        inner_steps = manifest.config.rounds.inner_steps
        left = max(0, inner_steps - self._steps_in_round) * peer.rules.tokens_per_step
        members = {module: self._swarm.members(peer.stage, module) for module in peer.modules}
        traffic = self._swarm.traffic()
        self._screen.show(
            PeerView(
                run=self._run,
                stage=peer.stage,
                stages=len(manifest.config.stages),
                path=peer.path,
                num_paths=peer.table.num_paths,
                activity=activity,
                rounds=self.rounds,
                peers=len({said.peer for all_said in members.values() for said in all_said if said.path is not None}),
                modules=tuple(_module_view(peer, module, said) for module, said in members.items()),
                losses=tuple(self._losses),
                tokens_per_second=peer.tokens_per_second,
                tokens=self._tokens,
                bytes_sent=traffic.sent,
                bytes_received=traffic.received,
                last_agreed=self.last_agreed,
                round_progress=min(1.0, self._steps_in_round / inner_steps),
                next_round_seconds=left / peer.tokens_per_second if peer.tokens_per_second else None,
            )
        )


@dataclass(frozen=True)
class _Watching:
    """Shows a round while it goes on."""

    show: PeerShow
    peer: PathInTraining
    manifest: Manifest

    def step(self, report: StepReport) -> None:
        self.show.step(self.peer, self.manifest, report)

    def due(self, modules: Sequence[ModuleId]) -> None:
        self.show.now(self.peer, self.manifest, f"sharing {_names(modules)}")


def _module_view(peer: PathInTraining, module: ModuleId, said: Sequence[Announcement]) -> ModuleView:
    state = peer.base[module]
    trainers = [s for s in said if s.path is not None]
    same_version = [s for s in trainers if s.version == state.version]
    agree = sum(1 for s in same_version if s.digest == state.digest)
    return ModuleView(
        name=str(module),
        version=state.version,
        peers=len(trainers),
        agree=agree,
        differ=len(same_version) - agree,
        paths=len(peer.table.paths_through(module)),
    )


def _group(config: RunConfig, stage: Stage, table: PathTable, module: ModuleId) -> ModuleGroup:
    weights = {path: stage.path_weights[path] for path in table.paths_through(module)}
    return ModuleGroup(stage.index, module, weights, config.outer.averaging)


def _outer_rules(config: RunConfig, stage: Stage) -> OuterConfig:
    """A ramp is for modules that have no outer momentum yet."""
    return config.outer.model_copy(update={"ramp_rounds": 0}) if stage.momenta else config.outer


def _peers_in_sight(peer: PathInTraining) -> int:
    """Live peers of the stage that train, not counting those whose records have reached only some of our groups yet.

    A round that begins on half a view of its group would leave somebody out.
    """
    trainers = {s.peer: s.path for s in trainers_of(peer.swarm, peer.stage, peer.table)}
    peer.swarm.look_up(peer.stage, peer.modules, timeout=LOOK_UP_SECONDS)
    for module in peer.modules:
        seen = {said.peer for said in peer.swarm.members(peer.stage, module)}
        through = peer.table.paths_through(module)
        trainers = {name: path for name, path in trainers.items() if path not in through or name in seen}
    return len(trainers)


def _names(modules: Sequence[ModuleId]) -> str:
    return ", ".join(str(module) for module in modules)


def _device(choice: str) -> str:
    if choice == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if choice == "cuda" and not torch.cuda.is_available():
        raise UsageError("--device cuda: torch finds no CUDA device here; use --device cpu, or check the driver")
    return choice
