"""What a volunteer's screen shows: a peer's state and its rounds as views, redrawn while it trains."""

import math
import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from dipaco_swarm.algorithm.paths import ModuleId, PathIndex
from dipaco_swarm.dashboard.metrics import StepMeter
from dipaco_swarm.dashboard.screens import Screen
from dipaco_swarm.dashboard.views import LineView, ModuleView, PeerView, TimeView
from dipaco_swarm.events.training import Commit, Round, RoundFailed
from dipaco_swarm.events.volunteer import Waiting
from dipaco_swarm.machine.notices import Notices
from dipaco_swarm.machine.sparing import Sparing
from dipaco_swarm.outer_round import RoundReport
from dipaco_swarm.pacing import next_round
from dipaco_swarm.path_in_training import PathInTraining
from dipaco_swarm.peer.life import Life
from dipaco_swarm.peer.stage_pace import StagePace
from dipaco_swarm.peer.usage import UsageMeter
from dipaco_swarm.run.manifest import Manifest
from dipaco_swarm.swarm.interface import Agreed, Announcement, Swarm
from dipaco_swarm.training.inner import StepReport

REDRAW_SECONDS = 0.5


class PeerPresenter:
    """Keeps what the volunteer's screen shows between two redraws."""

    def __init__(self, screen: Screen, swarm: Swarm, run: str, notices: Notices, usage: UsageMeter, life: Life) -> None:
        """`usage`: of this program, from before the network was opened. `life`: of its home."""
        self._screen = screen
        self._swarm = swarm
        self._run = run
        self._meter = StepMeter()
        self._notices = notices
        self._losses: deque[float] = deque(maxlen=400)
        self._tokens = 0
        self._usage = usage
        self._life = life
        self._pace = StagePace()
        self._paused: str | None = None
        self._redrawing = Sparing(swarm.clock, least=REDRAW_SECONDS)
        self._rounds = 0
        self._last_agreed: str | None = None
        self._waited: tuple[int, PathIndex, Waiting] | None = None
        """Where and why there was nothing to train, as it was said last."""

    def watching(self, peer: PathInTraining, manifest: Manifest) -> "Watching":
        return Watching(self, peer, manifest)

    def step(self, peer: PathInTraining, manifest: Manifest, report: StepReport) -> None:
        self._losses.append(report.loss)
        self._tokens += report.tokens
        steps = self._meter.step(peer.stage, peer.path, report.step, report.loss, report.tokens, report.seconds)
        usage = self._usage.trained(report.seconds, report.tokens)
        if usage is not None and (lately := self._usage.lately()) is not None:
            peer.card = replace(peer.card, trained=lately.share)
        for event in (steps, usage):
            if event is not None:
                self._screen.event(event)
        self._redrawing.do(partial(self.now, peer, manifest), None)

    def round_over(self, peer: PathInTraining, report: RoundReport, rounds: int, *, quiet: bool) -> None:
        """Tell what came out of a round. `rounds`: made so far. `quiet`: not what failed, as we are about to leave."""
        if not report.outcomes:
            return
        self._rounds = rounds
        modules, ours = {}, {}
        for module, outcome in report.outcomes.items():
            if isinstance(outcome, Agreed):
                self._notices.recovered(f"round of {module}")
                digest, tokens = peer.progress[module].base.digest, report.contributed[module]
                ours[module] = outcome.tokens.get(self._swarm.peer, 0)
                modules[str(module)] = Commit(report.versions[module], digest, len(outcome.contributors), tokens)
            elif not quiet:
                self._notices.failing(f"round of {module}", RoundFailed(module=str(module), reason=outcome.reason))
        loss = None if math.isnan(report.loss) else report.loss
        over = Round(peer.stage, peer.path, peer.trainer.steps_done, rounds, loss, modules)
        if modules:
            self._life.counted(peer.stage, ours)
            now = time.localtime(self._swarm.clock.wall())
            self._last_agreed = f"{over.commits}, at {time.strftime('%H:%M:%S', now)}"
            self._screen.event(over)

    def waiting(self, peer: PathInTraining, manifest: Manifest, waiting: Waiting) -> None:
        """There is nothing to train now. Said once for each reason on a path, and shown."""
        if (peer.stage, peer.path, waiting) != self._waited:
            self._waited = peer.stage, peer.path, waiting
            self._screen.event(waiting)
        if waiting.reason == "finished":
            self._usage.finished()
        self.now(peer, manifest, str(waiting))

    def paused(self, words: str | None) -> None:
        """The machine is needed otherwise, and why; None: no more. It is not held against it."""
        self._paused = words
        self._usage.away(is_away=words is not None)

    def now(self, peer: PathInTraining, manifest: Manifest, activity: str | None = None) -> None:
        """Redraw. `activity`: what the peer does, if it does not train."""
        members = {module: self._swarm.members(peer.stage, module) for module in peer.modules}
        usage, lately, coming = self._usage.so_far(), self._usage.lately(), next_round(peer)
        self._screen.show(
            PeerView(
                run=self._run,
                stage=peer.stage,
                stages=len(manifest.config.stages),
                admission=manifest.config.admission.kind,
                path=peer.path,
                num_paths=peer.table.num_paths,
                activity=self._paused or activity or _activity(peer),
                paused=self._paused is not None,
                rounds=self._rounds,
                peers=len({said.peer for all_said in members.values() for said in all_said if said.trains}),
                modules=tuple(_module_view(peer, module, said) for module, said in members.items()),
                losses=tuple(self._losses),
                tokens_per_second=peer.tokens_per_second,
                tokens=self._tokens,
                life_tokens=self._life.tokens_before + self._tokens,
                share=self._life.share(peer.stage, {module: state.work for module, state in peer.base.items()}),
                stage_end=self._pace.end_of(peer),
                step=peer.trainer.steps_done,
                time=None if lately is None else TimeView(usage.share, usage.seconds, lately.share, lately.seconds),
                sent=LineView(usage.sent, 0.0 if lately is None else lately.sent_per_second),
                received=LineView(usage.received, 0.0 if lately is None else lately.received_per_second),
                last_agreed=self._last_agreed,
                round_progress=0.0 if coming is None else coming.progress,
                next_round_seconds=None if coming is None else coming.seconds,
            )
        )


