"""The life of a peer: join, take a path, rounds until the stage changes, move on, leave.

What to do next is decided in `algorithm/plan.py`; a round is `outer_round.run_outer_round`. This file looks at the
situation, asks for the decision, and acts on it.
"""

import math
from collections import Counter
from collections.abc import Sequence
from contextlib import closing, suppress
from functools import partial

from dipaco_swarm.algorithm.paths import ModuleId
from dipaco_swarm.algorithm.plan import CatchUp, Leave, MoveOn, Pause, Situation, Train, Wait, next_action
from dipaco_swarm.algorithm.stages import most_paths
from dipaco_swarm.algorithm.state import ModuleState
from dipaco_swarm.dashboard.screens import Screen
from dipaco_swarm.errors import HomeError, NotAdmittedError, SwarmError, UsageError
from dipaco_swarm.events.volunteer import CannotWrite, Joined, LeftAlone, Moving, NotSaved, Waiting
from dipaco_swarm.machine.beside import BESIDE_THREADS, Beside
from dipaco_swarm.machine.memory import give_back_freed
from dipaco_swarm.machine.notices import Notices
from dipaco_swarm.machine.sleep import LookForSleep, never_asleep
from dipaco_swarm.machine.stopping import Stopped, Stopping
from dipaco_swarm.machine.watching import ALWAYS_AT_WORK, Manners
from dipaco_swarm.outer_round import RoundReport, catch_ups, holdings, run_outer_round
from dipaco_swarm.path_in_training import PathInTraining
from dipaco_swarm.peer.admittance import Admittance
from dipaco_swarm.peer.answering import AnswerDesk
from dipaco_swarm.peer.attendance import Attendance
from dipaco_swarm.peer.book import TokenBook
from dipaco_swarm.peer.catching_up import CatchingUp
from dipaco_swarm.peer.company import Company, peers_in_sight
from dipaco_swarm.peer.entering import Entering, Post
from dipaco_swarm.peer.following import Following, end_what_is_over
from dipaco_swarm.peer.handover import hand_over, nodes_of, other_holders
from dipaco_swarm.peer.keeping import Keeping
from dipaco_swarm.peer.life import Life
from dipaco_swarm.peer.manifest_watch import first_manifest
from dipaco_swarm.peer.moving import StageMove
from dipaco_swarm.peer.next_stage import NextStage
from dipaco_swarm.peer.path_choice import PathChoice
from dipaco_swarm.peer.pausing import Pausing
from dipaco_swarm.peer.presenter import PeerPresenter
from dipaco_swarm.peer.scoring import Scoring
from dipaco_swarm.peer.surroundings import Surroundings
from dipaco_swarm.peer.trying import Trying
from dipaco_swarm.peer.usage import UsageMeter
from dipaco_swarm.peer.workbench import Workbench
from dipaco_swarm.run.config import RunConfig
from dipaco_swarm.run.manifest import Manifest
from dipaco_swarm.settings import PeerSettings
from dipaco_swarm.swarm.addresses import name_in
from dipaco_swarm.swarm.interface import Agreed, Swarm
from dipaco_swarm.training.early import run_of
from dipaco_swarm.training.inner import StepReport

