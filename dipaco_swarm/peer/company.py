"""Who else is there: whether the others are still heard, and finding them again after a sleep."""

import math
from collections.abc import Callable

from dipaco_swarm.events.volunteer import BootstrapSilent, Recovered
from dipaco_swarm.machine.sleep import Missed
from dipaco_swarm.outer_round import catch_ups
from dipaco_swarm.path_in_training import PathInTraining
from dipaco_swarm.peer.handover import counts, is_keeper, nodes_of
from dipaco_swarm.peer.path_choice import trainers_of
from dipaco_swarm.peer.surroundings import Surroundings
from dipaco_swarm.run.manifest import Manifest
from dipaco_swarm.swarm.interface import Announcement

LOOK_AROUND_SECONDS = 3.0
WAKING_PAUSE_SECONDS = 1.0


class Company:
    """The other peers of our modules, as far as they are heard."""

    def __init__(self, around: Surroundings) -> None:
        self._around = around
        self._looked = -math.inf
        self._has_others = False
        """Whether others were heard at the last look."""
        self._met_keeper = False
        self._came_at = self._heard_at = around.clock.boottime()
        """When we came, and when somebody whose word counts was heard last and was not done with the stage too."""

    def look_around(self, peer: PathInTraining, manifest: Manifest) -> None:
        """Now and then, look whether the others are still heard; says when the bootstrap node or everybody is not."""
        now = self._around.clock.boottime()
        if now - self._looked < LOOK_AROUND_SECONDS:
            return
        self._looked = now
        others, notices = _others(peer), self._around.notices
        self._has_others = bool(others)
        nodes = nodes_of(self._around.settings.address, manifest)
        if not all(_is_done(peer, said) for said in others if counts(said, nodes)):
            self._heard_at = now
        if any(is_keeper(said) for said in others):
            self._met_keeper = True
            notices.recovered("bootstrap", Recovered("bootstrap"))
        elif self._met_keeper:
            notices.failing("bootstrap", BootstrapSilent(alone=not others), after=self._around.swarm.timing.unheard)

    @property
    def hears_nobody(self) -> bool:
        """Whether at the last look neither others of our modules were there nor the bootstrap node."""
        return not self._has_others

    @property
    def alone_for(self) -> float:
        """Seconds in which nobody was heard but others who are done: they have missed what follows as we have."""
        return self._around.clock.boottime() - self._heard_at

    def has_been_left(self, peer: PathInTraining, newest: Manifest) -> bool:
        """Whether our part of a stage is done, and nobody was heard for so long that the run may have ended without us.

        Who leaves before the last stage has no part in those that come: it waits for the others as long as it was with
        them, too. Where it trains on until the next one opens, its part are the rounds that the stage was to have.
        """
        stage = newest.stage
        is_done = peer.is_done or (stage.rounds is not None and peer.version >= stage.rounds)
        is_last = stage.index == len(newest.config.stages) - 1
        enough = max(self._around.swarm.timing.long_ago, 0.0 if is_last else self._heard_at - self._came_at)
        return stage.index == peer.stage and is_done and self.alone_for > enough

    def find_again(self, missed: Missed, peer: PathInTraining, has_moved_on: Callable[[], bool]) -> bool:
        """After time that passed without us, find the others; whether they have gone on meanwhile.

        `has_moved_on`: whether the run is in a later stage, or has gone back.
        """
        around = self._around
        self._heard_at = around.clock.boottime()  # it was us who could not hear
        for event in missed.events:
            around.screen.event(event)
        grace = around.swarm.timing.greeting
        deadline = around.clock.monotonic() + grace
        while True:
            around.swarm.look_up(peer.stage, peer.modules, timeout=grace)
            lonely = self._has_others and not _others(peer)
            late = around.clock.monotonic() > deadline
            if not lonely or has_moved_on() or late or around.stop.wait(WAKING_PAUSE_SECONDS):
                return bool(catch_ups(peer)) or has_moved_on()


def peers_in_sight(peer: PathInTraining) -> int:
    """Live peers of the stage that train, not counting those whose records have reached only some of our groups yet.

    A round that begins on half a view of its group would leave somebody out.
    """
    trainers = {s.peer: s.path for s in trainers_of(peer.swarm, peer.stage, peer.table)}
    peer.swarm.look_up(peer.stage, peer.modules, timeout=peer.swarm.timing.look_up)
    for module in peer.modules:
        seen = {said.peer for said in peer.swarm.members(peer.stage, module)}
        through = peer.table.paths_through(module)
        trainers = {name: path for name, path in trainers.items() if path not in through or name in seen}
    return len(trainers)


def _is_done(peer: PathInTraining, said: Announcement) -> bool:
    """Whether somebody trains a module no more, as its last version is made."""
    last = peer.rules.last_versions.get(said.module)
    return not is_keeper(said) and last is not None and said.version >= last


def _others(peer: PathInTraining) -> list[Announcement]:
    """What others say about our modules."""
    said = [said for module in peer.modules for said in peer.swarm.members(peer.stage, module)]
    return [each for each in said if each.peer != peer.swarm.peer]
