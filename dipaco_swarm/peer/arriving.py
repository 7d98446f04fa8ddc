"""The state that a peer begins to train a module from, when it enters a stage."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from dipaco_swarm.algorithm.generations import generation_of
from dipaco_swarm.algorithm.paths import ModuleId
from dipaco_swarm.algorithm.plan import Claim, better_claim
from dipaco_swarm.algorithm.progress import weight_at
from dipaco_swarm.algorithm.stages import generations
from dipaco_swarm.algorithm.state import ModuleState
from dipaco_swarm.events.training import Fetched, RestoredNotThere, StateNotSent
from dipaco_swarm.machine.stopping import Stopped
from dipaco_swarm.peer.surroundings import Surroundings
from dipaco_swarm.run.manifest import Stage
from dipaco_swarm.swarm.encoded_average import MAX_CHAIN
from dipaco_swarm.swarm.fetching import Follow
from dipaco_swarm.swarm.interface import Announcement, Role
from dipaco_swarm.swarm.newest import NewestStates

STATE_PAUSE_SECONDS = 2.0
"""Before training, a state that nobody sent is asked for again after this."""


NOTHING = Claim(0, "")
"""What every state that was trained beats."""


@dataclass(frozen=True)
class NewestOnEntering:
    """Ours, what else is at hand, what the group is at, of its holders, or what the stage starts from."""

    around: Surroundings
    stage: Stage
    at_hand: Sequence[Mapping[ModuleId, ModuleState]]
    start: Callable[[ModuleId], ModuleState]
    """Fetched only where nobody has come further: all begin with it, and the operator's node alone may have it."""
    size: Callable[[ModuleId], int]
    """Parameters of a module."""
    follow: Callable[[ModuleId], Follow]
    trains_on: bool
    """From an older state of ours, as long as progress with it still counts when the group's is there."""
    begins_earlier: bool
    """Where we have no such state, from one of a few versions ago, which a node of the run's keeps: it has the fastest
    line, and what came since comes while we train, as averages, an eighth of a state each."""

    def of(self, ours: Mapping[ModuleId, ModuleState | None]) -> dict[ModuleId, ModuleState]:
        """The newest of each of these modules. From any thread. Raises Stopped when asked to stop meanwhile, and what
        `start` and `size` raise."""
        return {module: self._newest(module, state) for module, state in ours.items()}

    def _newest(self, module: ModuleId, ours: ModuleState | None) -> ModuleState:
        """A state that the operator has taken back is not gone on with: somebody has the one that counts since."""
        around, stage = self.around, self.stage
        had = NOTHING if ours is None else Claim.of(ours)
        for own in self.at_hand:
            if module in own and Claim.of(own[module]).beats(had):
                ours, had = own[module], Claim.of(own[module])
        trains_on = self.trains_on and ours is not None
        signed = generations(stage).get(module, 0)
        is_taken_back = generation_of(had.work) < signed
        patience = math.inf if is_taken_back else around.swarm.timing.unsent
        newest = NewestStates(around.swarm, follow=self.follow, give_up_after=patience)
        clock = around.swarm.clock
        confirmed_by = clock.monotonic() + around.swarm.timing.look_up
        while not around.stop():
            around.swarm.look_up(stage.index, [module], timeout=around.swarm.timing.look_up)
            members = around.swarm.members(stage.index, module)
            others = [said for said in members if said.peer != around.swarm.peer]
            better = newest.better(stage.index, module, had, others, timeout=2 * around.swarm.timing.answer)
            if better is None and is_taken_back:
                around.notices.failing(f"state of {module}", RestoredNotThere(module=str(module)))
                around.stop.wait(STATE_PAUSE_SECONDS)
                continue
            if better is None:
                if trains_on or better_claim(had, [*map(Claim.of, others)]) is None or clock.monotonic() > confirmed_by:
                    return self.start(module) if ours is None else ours
                around.stop.wait(around.swarm.timing.ask_again)  # who can confirm it may have it in a moment
                continue
            if trains_on and ours is not None and not is_taken_back and weight_at(better.version - ours.version):
                return ours
            for claim in dict.fromkeys((self._kept(module, had, better, members) or better, better)):
                state = newest.fetch(stage.index, module, claim, parameters=self.size(module), ours=ours)
                if state is not None:
                    around.notices.recovered(f"state of {module}")
                    around.screen.event(Fetched(str(module), state.version))
                    return state
            fault = StateNotSent(module=str(module), version=better.version, again_seconds=STATE_PAUSE_SECONDS)
            around.notices.failing(f"state of {module}", fault)
            around.stop.wait(STATE_PAUSE_SECONDS)
        raise Stopped

    def _kept(self, module: ModuleId, had: Claim, newest: Claim, members: Sequence[Announcement]) -> Claim | None:
        """The state to begin with that a node keeps, newer than what we had; None: where none is recent enough."""
        kept = [Claim.of(said) for said in members if said.role is Role.KEEPS] if self.begins_earlier else []
        recent = [claim for claim in kept if newest.version - claim.version <= MAX_CHAIN]
        return better_claim(had, self.around.swarm.believed(self.stage.index, module, had, recent))