STAY_ROUNDS = 3
"""A peer with --path auto looks before its first round of a stage, and then so often, where it is needed."""
IDLE_LOOK_SECONDS = 5.0
"""... and so often while its own path has nothing left to do."""
WAIT_SECONDS = 0.5


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
        attendance: Attendance | None = None,
        usage: UsageMeter | None = None,
        desk: AnswerDesk | None = None,
        beside: Beside = BESIDE_THREADS,
        manners: Manners = ALWAYS_AT_WORK,
    ) -> None:
        """`missed`: what happened while this program stood still. `attendance`, `usage`, `desk`: of before the network
        was lost. `beside`: how work is done beside training. `manners`: whether this machine is for us just now."""
        run = run_of(settings.address.name, settings.address.fingerprint)
        notices, book = Notices(screen.event, swarm.clock), TokenBook(screen, settings.home)
        self._around = Surroundings(settings, swarm, screen, stop, workbench, notices, book, run, desk, manners)
        self._missed = missed
        self.attendance = attendance or Attendance(screen.event)
        usage = usage or UsageMeter(swarm.clock)
        usage.joined(swarm.traffic)
        self._show = PeerPresenter(screen, swarm, settings.address.name, notices, usage, Life(settings.home))
        self._choice = PathChoice(swarm, settings.path, settings.home, [*map(name_in, settings.address.bootstraps)])
        self._keeping = Keeping(self._around)
        self._next_stage = NextStage(self._around, self._choice, beside)
        self._moving = StageMove(self._around, self._keeping)
        self._entering = Entering(self._around, self._keeping, self._choice, self._next_stage, self._moving, beside)
        self._company = Company(self._around)
        self._catching_up = CatchingUp(self._around, self.attendance)
        self._scoring = Scoring(self._around, beside)
        self._admittance = Admittance(self._around)
        self._following = Following(self._around)
        self._trying = Trying(self._around)
        self._pausing = Pausing(self._around, self._keeping, self._scoring, self._catching_up, self._show)
        self._made: Counter[int] = Counter()
        """Outer steps per level since we were started: modules have their own clocks."""
        self._left: dict[ModuleId, ModuleState] = {}
        """Modules of the path that we moved away from within this stage."""
        self._look_at = 0
        """The round before which we look where we are needed."""
        self._looked_at = -math.inf
        """When we looked last, with nothing to do."""

    @property
    def _rounds(self) -> int:
        """Rounds that we have made since we were started."""
        return max(self._made.values(), default=0)

    def live(self) -> None:
        """Join, and train stage after stage until asked to stop or finished. Raises SwarmError."""
        around = self._around
        manifest = first_manifest(around)
        if manifest is None:
            return
        config = manifest.config
        around.screen.event(Joined(str(around.swarm.peer)))
        _check(around.settings, config)
        around.swarm.follow_manifest()
        with suppress(Stopped), closing(around.workbench):
            manifest = self._admittance.enter(manifest)
            while manifest is not None and not around.stop():
                self._pausing.before_a_post()
                self._following.configure_rounds(manifest.rules)
                post = self._entering.enter(manifest, self._left)
                try:
                    manifest = self._train(post)
                except SwarmError as error:
                    _break_off(around, self._keeping, post, error)
                    raise

    # ------------------------------------------------------------------------------------------------- decide, and act

    def _train(self, post: Post) -> Manifest | None:
        """Rounds of one stage. Returns the manifest of the next post, or None to leave."""
        peer = post.peer
        begun = post.was_ready or any(progress.version > 0 for progress in peer.progress.values())
        self._looked_at = -math.inf
        self._look_at = self._rounds + (STAY_ROUNDS if self._left else 0)  # who has just moved stays for a while
        while True:
            newest = self._admittance.newest(post.manifest)
            post = self._following.follow(post, newest)
            if not (paused := self._pausing.look(peer)):
                _look_at_snapshots(self._around, post)
                self._look_beside(post, newest)
            if not newest.finished:
                self._company.look_around(peer, post.manifest)
            self._catching_up.take_what_came(peer)
            match next_action(now := self._situation(post, newest, begun or paused)):
                case Pause():
                    self._pausing.rest(peer, newest)
                case Leave():
                    self._catching_up.let_go(peer)
                    self._end_rounds(post)
                    if not (newest.finished or self._around.swarm.lost):
                        self.attendance.note_leaving(peer)
                    self._leave(peer, newest)
                    return None
                case MoveOn():
                    self._catching_up.let_go(peer)
                    peer.leave_rounds()
                    self._end_rounds(post)
                    self._moving.leave(peer)
                    self._left = {}
                    return newest
                case CatchUp():
                    self._catching_up.begin(peer, now.catch_up)
                case Wait() if peer.in_flight:
                    self._end_rounds(post)
                case Wait() as wait:
                    if self._wait(post, newest, wait):
                        return newest
                case Train():
                    if self._rounds >= self._look_at and not (peer.in_flight or peer.fetching or paused):
                        if self._is_needed_elsewhere(peer, newest):
                            return newest
                        self._look_at = self._rounds + STAY_ROUNDS
                    begun = True
                    self._round(post)

    def _situation(self, post: Post, newest: Manifest, begun: bool) -> Situation:
        settings, peer = self._around.settings, post.peer
        is_away = self._pausing.is_away(peer, newest)
        return Situation(
            stopping=self._around.stop() or self._rounds >= (settings.rounds or math.inf),
            paused=is_away,
            newer_stage=newest.stage.index > peer.stage,
            run_finished=newest.finished or self._has_been_left(peer, newest),
            leaves_when_finished=settings.until_finished,
            stage_done=peer.is_done,
            begun=begun,
            peers=1 if begun else peers_in_sight(peer),
            peers_needed=post.manifest.config.min_peers,
            catch_up=() if is_away else catch_ups(peer),  # nobody is asked then
        )

    def _has_been_left(self, peer: PathInTraining, newest: Manifest) -> bool:
        """Whether we wait for the end of a run that nobody is left to tell us of."""
        if not (self._around.settings.until_finished and self._company.has_been_left(peer, newest)):
            return False
        self._around.screen.event(LeftAlone(self._company.alone_for))
        return True

    def _leave(self, peer: PathInTraining, newest: Manifest) -> None:
        swarm = self._around.swarm
        if not self._keeping.save(peer):
            self._around.screen.event(NotSaved())
        _hand_over(self._around, peer, newest)
        swarm.announce([])

    def _look_beside(self, post: Post, newest: Manifest) -> None:
        """What is done beside training: scores for the operator, and getting ready for the stage that comes."""
        if not self._around.stop():
            self._scoring.look(post.peer, post.bench, newest)
            self._next_stage.look(newest)

    def _wait(self, post: Post, newest: Manifest, wait: Wait) -> bool:
        """Pause; whether we are needed on another path."""
        around, peer = self._around, post.peer
        self._show.waiting(peer, post.manifest, Waiting(wait.reason, wait.peers))
        idle = peer.is_done and not newest.finished
        if idle and around.clock.monotonic() - self._looked_at > IDLE_LOOK_SECONDS:
            self._looked_at = around.clock.monotonic()
            if self._is_needed_elsewhere(peer, newest):
                return True
        around.stop.wait(WAIT_SECONDS)
        return False

    def _end_rounds(self, post: Post) -> None:
        """Whatever is under way comes to its end; what is decided is taken."""
        if post.peer.in_flight:
            self._round(post, ends=True)

    def _round(self, post: Post, *, ends: bool = False) -> None:
        """An outer round; between its steps we save when it is time, and look up if we have been asleep.

        `ends`: train no more, and wait for what is under way.
        """
        peer, shown = post.peer, self._show.watching(post.peer, post.manifest)
        behind, book, before = self._woke_up_behind(peer), self._around.book, {*peer.in_flight}

        def step(report: StepReport) -> None:
            nonlocal behind
            book.trained(peer)
            shown.step(report)
            self._company.look_around(peer, post.manifest)
            behind = self._woke_up_behind(peer) or self._admittance.has_moved_on(peer) or behind
            self._look_beside(post, self._admittance.seen(post.manifest))
            self._keeping.between_steps(peer)

        def due(modules: Sequence[ModuleId]) -> None:
            self._keeping.note_given(peer)
            book.contributing(peer, modules)
            shown.due(modules)

        report = run_outer_round(
            peer,
            stop=lambda: ends or behind or self._around.stop() or self._pausing.ends(peer),
            on_step=step,
            on_due=due,
            on_commit=partial(book.committing, peer),
            on_wait=lambda: end_what_is_over(peer, self._admittance.seen(post.manifest)),
        )
        self._trying.look(peer, report)
        self._keeping.note_given(peer)  # where the round failed, it may not have been given after all
        begun = peer.in_flight.keys() - before
        if (report.outcomes or begun) and any(state.mapped for state in peer.base.values()):
            give_back_freed()  # what snapshots and merges have taken
        for module, outcome in report.outcomes.items():
            self._made[module.level] += isinstance(outcome, Agreed)
        self._show.round_over(peer, report, self._rounds, quiet=self._around.stop())
        self.attendance.note_round(peer, report)
        self._show.now(peer, post.manifest)
        if not _came_to_something(report) and peer.in_flight.keys() <= before:
            self._around.stop.wait(WAIT_SECONDS)  # in a pause, or to try again without training what has failed

    def _woke_up_behind(self, peer: PathInTraining) -> bool:
        """Whether time has passed without us, and the others have gone on meanwhile."""
        missed = self._missed()
        return missed is not None and self._company.find_again(
            missed, peer, lambda: self._admittance.has_moved_on(peer)
        )

    def _is_needed_elsewhere(self, peer: PathInTraining, manifest: Manifest) -> bool:
        """Whether to move to another path now, with --path auto; everything is kept and saved then."""
        around = self._around
        if manifest.closing is not None and manifest.closing.ends:
            return False  # the next stage opens in a moment
        path = self._choice.after_a_stay(manifest.stage, peer.table, peer.path)
        if path == peer.path:
            return False
        nobody_sends = self._company.hears_nobody and not self._keeping.has(peer.stage, path)
        if nobody_sends or not self._keeping.save(peer):  # else what was trained here would be gone
            self._choice.stay(peer.path)
            return False
        around.screen.event(Moving(peer.path, path))
        self._left, nodes = peer.trained_states, nodes_of(around.settings.address, manifest)
        for module, state in peer.left_behind.items():
            if other_holders(around.swarm, peer.stage, module, state, nodes):
                around.swarm.release(peer.stage, module)
            else:
                self._left[module] = state
        # nobody waits for us there any more
        around.swarm.announce(holdings(around.swarm.peer, peer.stage, self._left, moves=True))
        return True


