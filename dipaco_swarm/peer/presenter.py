"""What a volunteer's screen shows: a peer's state and its rounds as views, redrawn while it trains."""

import math
import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dipaco_swarm.algorithm.paths import ModuleId
from dipaco_swarm.dashboard.metrics import StepMeter
from dipaco_swarm.dashboard.screens import Screen
from dipaco_swarm.dashboard.views import ModuleView, PeerView
from dipaco_swarm.events.training import Commit, Round, RoundFailed
from dipaco_swarm.machine.notices import Notices
from dipaco_swarm.outer_round import RoundReport
from dipaco_swarm.path_in_training import PathInTraining
from dipaco_swarm.run.manifest import Manifest
from dipaco_swarm.swarm.interface import Agreed, Announcement, Swarm
from dipaco_swarm.training.inner import StepReport

REDRAW_SECONDS = 0.5


class PeerPresenter:
    """Keeps what the volunteer's screen shows between two redraws."""

    def __init__(self, screen: Screen, swarm: Swarm, run: str, notices: Notices) -> None:
        self._screen = screen
        self._swarm = swarm
        self._run = run
        self._meter = StepMeter()
        self._notices = notices
        self._losses: deque[float] = deque(maxlen=400)
        self._tokens = 0
        self._drawn = 0.0
        self._steps_in_round = 0
        self._rounds = 0
        self._last_agreed: str | None = None

    def watching(self, peer: PathInTraining, manifest: Manifest) -> "Watching":
        self._steps_in_round = 0
        return Watching(self, peer, manifest)

    def step(self, peer: PathInTraining, manifest: Manifest, report: StepReport) -> None:
        self._losses.append(report.loss)
        self._tokens += report.tokens
        self._steps_in_round += 1
        steps = self._meter.step(peer.stage, peer.path, report.step, report.loss, report.tokens, report.seconds)
        if steps is not None:
            self._screen.event(steps)
        if self._swarm.clock.monotonic() - self._drawn > REDRAW_SECONDS:
            self._drawn = self._swarm.clock.monotonic()
            self.now(peer, manifest, _sharing(peer.in_flight, trains=True) if peer.in_flight else "training")

    def round_over(self, peer: PathInTraining, report: RoundReport, rounds: int, *, quiet: bool) -> None:
        """Tell what came out of a round. `rounds`: made so far. `quiet`: not what failed, as we are about to leave."""
        if not report.outcomes:
            return
        self._rounds = rounds
        modules = {}
        for module, outcome in report.outcomes.items():
            if isinstance(outcome, Agreed):
                self._notices.recovered(f"round of {module}")
                digest, tokens = peer.progress[module].base.digest, report.contributed[module]
                modules[str(module)] = Commit(report.versions[module], digest, len(outcome.contributors), tokens)
            elif not quiet:
                self._notices.failing(f"round of {module}", RoundFailed(module=str(module), reason=outcome.reason))
        loss = None if math.isnan(report.loss) else report.loss
        over = Round(peer.stage, peer.path, peer.trainer.steps_done, rounds, loss, modules)
        if modules:
            now = time.localtime(self._swarm.clock.wall())
            self._last_agreed = f"{over.commits}, at {time.strftime('%H:%M:%S', now)}"
            self._screen.event(over)

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
                rounds=self._rounds,
                peers=len({said.peer for all_said in members.values() for said in all_said if said.trains}),
                modules=tuple(_module_view(peer, module, said) for module, said in members.items()),
                losses=tuple(self._losses),
                tokens_per_second=peer.tokens_per_second,
                tokens=self._tokens,
                bytes_sent=traffic.sent,
                bytes_received=traffic.received,
                last_agreed=self._last_agreed,
                round_progress=min(1.0, self._steps_in_round / inner_steps),
                next_round_seconds=left / peer.tokens_per_second if peer.tokens_per_second else None,
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
        self.show.now(self.peer, self.manifest, _sharing(modules, trains=self.peer.rules.rounds.overlaps))


def _sharing(modules: Iterable[ModuleId], *, trains: bool) -> str:
    """What a peer does while rounds of these modules are made; `trains`: and it trains on meanwhile."""
    shared = f"sharing {', '.join(map(str, modules))}"
    return f"training, and {shared}" if trains else shared


def _module_view(peer: PathInTraining, module: ModuleId, said: Sequence[Announcement]) -> ModuleView:
    state = peer.base[module]
    trainers = [s for s in said if s.trains]
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
