"""The bootstrap node: publishes the run, answers the first call of newcomers, keeps every module, opens the stages.

It trains nothing and is in nobody's way: peers go on while it is down. After a restart it goes on with its
state: the operator's key, the newest manifest and the kept modules are files in its home folder.
"""

import math
from functools import partial

from dipaco_swarm.algorithm.stages import soonest_end, table_of
from dipaco_swarm.dashboard.screens import Screen
from dipaco_swarm.dashboard.status import status_of
from dipaco_swarm.dashboard.views import BootstrapView
from dipaco_swarm.errors import ManifestError, UnreachableError
from dipaco_swarm.events.operator import (
    NodeResumed,
    NotAdvancing,
    OlderCopy,
    Serving,
    StageEnds,
    StageOpened,
)
from dipaco_swarm.machine.beside import BESIDE_THREADS, Beside
from dipaco_swarm.machine.sleep import LookForSleep, never_asleep
from dipaco_swarm.machine.stopping import Stopping
from dipaco_swarm.operator.appointing import full_address
from dipaco_swarm.operator.convictions import Convictions
from dipaco_swarm.operator.going_back import GoingBack
from dipaco_swarm.operator.home import OperatorHome
from dipaco_swarm.operator.keeping import Keeping
from dipaco_swarm.operator.obeying import Obeying
from dipaco_swarm.operator.plateau import Plateau
from dipaco_swarm.operator.preparing import Preparing
from dipaco_swarm.operator.publishing import Publisher
from dipaco_swarm.operator.snapshots import SnapshotKeeper, keeper_of
from dipaco_swarm.operator.stages import Stages
from dipaco_swarm.operator.surroundings import Disk, Surroundings
from dipaco_swarm.operator.unbelieved import Unbelieved
from dipaco_swarm.operator.workshop import Workshop
from dipaco_swarm.run.config import RunConfig
from dipaco_swarm.run.manifest import Manifest, Stage
from dipaco_swarm.run.orders import Extend
from dipaco_swarm.run.signature import Signer, open_manifest
from dipaco_swarm.swarm.interface import Swarm
from dipaco_swarm.training.early import run_of

TICK_SECONDS = 1.0


