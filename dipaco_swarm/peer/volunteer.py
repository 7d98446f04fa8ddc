"""The life of a peer: join, take a path, rounds until the stage changes, move on, leave.

What to do next is decided in `algorithm/plan.py`; a round is `outer_round.run_outer_round`. This file connects them to
the run's manifest, the shard on disk, the checkpoint and the screen.
"""

import logging
import math
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

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
from dipaco_swarm.dashboard.metrics import Metrics, steps_after
from dipaco_swarm.dashboard.screens import Screen, open_screen
from dipaco_swarm.errors import DamagedError, HomeError, SwarmError, UnreachableError, UsageError
from dipaco_swarm.files import set_aside, write_whole
from dipaco_swarm.machine.clock import SYSTEM_CLOCK
from dipaco_swarm.machine.notices import Notices
from dipaco_swarm.machine.sleep import LookForSleep, Missed, SleepDetector, never_asleep
from dipaco_swarm.machine.stopping import Stopped, Stopping, stopping_on_signals, until_stopped
from dipaco_swarm.manifest import Manifest, OuterConfig, RunConfig, Stage, open_manifest
from dipaco_swarm.outer_round import (
    PathInTraining,
    RoundReport,
    RoundRules,
    adopt,
    announce,
    catch_up,
    catch_ups,
    holdings,
    run_outer_round,
)
from dipaco_swarm.peer.handover import hand_over, is_keeper, other_holders
from dipaco_swarm.peer.manifest_watch import ManifestWatch
from dipaco_swarm.peer.path_choice import PathChoice, number_of, trainers_of
from dipaco_swarm.peer.presenter import PeerPresenter, names
from dipaco_swarm.peer.snapshots import OwnSnapshots
from dipaco_swarm.peer.training_workbench import workbench_of
from dipaco_swarm.peer.workbench import Bench, Workbench
from dipaco_swarm.settings import PeerSettings
from dipaco_swarm.swarm.interface import Agreed, Announcement, ModuleGroup, NotAgreed, Residual, Swarm
from dipaco_swarm.training import checkpoint as checkpoints
from dipaco_swarm.training.checkpoint import Checkpoint
from dipaco_swarm.training.early import run_of
from dipaco_swarm.training.inner import InnerState, StepReport
from dipaco_swarm.training.scoring import BYTES_OF_A_SCORE, ScoreStatement, topic_of

log = logging.getLogger(__name__)

MANIFEST_PAUSES = (2, 4, 8, 16, 30)
"""A bootstrap node that has just been started has its manifest after a minute."""
MANIFEST_SECONDS = 20.0
BLOB_SECONDS = 600.0
LOOK_UP_SECONDS = 20.0
STATE_SECONDS = 600.0
CHECKPOINT_SECONDS = 2.0
"""A crash loses at most this much local progress of a small path; a clean end loses none."""
CHECKPOINT_BYTES_PER_SECOND = 5e6
"""More is not written on average: 3 GB of a path of 150 million parameters every ten minutes. Disks wear out."""
SAVING_SHARE = 0.05
"""The next checkpoint waits until saving has taken no more of the time than this."""
LOOK_AROUND_SECONDS = 3.0
UNHEARD_SECONDS = 10.0
"""A bootstrap node that is not to be heard is worth a line after so long: stages end and begin in less."""
WAKING_SECONDS = 15.0
"""What the network of a laptop needs after its lid was opened; nobody takes the others for gone before."""
UNSENT_SECONDS = 30.0
"""A state that nobody sends for so long is not waited for: whoever had it is gone, or never had it."""
ASK_AGAIN_SECONDS = 10.0
MENDING_SECONDS = 60.0
STAY_ROUNDS = 3
"""A peer with --path auto looks before its first round of a stage, and then so often, where it is needed."""
IDLE_LOOK_SECONDS = 5.0
"""... and so often while its own path has nothing left to do."""
ACCEPTED_STALENESS = 1
"""Local progress from an older version than this is dropped when catching up (docs/paper.md#late-contributions)."""


