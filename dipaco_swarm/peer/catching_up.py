"""A volunteer whose group has gone on without it: fetching newer states, and what becomes of its own progress then."""

from collections.abc import Sequence

from dipaco_swarm.algorithm.generations import generation_of
from dipaco_swarm.algorithm.paths import ModuleId
from dipaco_swarm.algorithm.plan import CatchUp
from dipaco_swarm.algorithm.progress import weight_at
from dipaco_swarm.events.training import CaughtUp, StateNotSent, WentBack
from dipaco_swarm.outer_round import begin_catch_up, drop_progress, end_catch_up
from dipaco_swarm.path_in_training import PathInTraining
from dipaco_swarm.peer.attendance import Attendance
from dipaco_swarm.peer.surroundings import Surroundings


class CatchingUp:
    """Newer states on their way to a volunteer. Where its run overlaps rounds, it trains on meanwhile."""

    def __init__(self, around: Surroundings, attendance: Attendance) -> None:
        self._around = around
        self._attendance = attendance

    def begin(self, peer: PathInTraining, tasks: Sequence[CatchUp]) -> None:
        """Begin to fetch states, all at once; wait for them where training waits as well."""
        begin_catch_up(peer, tasks)
        if not peer.rules.rounds.overlaps:
            for task in tasks:
                self._end(peer, task.module)

    def take_what_came(self, peer: PathInTraining) -> None:
        """Go on from the states that have come meanwhile; those that have been taken back need not come."""
        for module, fetching in list(peer.fetching.items()):
            if generation_of(fetching.claim.work) < peer.generations.get(module, 0):
                fetching.fetch.cancel()
                del peer.fetching[module]
        for module in [module for module, fetching in peer.fetching.items() if fetching.fetch.is_over]:
            self._end(peer, module)

    def let_go(self, peer: PathInTraining) -> None:
        """Fetch nothing any more: the peer leaves the stage."""
        for fetching in peer.fetching.values():
            fetching.fetch.cancel()
        peer.fetching.clear()

    def _end(self, peer: PathInTraining, module: ModuleId) -> None:
        around, to = self._around, peer.fetching[module].claim.version
        ours, tokens = peer.progress[module].version, peer.progress[module].tokens
        given = peer.progress[module].is_given
        goes_back = generation_of(peer.progress[module].base.work) < generation_of(peer.fetching[module].claim.work)
        if not end_catch_up(peer, module):
            around.notices.failing(f"state of {module}", StateNotSent(module=str(module), version=to))
            return
        around.notices.recovered(f"state of {module}")
        if goes_back:
            around.screen.event(WentBack(str(module), ours, to, tokens))
            around.book.dropped(peer, module, ours, tokens, "taken back")
            return
        around.screen.event(CaughtUp(str(module), ours, to))
        self._attendance.note_catch_up(peer, module, to, given=given)
        left = peer.progress[module].tokens
        around.book.dropped(peer, module, ours, tokens - left, "not acknowledged", local=left)
        if left and not weight_at(to - ours):
            around.book.dropped(peer, module, ours, drop_progress(peer, module), "stale")