class Operator:
    """What the bootstrap node does, on any swarm. `run` is all of it."""

    def __init__(
        self,
        config: RunConfig,
        signer: Signer,
        swarm: Swarm,
        home: OperatorHome,
        screen: Screen,
        stop: Stopping,
        address: str,
        workshop: Workshop,
        missed: LookForSleep = never_asleep,
        beside: Beside = BESIDE_THREADS,
    ) -> None:
        """`address`: of the run, as people are given it. `missed`: what happened while this program stood still.
        `beside`: how long work is done, so that this program goes on."""
        self._around = Surroundings(config, swarm, home, workshop, screen, stop)
        self._address = address
        self._missed = missed
        self._disk = Disk(self._around)
        self._beside = beside
        self._publisher = Publisher(self._around, signer)
        self._keeping = Keeping(self._around, self._disk)
        self._unbelieved = Unbelieved(self._around)
        self._stages = Stages(self._around)
        self._preparing = Preparing(self._around, self._stages, self._keeping, beside)
        self._going_back = GoingBack(self._around, self._stages, self._keeping, beside)
        self._obeying = Obeying(self._around, self._publisher, self._stages, self._going_back, address)
        self._convictions = Convictions(self._around)
        self._snapshots: SnapshotKeeper | None = None
        self._plateau = Plateau()
        self._resumed_at = -math.inf
        """When this node went on with what its folder had."""

    def run(self, *, until_finished: bool = False, taken_over: Manifest | None = None) -> bool:
        """Begin the run or go on with it; keep modules and open stages until asked to stop.

        `taken_over`: what to lead with, where another node led before. Returns whether another node leads now.
        """
        around, keeping = self._around, self._keeping
        around.home.keep_address(self._address)  # peers may start, and wait for the manifest, while it is being made
        manifest = taken_over or self._begin_or_resume()
        if taken_over is not None:
            self._resumed_at = around.swarm.clock.boottime()
        elif self._publisher.is_superseded(manifest):
            return True
        keeping.take_up(manifest)
        self._obeying.take_up(manifest)
        self._publisher.publish(manifest)
        around.home.keep_address(full_address(self._address, manifest))
        around.screen.event(Serving(full_address(self._address, manifest)))
        while not around.stop():
            self._notice_sleep()
            if self._publisher.is_superseded(manifest):
                return True
            manifest = self._where_the_peers_are(manifest)
            keeping.catch_up(manifest.stage)
            self._unbelieved.look(manifest.stage, keeping.states)
            self._convictions.look(manifest)
            self._show(manifest)
            over = manifest.finished and until_finished and self._has_been_left(manifest.stage)
            manifest = self._disk.write(partial(self._goes_on, manifest)) or manifest
            self._disk.write(partial(self._publisher.renew, manifest))
            if over:
                break
            around.stop.wait(TICK_SECONDS)
        self._disk.write(partial(keeping.write, manifest.stage), now=True)
        return False

    def _goes_on(self, manifest: Manifest) -> Manifest:
        """What a tick writes down, and the manifest from now on. Raises HomeError when there is no room for it."""
        self._keeping.write(manifest.stage)
        self._keep_snapshots(manifest)
        self._going_back.look(manifest, self._snapshots)
        obeyed = self._obeying.renewed(manifest, self._keeping.states)
        if obeyed.config is not manifest.config or obeyed.stage.restored != manifest.stage.restored:
            self._preparing.clear()
        return self._successor(obeyed)

    def _notice_sleep(self) -> None:
        missed = self._missed()
        for event in missed.events if missed is not None else ():
            self._around.screen.event(event)
            self._publisher.expire()  # what was said before we slept has expired

    def _keep_snapshots(self, manifest: Manifest) -> None:
        """With early stopping, keep the best snapshot of each path for serving."""
        around, config = self._around, self._around.config
        if config.early_stopping is None:
            return
        if self._snapshots is None:
            judge = around.workshop.judge(manifest, around.fetch)
            run = run_of(config.name, self._publisher.fingerprint)
            self._snapshots = keeper_of(manifest, around.swarm, around.home.folder, run, judge, self._beside)
        for best in self._snapshots.collect(self._keeping.states, self._keeping.is_done(manifest.stage)):
            around.screen.event(best)

    def _show(self, manifest: Manifest) -> None:
        activity = "the run is finished; serving it" if manifest.finished else "keeping modules"
        if self._preparing.activity is not None:
            activity = self._preparing.activity
        swarm = self._around.swarm
        traffic, status, rounds = swarm.traffic(), status_of(swarm, manifest), manifest.stage.rounds
        progress = None if rounds is None else min(1.0, status.version_min / rounds)
        address = full_address(self._address, manifest)
        view = BootstrapView(address, activity, status, progress, traffic.sent, traffic.received)
        self._around.screen.show(view)

    # ------------------------------------------------------------------------------------------------------- beginning

    def _begin_or_resume(self) -> Manifest:
        around = self._around
        manifest = around.home.manifest(self._publisher.fingerprint)
        if manifest is None:
            return self._stages.first()
        if manifest.config != around.config:
            if not any(
                isinstance(order, Extend) and order.config == around.config for _, order in around.home.orders()
            ):
                raise ManifestError(
                    f"the run {manifest.config.name} in this home folder goes by another run file; have it go on with "
                    "this one (`dipaco-bootstrap extend` says whether it can), give the one it had, or another --home "
                    "to begin a new run"
                )
            around.config = manifest.config  # until the first tick
            around.workshop.follow(manifest.config)
        self._resumed_at = around.swarm.clock.boottime()
        around.screen.event(NodeResumed(manifest.stage.index, manifest.revision))
        return manifest

    def _where_the_peers_are(self, manifest: Manifest) -> Manifest:
        """The peers' manifest, if it is newer than ours: this folder was restored from an older copy.

        To open a stage a second time would tear the run apart. Raises ManifestError when nobody sends its files.
        """
        swarm, config = self._around.swarm, self._around.config
        if self._since_resuming() > 2 * self._greeting:
            return manifest
        for index in range(manifest.stage.index + 1, len(config.stages)):
            modules = table_of(config, index).modules
            swarm.look_up(index, modules, timeout=swarm.timing.look_up)
            if not any(said.trains for module in modules for said in swarm.members(index, module)):
                continue
            signed = swarm.newest_manifest(timeout=swarm.timing.look_up)
            newest = None if signed is None else open_manifest(signed, self._publisher.fingerprint)
            if newest is not None and newest.revision > manifest.revision:
                self._go_on_from(newest)
                return newest
        return manifest

    def _go_on_from(self, newest: Manifest) -> None:
        """Take up the peers' stage."""
        stage = newest.stage.index
        self._around.screen.event(OlderCopy(stage))
        try:
            self._keeping.take_up(newest)
        except UnreachableError as error:
            raise ManifestError(
                f"this folder is an older copy of the run, whose peers are in stage {stage}, and they "
                f"do not have all of its files ({error}); restore a newer copy"
            ) from None
        self._publisher.expire()

    def _knows_the_run(self, stage: Stage) -> bool:
        """True once any live peer of a later stage would have contacted us."""
        return self._was_called_on() or bool(self._keeping.trained(stage))

    def _knows_its_end(self, stage: Stage) -> bool:
        """As above, or a trainer is live and we hold a trained version of every module."""
        trained = all(self._keeping.versions(stage).values())
        return self._was_called_on() or (trained and bool(self._keeping.trained(stage)))

    def _has_been_left(self, stage: Stage) -> bool:
        """Nobody trains any more; whoever waited for this node to come back has had the time to hear the end."""
        if self._since_resuming() <= 2 * self._greeting or self._keeping.trained(stage):
            return False
        self._keeping.look_for_trainers(stage)  # of who has just moved to another path we have heard that it left one
        return not self._keeping.trained(stage)

    def _was_called_on(self) -> bool:
        """True after one full greeting interval since the restart."""
        return self._since_resuming() > self._greeting

    @property
    def _greeting(self) -> float:
        return self._around.swarm.timing.greeting

    def _since_resuming(self) -> float:
        """Seconds; infinite in a run that this node has begun."""
        return self._around.swarm.clock.boottime() - self._resumed_at

    # -------------------------------------------------------------------------------------------------------- stages

    def _successor(self, manifest: Manifest) -> Manifest:
        """The manifest that follows, to be published at once; the same one when nothing has changed."""
        successor = None
        if not manifest.finished and self._keeping.is_done(manifest.stage):
            successor = self._after(manifest) if self._knows_the_run(manifest.stage) else None
        elif not manifest.finished and self._knows_its_end(manifest.stage):
            ends = self._around.home.was_told_to_advance() or self._plateau.is_reached(
                manifest, self._keeping.versions(manifest.stage).values(), self._snapshots
            )
            successor = self._ending_soon(manifest) if ends else None
        if successor is None or successor is manifest:
            return manifest
        self._publisher.expire()
        return successor

    def _after(self, manifest: Manifest) -> Manifest:
        """The manifest after a stage is done, as far as that is prepared."""
        successor = self._preparing.renewed(manifest)
        if successor.stage.index != manifest.stage.index:
            self._snapshots = None
            self._keeping.take_up(successor)
            self._around.screen.event(StageOpened(successor.stage.index, len(successor.stage.table)))
        return successor

    def _ending_soon(self, manifest: Manifest) -> Manifest:
        """The manifest when the operator has said that the stage is to end: with the rounds that are under way, where
        every module is trained.

        Where peers train on in a round, the next one has begun before its version is kept here; what was given to a
        round that is left counts nowhere.
        """
        stage = manifest.stage
        under_way = 2 if manifest.config.at(stage.index).rounds.overlaps else 1
        self._keeping.look_for_trainers(stage)  # a module not heard of for a while would end the stage early
        rounds = soonest_end(self._keeping.versions(stage), self._keeping.trained(stage), under_way)
        if not rounds:
            self._around.screen.event(NotAdvancing())
            return manifest
        ending = self._stages.ending_at(manifest, rounds)
        self._around.screen.event(StageEnds(stage.index, ending.stage.rounds or rounds))
        return ending
