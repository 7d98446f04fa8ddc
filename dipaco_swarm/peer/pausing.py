"""A volunteer whose machine is needed otherwise: it trains no more, and its modules are served on.

What it has trained is given to the round that comes next, where rounds wait for nobody; then it says that it holds its
modules and trains none of them, as somebody does who moves: nobody waits for it, in whatever pacing. Nothing is fetched
meanwhile. When it may go on, it trains again, catches up like anybody who was away, and brings what is not given.
"""

from dipaco_swarm.events.pausing import GoesOn, Pauses
from dipaco_swarm.machine.manners import Pause
from dipaco_swarm.outer_round import announce, catch_ups, holdings
from dipaco_swarm.pacing import pacing_of_run
from dipaco_swarm.path_in_training import PathInTraining
from dipaco_swarm.peer.catching_up import CatchingUp
from dipaco_swarm.peer.keeping import Keeping
from dipaco_swarm.peer.presenter import PeerPresenter
from dipaco_swarm.peer.scoring import Scoring
from dipaco_swarm.peer.surroundings import Surroundings
from dipaco_swarm.run.manifest import Manifest

TURN_SECONDS = 1.0
"""Who pauses looks so often whether it still has to..."""
REDRAW_SECONDS = 10.0
"""... and shows so often that it does."""
COMING_SECONDS = 0.2
"""Who comes back looks so often whether states that are fetched are here."""
GIVING_SECONDS = 60.0
"""A round that comes later than this, or than two of the module's usual intervals, is not waited for."""


class Pausing:
    """Of one volunteer, from one post to the next. `look` and `rest` return soon."""

    def __init__(
        self,
        around: Surroundings,
        keeping: Keeping,
        scoring: Scoring,
        catching_up: CatchingUp,
        show: PeerPresenter,
    ) -> None:
        self._around = around
        self._keeping = keeping
        self._scoring = scoring
        self._catching_up = catching_up
        self._show = show
        self._since: float | None = None
        """When the pause began, by the monotonic clock; None: there is none."""
        self._is_away = False
        """Whether the others have been told so."""
        self._shown: Pause | None = None
        self._drawn = 0.0

    def ends(self, peer: PathInTraining) -> bool:
        """Whether rounds end here, too: where all take the same steps, a round with fewer would be another one."""
        return isinstance(self._around.manners.now, Pause) and pacing_of_run(peer).whole

    def before_a_post(self) -> None:
        """Wait until work may begin, or until asked to stop: nothing is read and fetched in a pause."""
        around, told = self._around, False
        while isinstance(now := around.manners.now, Pause) and not around.stop():
            if not told:
                told = True
                around.screen.event(Pauses(now.reason, now.words))
            around.stop.wait(TURN_SECONDS)
        self._hold(None)  # also what an earlier life of this program's has held

    def look(self, peer: PathInTraining) -> bool:
        """Begin a pause, or go on after one; whether there is one now."""
        now = self._around.manners.now
        if isinstance(now, Pause) and self._since is None:
            self._begin(now)
        elif not isinstance(now, Pause) and self._since is not None:
            self._go_on(peer)
        return isinstance(now, Pause)

    def is_away(self, peer: PathInTraining, newest: Manifest) -> bool:
        """Whether there is a pause, and nothing is left to do before the others are told."""
        return self._since is not None and (self._is_away or not self._has_to_give(peer, newest))

    def _has_to_give(self, peer: PathInTraining, newest: Manifest) -> bool:
        """Whether a round is to be made with what we have. What was begun before ends."""
        if peer.in_flight or peer.fetching:
            return True
        if self._since is None or pacing_of_run(peer).whole or newest.stage.index != peer.stage:
            return False
        intervals = [pace.interval for pace in peer.paces.values()]
        if self._around.clock.monotonic() - self._since > max(GIVING_SECONDS, 2 * max(intervals, default=0.0)):
            return False
        return any(
            said.trains and said.peer != self._around.swarm.peer
            for module, progress in peer.progress.items()
            if progress.tokens and not peer.module_is_done(module)
            for said in self._around.swarm.members(peer.stage, module)
        )

    def rest(self, peer: PathInTraining, manifest: Manifest) -> None:
        """A moment of being away."""
        around = self._around
        if not self._is_away:
            self._is_away = True
            self._keeping.save(peer)
            states = {**peer.left_behind, **peer.base}
            around.swarm.announce(holdings(around.swarm.peer, peer.stage, states, moves=peer.moves))
        now = around.clock.monotonic()
        if isinstance(pause := around.manners.now, Pause) and (
            pause != self._shown or now - self._drawn > REDRAW_SECONDS
        ):
            self._shown, self._drawn = pause, now
            self._show.paused(pause.words)
            self._show.now(peer, manifest)
        around.stop.wait(TURN_SECONDS)

    def _begin(self, pause: Pause) -> None:
        self._since = self._around.clock.monotonic()
        self._around.screen.event(Pauses(pause.reason, pause.words))
        self._scoring.leave()
        self._hold(pause)

    def _go_on(self, peer: PathInTraining) -> None:
        around, since, was_away = self._around, self._since, self._is_away
        assert since is not None
        self._since, self._is_away, self._shown = None, False, None
        self._hold(None)
        around.screen.event(GoesOn(around.clock.monotonic() - since))
        if was_away:
            announce(peer)
            self._come_back(peer)

    def _come_back(self, peer: PathInTraining) -> None:
        """Take what the others have come to: what is trained on states that are long past would count for little."""
        around = self._around
        timeout = around.swarm.timing.look_up
        around.swarm.look_up(peer.stage, peer.modules, timeout=timeout)
        deadline = around.clock.monotonic() + timeout
        while not around.stop() and not isinstance(around.manners.now, Pause) and _is_far_behind(peer):
            if tasks := catch_ups(peer):
                self._catching_up.begin(peer, tasks)
            elif not peer.fetching and around.clock.monotonic() > deadline:
                return  # nobody sends it, or nobody confirms that it is there
            around.stop.wait(COMING_SECONDS)
            self._catching_up.take_what_came(peer)

    def _hold(self, pause: Pause | None) -> None:
        """Have all that works beside training do nothing, or go on."""
        around, resting = self._around, pause is not None
        self._show.paused(None if pause is None else pause.words)
        around.workbench.rest(resting=resting)
        if around.desk is not None:
            around.desk.rest(resting=resting)


def _is_far_behind(peer: PathInTraining) -> bool:
    """Whether others of some module are more than a version ahead of us, as they say."""
    return any(
        said.trains and said.known and said.version > progress.version + 1
        for module, progress in peer.progress.items()
        for said in peer.swarm.members(peer.stage, module)
    )