def run_peer(settings: PeerSettings) -> None:
    """Train one path of a run until Ctrl+C, or until what the settings say. Raises SwarmError."""
    from dipaco_swarm.swarm.libp2p.node import NodeSettings
    from dipaco_swarm.swarm.libp2p.opening import open_swarm

    workbench = workbench_of(settings)  # before anything slow: a wrong device should cost no waiting
    node = NodeSettings(
        listen=settings.listen or DEFAULT_LISTEN,
        reachable=REACHABLE[settings.reachable],
        bandwidth=settings.bandwidth,
    )
    with stopping_on_signals() as stop, open_screen(settings.screen) as screen:
        screen.event(f"joining {settings.address.name}")
        notices = Notices(screen.event, SYSTEM_CLOCK)

        def again(nobody: UnreachableError) -> bool:
            """Whoever has been in the run waits for the others to come back; a newcomer may have a wrong address."""
            if not (settings.home / MANIFEST_FILE).exists():
                return False
            log.debug("%s", nobody)
            notices.failing(
                "door", f"nobody of {settings.address.name} answers just now; knocking every {KNOCK_SECONDS} s"
            )
            stop.wait(KNOCK_SECONDS)
            return True

        def take_part(stop: Stopping) -> bool:
            """Join and train; whether the swarm was lost."""
            with open_swarm(settings.address, settings.home, node, stop, again) as swarm:
                stop.tell(swarm.interrupt)
                notices.recovered("door", f"{settings.address.name} answers again")
                if not swarm.reachable:
                    screen.event(
                        "others cannot dial this machine: they come through the bootstrap node, which relays; "
                        "dipaco-swarm doctor says what would be faster"
                    )
                with SleepDetector(swarm.clock) as detector:
                    Volunteer(settings, swarm, screen, stop, workbench, detector.missed).live()
                return swarm.lost

        until_stopped(take_part, stop, screen.event)
        screen.event("left the swarm; the same command goes on from here")


MANIFEST_FILE = "manifest.json"
KNOCK_SECONDS = 10
DEFAULT_LISTEN = "/ip4/0.0.0.0/tcp/0"
REACHABLE = {"auto": None, "yes": True, "no": False}