def _look_at_snapshots(around: Surroundings, post: Post) -> None:
    if post.snapshots is None or around.stop():
        return
    try:
        best = post.snapshots.look()
    except HomeError as error:
        around.notices.failing("snapshot", CannotWrite(error=str(error)))
        return
    around.notices.recovered("snapshot")
    if best is not None:
        around.screen.event(best)


def _break_off(around: Surroundings, keeping: Keeping, post: Post, error: SwarmError) -> None:
    """What this machine cannot go on with, others can; but for who is shut out: from it nobody takes anything."""
    if isinstance(error, NotAdmittedError):
        keeping.save(post.peer)
    else:
        _hand_over(around, post.peer, post.manifest)


def _hand_over(around: Surroundings, peer: PathInTraining, manifest: Manifest) -> None:
    if around.swarm.lost:
        return
    states = {**peer.left_behind, **peer.base}
    nodes = nodes_of(around.settings.address, manifest)
    hand_over(around.swarm, peer.stage, states, nodes, around.stop, around.screen.event)


def _check(settings: PeerSettings, config: RunConfig) -> None:
    """Raises UsageError when the run is called otherwise, or never has this path."""
    if (problem := settings.address.has_other_name(config.name)) is not None:
        raise UsageError(problem)
    path, paths = settings.path, most_paths(config)
    if path is not None and not 0 <= path < paths:
        raise UsageError(
            f"path {path} does not exist: the run {config.name} has paths 0 to {paths - 1}; choose "
            "one of them, or --path auto"
        )


def _came_to_something(report: RoundReport) -> bool:
    return report.steps > 0 or any(isinstance(outcome, Agreed) for outcome in report.outcomes.values())
