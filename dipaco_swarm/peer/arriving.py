"""The state that a peer begins to train a module from, when it enters a stage."""

import math
from collections.abc import Mapping, Sequence

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
from dipaco_swarm.swarm.fetching import Follow
from dipaco_swarm.swarm.newest import NewestStates

STATE_PAUSE_SECONDS = 2.0
"""Before training, a state that nobody sent is asked for again after this."""


class NewestOnEntering:
    """Ours, what else is at hand, or what the group is at, of its holders."""

    def __init__(
        self,
        around: Surroundings,
        stage: Stage,
        at_hand: Sequence[Mapping[ModuleId, ModuleState]],
        follow: Follow,
        *,
        trains_on: bool,
    ) -> None:
        """`trains_on`: from an older one, as long as progress with it still counts when the group's is there."""
        self._around = around
        self._stage = stage
        self._at_hand = at_hand
        self._follow = follow
        self._trains_on = trains_on

    def of(self, ours: Mapping[ModuleId, ModuleState]) -> dict[ModuleId, ModuleState]:
        """The newest of each of these modules. From any thread. Raises Stopped when asked to stop meanwhile."""
        return {module: self._newest(module, state) for module, state in ours.items()}

    def _newest(self, module: ModuleId, ours: ModuleState) -> ModuleState:
        """A state that the operator has taken back is not gone on with: somebody has the one that counts since."""
        around, stage = self._around, self._stage
        for own in self._at_hand:
            if module in own and Claim.of(own[module]).beats(Claim.of(ours)):
                ours = own[module]
        signed = generations(stage).get(module, 0)
        is_taken_back = generation_of(ours.work) < signed
        patience = math.inf if is_taken_back else around.swarm.timing.unsent
        newest = NewestStates(around.swarm, follow=self._follow, give_up_after=patience)
        clock = around.swarm.clock
        confirmed_by = clock.monotonic() + around.swarm.timing.look_up
        while not around.stop():
            around.swarm.look_up(stage.index, [module], timeout=around.swarm.timing.look_up)
            members = around.swarm.members(stage.index, module)
            others = [Claim.of(said) for said in members if said.peer != around.swarm.peer]
            better = newest.better(stage.index, module, Claim.of(ours), others, timeout=2 * around.swarm.timing.answer)
            if better is None and is_taken_back:
                around.notices.failing(f"state of {module}", RestoredNotThere(module=str(module)))
                around.stop.wait(STATE_PAUSE_SECONDS)
                continue
            if better is None:
                if self._trains_on or better_claim(Claim.of(ours), others) is None or clock.monotonic() > confirmed_by:
                    return ours
                around.stop.wait(around.swarm.timing.ask_again)  # who can confirm it may have it in a moment
                continue
            if self._trains_on and not is_taken_back and weight_at(better.version - ours.version):
                return ours
            state = newest.fetch(stage.index, module, better, parameters=len(ours.params), ours=ours)
            if state is not None:
                around.notices.recovered(f"state of {module}")
                around.screen.event(Fetched(str(module), state.version))
                return state
            fault = StateNotSent(module=str(module), version=better.version, again_seconds=STATE_PAUSE_SECONDS)
            around.notices.failing(f"state of {module}", fault)
            around.stop.wait(STATE_PAUSE_SECONDS)
        raise Stopped