class Volunteer:
    """A peer and its surroundings. `live` is its whole life; constructing it does nothing."""

    def __init__(
        self,
        settings: PeerSettings,
        swarm: Swarm,
        screen: Screen,
        stop: Stopping,
        workbench: Workbench,
        missed: LookForSleep = never_asleep,
    ) -> None:
        self._settings = settings
        self._swarm = swarm
        self._clock = swarm.clock
        self._screen = screen
        self._stop = stop
        self._run = run_of(settings.address.name, settings.address.fingerprint)
        self._metrics = Metrics(settings.home / "metrics.jsonl")
        self._show = PeerPresenter(screen, swarm, settings.address.name, self._metrics)
        self._workbench = workbench
        self._bench: Bench | None = None
        """Of the current path."""
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
        self._salvaged: dict[ModuleId, ModuleState] = {}
        """Modules out of a damaged checkpoint."""
        self._notices = Notices(screen.event, swarm.clock)
        self._missed = missed
        self._looked_around = 0.0
        self._company = False
        """Whether others were to be heard when we looked last."""
        self._met_keeper = False
        self._asked_in_vain: dict[ModuleId, float] = {}
        """When nobody sent the state that the group of a module is said to be at."""
        self._given: dict[ModuleId, int] = {}
        """Of our path's modules: the version whose progress others were given last."""
        self._saved_at = self._clock.monotonic()
        self._checkpoint_pause = CHECKPOINT_SECONDS

    def live(self) -> None:
        """Join, and train stage after stage until asked to stop or finished."""
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
        self._swarm.configure_rounds(config.wire.codec, config.limits.norm_clip, config.limits.max_members)
        self._swarm.follow_manifest()
        watch = ManifestWatch(self._swarm, self._settings.address.fingerprint, self._screen)
        with suppress(Stopped):
            while manifest is not None and not self._stop():
                peer = self._enter(manifest)
                try:
                    manifest = self._train(peer, manifest, watch)
                except SwarmError:
                    self._hand_over(peer)  # what this machine cannot go on with, others can
                    raise

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
        self._salvaged = {}
        table = PathTable(stage.table)
        path = self._choice.on_entering(stage, table)
        modules = table.modules_of(path)
        self._keep_manifest()
        self._screen.event(f"stage {stage.index}: path {path} of {table.num_paths}, {names(modules)}")
        bench = self._workbench.prepare(manifest, path, self._fetch, self._screen.event, self._stop)
        self._bench = bench
        saved = self._checkpoint(stage.index, path)
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
                stage.first_step,
            ),
            model=bench.model,
            trainer=bench.trainer,
            batches=iter(()),
            base=base,
            tokens=dict.fromkeys(modules, 0),
            moves=self._choice.moves,
            left_behind={module: state for module, state in self._left.items() if module not in modules},
        )
        self._load(peer, saved, stage, manifest)
        # replicas of a path read the shard in different orders, or they would do the same work
        seed = manifest.config.seed + number_of(self._swarm.peer)
        peer.batches = bench.batches(seed, peer.batches_consumed)
        announce(peer)
        self._snapshots = self._own_snapshots(manifest, peer, bench)
        self._choice.arrived()
        return peer

    def _own_snapshots(self, manifest: Manifest, peer: PathInTraining, bench: Bench) -> OwnSnapshots | None:
        config = manifest.config.early_stopping
        if config is None:
            return None
        loss_of = bench.loss_on_slice(config.max_sequences)
        own = OwnSnapshots(peer, config.every, loss_of, self._settings.home, self._run)
        if own.too_small is not None:
            self._screen.event(own.too_small)
        own.offer_kept()
        return own

    def _keep_manifest(self) -> None:
        """Keep the manifest beside the checkpoints, so that they can be used without the swarm."""
        signed = self._swarm.newest_manifest(timeout=MANIFEST_SECONDS)
        if signed is None:
            return
        try:
            write_whole(self._settings.home / MANIFEST_FILE, signed, durable=True)
        except HomeError as error:
            self._screen.event(f"{error}; training goes on")

    def _checkpoint(self, stage: int, path: PathIndex) -> Checkpoint | None:
        """What we saved of this path; a damaged one is set aside, as the swarm has all of it but the latest steps."""
        file = self._checkpoint_file(stage, path)
        try:
            return checkpoints.load(file, self._run)
        except DamagedError as error:
            log.debug("%s", error)
        self._salvaged = checkpoints.salvage(file, self._run)
        set_aside(file)
        whole = f"{names(tuple(self._salvaged))} of it can be used" if self._salvaged else "starting from the swarm's"
        self._screen.event(f"the checkpoint of path {path} is damaged and was set aside; {whole}")
        return None

    def _load(self, peer: PathInTraining, saved: Checkpoint | None, stage: Stage, manifest: Manifest) -> None:
        """Put the agreed states into the model, and on top of them the local progress that is still of use."""
        dropped = 0
        self._given = checkpoints.given(self._checkpoint_file(stage.index, peer.path))
        for module, state in peer.base.items():
            progress = None
            if saved is not None and self._others_have(module, saved.base[module].version, state.version):
                pass  # it would count twice
            elif saved is not None and state.version - saved.base[module].version <= ACCEPTED_STALENESS:
                progress = saved.local[module] - saved.base[module].params
                peer.tokens[module] = saved.tokens[module]
                if self._given.get(module) == state.version:  # who has it may be about to go on with it
                    peer.given[module] = state.version
            elif saved is not None:
                dropped = max(dropped, saved.tokens[module])
            peer.model.load(module.level, state.params if progress is None else state.params + progress)
            peer.swarm.hold(peer.stage, module, state)
        if saved is not None:
            peer.trainer.load_state(saved.inner)
            peer.batches_consumed = saved.shard_cursor
            residuals = {module: Residual(saved.base[module].version, left) for module, left in saved.residuals.items()}
            peer.swarm.resume_residuals(peer.stage, peer.path, residuals)
            self._screen.event(f"going on from the checkpoint at step {saved.inner.steps_done}")
            lost = steps_after(self._metrics.file, peer.stage, peer.path, saved.inner.steps_done)
            if lost > 0:
                self._screen.event(f"this peer was ended before it could save again: about {lost} steps are lost")
            if dropped:
                self._screen.event(f"the group has gone on too far: {dropped:,} tokens trained before that are dropped")
            return
        versions = min(state.version for state in peer.base.values())
        steps = stage.first_step + versions * manifest.config.rounds.inner_steps
        peer.trainer.load_state(InnerState(steps, self._moments_before(stage, peer.path)))

    def _others_have(self, module: ModuleId, version: int, newest: int) -> bool:
        """Whether what we had trained on a version, and on any before it, is in the newest one already."""
        return version < newest and version <= self._given.get(module, -1)

    def _moments_before(self, stage: Stage, path: PathIndex) -> Mapping[str, Tensor]:
        """Of the inner optimizer, from the stage before, where the path goes on and was ours; else none."""
        before = self._checkpoint(stage.index - 1, path) if stage.momenta else None
        return {} if before is None else before.inner.tensors

    def _state_of(self, stage: Stage, module: ModuleId, saved: Checkpoint | None) -> ModuleState:
        """The state that the group is at: from the checkpoint, the seed, or whoever holds it."""
        ours = saved.base[module] if saved is not None else state_at_start(stage, module, self._fetch)
        for own in (self._left, self._salvaged):
            if module in own and Claim.of(own[module]).beats(Claim.of(ours)):
                ours = own[module]
        unsent: dict[Claim, float] = {}
        while not self._stop():
            self._swarm.look_up(stage.index, [module], timeout=LOOK_UP_SECONDS)
            members = self._swarm.members(stage.index, module)
            others = [Claim.of(said) for said in members if said.peer != self._swarm.peer]
            now = self._clock.monotonic()
            believed = [claim for claim in others if now - unsent.get(claim, now) < UNSENT_SECONDS]
            better = better_claim(Claim.of(ours), believed)
            if better is None:
                return ours
            state = self._swarm.fetch_state(
                stage.index, module, better.digest, timeout=STATE_SECONDS, parameters=len(ours.params)
            )
            if state is not None:
                self._notices.recovered(f"state of {module}")
                self._screen.event(f"fetched {module} at version {state.version}")
                return state
            unsent.setdefault(better, now)
            line = f"nobody sends {module} at version {better.version} just now; asking again every 2 s"
            self._notices.failing(f"state of {module}", line)
            self._stop.wait(2)
        raise Stopped

    def _fetch(self, digest: str) -> bytes:
        """A blob; keeps asking while nobody has it."""
        while True:
            try:
                blob = self._swarm.fetch_blob(digest, timeout=BLOB_SECONDS)
                self._notices.recovered("files", "the run's files come again")
                return blob
            except UnreachableError:
                if self._stop():
                    raise Stopped from None
                self._notices.failing("files", "nobody sends the run's files just now; asking again every 5 s")
                if self._stop.wait(5):
                    raise Stopped from None

    # ------------------------------------------------------------------------------------------------------ training

    def _train(self, peer: PathInTraining, manifest: Manifest, watch: ManifestWatch) -> Manifest | None:
        """Rounds of one stage. Returns the manifest of the next stage, or None to leave."""
        begun = any(state.version > 0 for state in peer.base.values())
        said, looked_at = "", 0.0
        self._asked_in_vain = {}
        look_at = self._rounds + (STAY_ROUNDS if self._left else 0)  # who has just moved stays for a while
        while True:
            newest = watch.newest or manifest
            if newest.stage.index == peer.stage:  # the operator may have said when it ends
                peer.rules = replace(peer.rules, last_version=newest.stage.rounds)
            if not self._stop():
                self._look_at_snapshots()
            if not newest.finished:
                self._look_around(peer)
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
                catch_up=self._catch_ups(peer),
                scores_wanted=done and newest.scoring not in (None, self._scored),
            )
            match next_action(now):
                case Leave():
                    if not self._save(peer):
                        self._screen.event("what was trained since the last checkpoint is not saved")
                    if not self._swarm.lost:
                        self._hand_over(peer)
                    self._swarm.announce([])
                    return None
                case MoveOn():
                    self._save(peer)
                    self._let_go_of(peer)
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
                    if done and not newest.finished and self._clock.monotonic() - looked_at > IDLE_LOOK_SECONDS:
                        looked_at = self._clock.monotonic()
                        if self._is_needed_elsewhere(peer, newest):
                            return newest
                    self._stop.wait(0.5)
                case Train():
                    peer.catching_up = set()
                    if self._rounds >= look_at:
                        if self._is_needed_elsewhere(peer, newest):
                            return newest
                        look_at = self._rounds + STAY_ROUNDS
                    begun = True
                    report = self._round(peer, manifest, watch)
                    self._note(report, peer)
                    self._show.now(peer, manifest, "training")

    def _round(self, peer: PathInTraining, manifest: Manifest, watch: ManifestWatch) -> RoundReport:
        """An outer round; between its steps we save when it is time, and look up if we have been asleep."""
        watched = self._show.watching(peer, manifest)
        behind = False

        def step(report: StepReport) -> None:
            nonlocal behind
            watched.step(report)
            self._look_around(peer)
            if (missed := self._missed()) is not None:
                behind = self._woke_up_behind(missed, peer, watch)
            if self._clock.monotonic() - self._saved_at > self._checkpoint_pause:
                self._save(peer)

        if (missed := self._missed()) is not None:
            behind = self._woke_up_behind(missed, peer, watch)

        before = self._given

        def due(modules: Sequence[ModuleId]) -> None:
            self._note_given(peer, before | {module: peer.base[module].version for module in modules})
            watched.due(modules)

        report = run_outer_round(peer, stop=lambda: behind or self._stop(), on_step=step, on_due=due)
        ours_alone = {
            m for m, outcome in report.outcomes.items() if isinstance(outcome, NotAgreed) and not outcome.given
        }
        if ours_alone:
            self._note_given(peer, before | {m: v for m, v in self._given.items() if m not in ours_alone})
        return report

    def _note_given(self, peer: PathInTraining, versions: Mapping[ModuleId, int]) -> None:
        """Write down whose progress the others are about to have; after a crash it must not count once more."""
        self._given = dict(versions)
        try:
            checkpoints.note_given(self._checkpoint_file(peer.stage, peer.path), versions)
        except HomeError as error:
            log.debug("%s", error)  # the checkpoint says so to the person

    def _woke_up_behind(self, missed: Missed, peer: PathInTraining, watch: ManifestWatch) -> bool:
        """After time that passed without us: find the others again. Whether they have gone on meanwhile."""
        for line in missed.lines:
            self._screen.event(line)

        def has_moved_on() -> bool:
            newest = watch.newest
            return newest is not None and newest.stage.index > peer.stage

        deadline = self._clock.monotonic() + WAKING_SECONDS
        while True:
            self._swarm.look_up(peer.stage, peer.modules, timeout=WAKING_SECONDS)
            alone = not self._others(peer)
            if (
                not (alone and self._company)
                or has_moved_on()
                or self._clock.monotonic() > deadline
                or self._stop.wait(1)
            ):
                return bool(catch_ups(peer)) or has_moved_on()

    def _others(self, peer: PathInTraining) -> list[Announcement]:
        """What others say about our modules."""
        said = [said for module in peer.modules for said in self._swarm.members(peer.stage, module)]
        return [each for each in said if each.peer != self._swarm.peer]

    def _look_around(self, peer: PathInTraining) -> None:
        """Whether the others are still to be heard; says when the bootstrap node or all of them are not."""
        if self._clock.boottime() - self._looked_around < LOOK_AROUND_SECONDS:
            return
        self._looked_around = self._clock.boottime()
        others = self._others(peer)
        self._company = bool(others)
        if any(is_keeper(said) for said in others):
            self._met_keeper = True
            self._notices.recovered("bootstrap", "the bootstrap node answers again")
        elif self._met_keeper and others:
            line = "the bootstrap node is not to be heard; training goes on without it"
            self._notices.failing("bootstrap", line, after=UNHEARD_SECONDS)
        elif self._met_keeper:
            line = "nobody else is to be heard; training goes on alone, and is shared when they are back"
            self._notices.failing("bootstrap", line, after=UNHEARD_SECONDS)

    def _look_at_snapshots(self) -> None:
        if self._snapshots is None:
            return
        try:
            best = self._snapshots.look()
        except HomeError as error:
            self._notices.failing("snapshot", f"{error}; training goes on")
            return
        self._notices.recovered("snapshot")
        if best is not None:
            self._screen.event(best)

    def _is_needed_elsewhere(self, peer: PathInTraining, manifest: Manifest) -> bool:
        """Whether to move to another path now, with --path auto; everything is kept and saved then."""
        path = self._choice.after_a_stay(manifest.stage, peer.table, peer.path, peer.rules.last_version)
        if path == peer.path:
            return False
        if not self._save(peer):
            self._choice.stay(peer.path)  # what was trained here would be gone
            return False
        self._screen.event(f"moving from path {peer.path} to path {path}, where help is needed more")
        self._left = dict(peer.base)
        for module, state in peer.left_behind.items():
            if other_holders(self._swarm, peer.stage, module, state.version):
                self._swarm.release(peer.stage, module)
            else:
                self._left[module] = state
        self._swarm.announce(holdings(peer.swarm.peer, peer.stage, self._left))  # nobody waits for us there any more
        return True

    def _score(self, peer: PathInTraining, manifest: Manifest) -> None:
        """Score the operator's routing sample under our path, and say where the scores are."""
        assert manifest.scoring is not None
        assert self._bench is not None, "scores are wanted of a path that is being trained"
        self._scored = manifest.scoring
        sample = self._fetch(manifest.scoring)
        for module in peer.modules:
            peer.model.load(module.level, peer.base[module].params)
        scores = self._bench.scores(sample)
        try:
            digest = self._swarm.put_blob(scores)
        except HomeError as error:
            self._notices.failing("scores", f"{error}; trying again in {ASK_AGAIN_SECONDS:.0f} s")
            self._scored = None
            self._stop.wait(ASK_AGAIN_SECONDS)
            return
        statement = ScoreStatement(path=peer.path, scores=digest)
        self._swarm.publish(topic_of(manifest), statement.to_bytes())
        self._screen.event(
            f"scored {len(scores) // BYTES_OF_A_SCORE:,} pieces of the routing sample under path {peer.path}"
        )

    def _rounds_are_over(self) -> bool:
        return self._settings.rounds is not None and self._rounds >= self._settings.rounds

    def _catch_ups(self, peer: PathInTraining) -> tuple[CatchUp, ...]:
        """Modules to catch up with, without those that nobody would send a moment ago: training goes on meanwhile."""
        now = self._clock.monotonic()
        vain = {module for module, asked in self._asked_in_vain.items() if now - asked < ASK_AGAIN_SECONDS}
        return tuple(task for task in catch_ups(peer) if task.module not in vain)

    def _catch_up(self, peer: PathInTraining, task: CatchUp) -> None:
        module, ours = task.module, peer.base[task.module].version
        if not catch_up(peer, task):
            self._asked_in_vain[module] = self._clock.monotonic()
            line = f"nobody sends {module} at version {task.to.version} just now; training goes on"
            self._notices.failing(f"state of {module}", line)
            return
        self._notices.recovered(f"state of {module}")
        self._screen.event(f"{module}: caught up from version {ours} to {task.to.version}")
        if task.to.version - ours > ACCEPTED_STALENESS and peer.tokens[module]:
            dropped = peer.tokens[module]
            adopt(peer, module, peer.base[module])
            self._screen.event(f"{module}: {dropped:,} tokens trained on version {ours} are too old to count")

    def _note(self, report: RoundReport, peer: PathInTraining) -> None:
        """Tell the person what came out of a round."""
        if not report.outcomes:
            return
        agreed = []
        noted = {}
        for module, outcome in report.outcomes.items():
            if isinstance(outcome, Agreed):
                self._notices.recovered(f"round of {module}")
                digest = peer.base[module].digest
                noted[str(module)] = {
                    "version": report.versions[module],
                    "digest": digest,
                    "peers": len(outcome.contributors),
                    "tokens": report.contributed[module],
                }
                self._made[module.level] += 1
                others = len(outcome.contributors) - 1
                agreed.append(f"{module} v{report.versions[module]} with {others} other{'' if others == 1 else 's'}")
            elif isinstance(outcome, NotAgreed) and not self._stop():
                self._notices.failing(f"round of {module}", f"{module}: {outcome.reason}; nothing lost")
        self._rounds = self._show.rounds = max(self._made.values(), default=0)
        self._metrics.round(peer.stage, peer.path, peer.trainer.steps_done, self._rounds, noted)
        if agreed:
            self._show.last_agreed = (
                f"{', '.join(agreed)}, at {time.strftime('%H:%M:%S', time.localtime(self._clock.wall()))}"
            )
            loss = "" if math.isnan(report.loss) else f"loss {report.loss:.3f}, "
            self._screen.event(f"round {self._rounds}: {loss}{', '.join(agreed)}")

    # ------------------------------------------------------------------------------------------------------- keeping

    def _checkpoint_file(self, stage: int, path: PathIndex) -> Path:
        return self._settings.home / "checkpoints" / f"stage-{stage}-path-{path}.safetensors"

    def _save(self, peer: PathInTraining) -> bool:
        """Write the checkpoint; False when that is not possible now: training goes on, and the old one is intact."""
        started = self._clock.monotonic()
        self._mend(peer)
        file = self._checkpoint_file(peer.stage, peer.path)
        try:
            checkpoints.save(
                file,
                Checkpoint(
                    run=self._run,
                    stage=peer.stage,
                    path=peer.path,
                    base=peer.base,
                    local={module: peer.model.vector(module.level) for module in peer.modules},
                    tokens=peer.tokens,
                    inner=peer.trainer.state(),
                    shard_cursor=peer.batches_consumed,
                    residuals=_unsent(peer),
                ),
            )
        except HomeError as error:
            self._notices.failing("checkpoint", f"{error}; training goes on")
            return False
        finally:
            self._saved_at = self._clock.monotonic()
            seconds, size = self._saved_at - started, file.stat().st_size if file.exists() else 0
            self._checkpoint_pause = max(CHECKPOINT_SECONDS, seconds / SAVING_SHARE, size / CHECKPOINT_BYTES_PER_SECOND)
        self._notices.recovered("checkpoint", "the checkpoint can be saved again")
        return True

    def _let_go_of(self, peer: PathInTraining) -> None:
        """A stage is over: nobody asks for its modules, and its checkpoints are the last that the next one looks at."""
        self._left = {}
        for module in {*peer.left_behind, *peer.modules}:
            self._swarm.release(peer.stage, module)
        folder = self._settings.home / "checkpoints"
        for stage in range(peer.stage):
            for ending in ("safetensors", "given.json"):
                for file in folder.glob(f"stage-{stage}-path-*.{ending}"):
                    with suppress(OSError):  # a file that cannot be removed is no reason to stop
                        file.unlink()

    def _hand_over(self, peer: PathInTraining) -> None:
        states = {**peer.left_behind, **peer.base}
        hand_over(self._swarm, peer.stage, states, self._stop, self._screen.event)

    def _mend(self, peer: PathInTraining) -> None:
        """Replace agreed states that have changed in this machine's memory, before they are saved or built upon."""
        for module, state in list(peer.base.items()):
            now = ModuleState(state.version, state.params, state.momentum, state.work)
            if now.digest == state.digest:
                continue
            whole = self._swarm.fetch_state(peer.stage, module, state.digest, timeout=MENDING_SECONDS)
            if whole is None and (saved := self._checkpoint(peer.stage, peer.path)) is not None:
                whole = saved.base[module] if saved.base[module].digest == state.digest else None
            adopt(peer, module, whole or now)
            found = "it was fetched again" if whole is not None else "nobody has another; going on with it"
            self._screen.event(f"{module} was damaged in this machine's memory; {found}. Is the memory in order?")


def _group(config: RunConfig, stage: Stage, table: PathTable, module: ModuleId) -> ModuleGroup:
    weights = {path: stage.path_weights[path] for path in table.paths_through(module)}
    return ModuleGroup(stage.index, module, weights, config.outer.averaging, config.round_tokens)


def _unsent(peer: PathInTraining) -> dict[ModuleId, Tensor]:
    """Error feedback of the states that we have; what belongs to another version counts no more."""
    residuals = peer.swarm.residuals(peer.stage, peer.path)
    return {module: left.vector for module, left in residuals.items() if left.version == peer.base[module].version}


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