@dataclass(frozen=True)
class Watching:
    """Shows a round while it goes on."""

    show: PeerPresenter
    peer: PathInTraining
    manifest: Manifest

    def step(self, report: StepReport) -> None:
        self.show.step(self.peer, self.manifest, report)

    def due(self, modules: Sequence[ModuleId]) -> None:
        beside = self.peer.rules.rounds.overlaps
        activity = _activity(self.peer, modules) if beside else f"sharing {_named(modules)}"
        self.show.now(self.peer, self.manifest, activity)


def _activity(peer: PathInTraining, begins: Iterable[ModuleId] = ()) -> str:
    """What a peer does that trains. `begins`: modules whose rounds are about to begin."""
    shared = dict.fromkeys((*peer.in_flight, *begins))
    beside = [
        f"{what} {_named(modules)}" for what, modules in (("sharing", shared), ("fetching", peer.fetching)) if modules
    ]
    return f"training, and {' and '.join(beside)}" if beside else "training"


def _named(modules: Iterable[ModuleId]) -> str:
    return ", ".join(map(str, modules))


def _module_view(peer: PathInTraining, module: ModuleId, said: Sequence[Announcement]) -> ModuleView:
    state = peer.base[module]
    trainers = [s for s in said if s.trains]
    flight, fetching = peer.in_flight.get(module), peer.fetching.get(module)
    same_version = [s for s in trainers if s.version == state.version]
    agree = sum(1 for s in same_version if s.digest == state.digest)
    return ModuleView(
        name=str(module),
        version=state.version,
        peers=len(trainers),
        agree=agree,
        differ=len(same_version) - agree,
        paths=len(peer.table.paths_through(module)),
        on_its_way=None if flight is None else flight.round.progress,
        catches_up_to=None if fetching is None else fetching.claim.version,
    )
