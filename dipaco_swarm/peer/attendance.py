"""Whether a synchronous run was whole: said at once when somebody is missing in a round, and once more in the end.

A round is whole when everybody is in it who was in the round of the version before. Nothing is said of paced rounds,
which go on with whoever is there.
"""

from collections.abc import Callable

from dipaco_swarm.algorithm.paths import ModuleId
from dipaco_swarm.errors import NotWholeError
from dipaco_swarm.events.attendance import LeftEarly, MadeWithout, Whole
from dipaco_swarm.events.event import Event
from dipaco_swarm.outer_round import RoundReport
from dipaco_swarm.pacing import pacing_of_run
from dipaco_swarm.path_in_training import PathInTraining
from dipaco_swarm.swarm.interface import Agreed, PeerName

NAMED = 5
"""So many of the versions that somebody missed are named in the end."""


class Attendance:
    """Who was in the synchronous rounds of a peer, from its start to its end."""

    def __init__(self, report: Callable[[Event], None]) -> None:
        """`report`: where it goes that somebody is missing."""
        self._report = report
        self._rosters: dict[tuple[int, ModuleId], frozenset[PeerName]] = {}
        """Who was in the round before, by stage and module."""
        self._rounds = 0
        self._flaws: list[MadeWithout | LeftEarly] = []
        """The first ones."""
        self._found = 0
        """How many in all."""

    def note_round(self, peer: PathInTraining, report: RoundReport) -> None:
        """Compare what came out of a round with the round before it."""
        if not pacing_of_run(peer).whole:
            return
        for module, outcome in report.outcomes.items():
            if isinstance(outcome, Agreed):
                self._rounds += 1
                present = frozenset(outcome.contributors)
                before = self._rosters.get((peer.stage, module), present)
                self._rosters[peer.stage, module] = present
                if missing := (before - present) | set(outcome.left_out):
                    names = tuple(sorted(name[-8:] for name in missing))
                    self._note(MadeWithout(peer.stage, str(module), report.versions[module], names))

    def note_catch_up(self, peer: PathInTraining, module: ModuleId, version: int, *, given: bool) -> None:
        """The group has gone on to `version`; `given`: perhaps with what we had trained."""
        if pacing_of_run(peer).whole and (peer.stage, module) in self._rosters and not given:
            self._note(MadeWithout(peer.stage, str(module), version, ()))

    def note_leaving(self, peer: PathInTraining) -> None:
        """We leave for good; what is not done in this stage is left to the others."""
        if pacing_of_run(peer).whole and not peer.is_done and any(stage == peer.stage for stage, _ in self._rosters):
            self._note(LeftEarly(peer.stage))

    def in_the_end(self) -> None:
        """Say that the run was whole; raises NotWholeError when it was not."""
        if self._flaws:
            flaws = "; ".join(flaw.flaw for flaw in self._flaws)
            more = f"; and {self._found - NAMED} more" if self._found > NAMED else ""
            raise NotWholeError(
                f"not whole, so not what one process would compute: {flaws}{more}. Nothing that was trained is lost; "
                'where this does not matter, the run file says pacing = "paced"'
            )
        if self._rounds:
            self._report(Whole())

    def _note(self, flaw: MadeWithout | LeftEarly) -> None:
        self._found += 1
        if self._found <= NAMED:
            self._flaws.append(flaw)
        self._report(flaw)
