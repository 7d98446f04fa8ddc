"""The newest state of a module that others announce: which one to ask for, and what to do when nobody sends it."""

import math
from collections.abc import Sequence

from dipaco_swarm.algorithm.paths import ModuleId
from dipaco_swarm.algorithm.plan import Claim, better_claim
from dipaco_swarm.algorithm.state import ModuleState
from dipaco_swarm.swarm.encoded_average import MAX_CHAIN
from dipaco_swarm.swarm.fetching import FetchUnderWay, Follow, Older
from dipaco_swarm.swarm.interface import Swarm

STATE_SECONDS = 600.0
"""A holder that has not sent a state by then is not sending it."""


class NewestStates:
    """Fetches states of modules, and remembers which ones were asked for in vain."""

    def __init__(
        self,
        swarm: Swarm,
        *,
        follow: Follow | None = None,
        again_after: float = 0.0,
        give_up_after: float = math.inf,
    ) -> None:
        """`follow`: the outer steps of the run; None: states are fetched whole, never made of averages.

        `again_after`: seconds in which a module that nobody sent is not asked for again. `give_up_after`: seconds after
        which a state that nobody sends is not believed to exist; 0: it is asked for once.
        """
        self._swarm = swarm
        self._follow = follow
        self._again_after = again_after
        self._give_up_after = give_up_after
        self._asked_in_vain: dict[ModuleId, float] = {}
        """Module -> when fetching a state of it last failed."""
        self._unsent: dict[tuple[ModuleId, Claim], float] = {}
        """State -> when fetching it first failed."""

    def better(
        self, stage: int, module: ModuleId, ours: Claim, others: Sequence[Claim], *, timeout: float = 0.0
    ) -> Claim | None:
        """The state that we should have instead of ours, and can ask for now; None when there is none.

        `timeout`: seconds to wait for others to confirm what we hear.
        """
        now = self._swarm.clock.monotonic()
        if now - self._asked_in_vain.get(module, -math.inf) < self._again_after:
            return None
        sent = [claim for claim in others if self._may_be_sent(module, claim, now)]
        if better_claim(ours, sent) is None:
            return None
        return better_claim(ours, self._swarm.believed(stage, module, ours, sent, timeout=timeout))

    def fetch(
        self,
        stage: int,
        module: ModuleId,
        claim: Claim,
        *,
        parameters: int | None = None,
        ours: ModuleState | None = None,
    ) -> ModuleState | None:
        """That state; None when nobody sent it. Arguments as those of `begin`."""
        return self.take(module, claim, self.begin(stage, module, claim, parameters=parameters, ours=ours))

    def begin(
        self,
        stage: int,
        module: ModuleId,
        claim: Claim,
        *,
        parameters: int | None = None,
        ours: ModuleState | None = None,
    ) -> FetchUnderWay:
        """Begin to fetch that state, and return at once; `take` comes afterwards.

        `parameters`: how many the module has, where that is known. `ours`: the state that we have; where it is but a
        few versions behind, the averages since are less than the state.
        """
        older = None
        if self._follow is not None and ours is not None and claim.version - ours.version <= MAX_CHAIN:
            older = Older(ours, self._follow)
        return self._swarm.begin_fetch(
            stage, module, claim.digest, timeout=STATE_SECONDS, parameters=parameters, older=older
        )

    def take(self, module: ModuleId, claim: Claim, under_way: FetchUnderWay) -> ModuleState | None:
        """What came of it, once it is over; None when nobody sent it."""
        state = under_way.state()
        if state is None:
            now = self._swarm.clock.monotonic()
            self._asked_in_vain[module] = now
            self._unsent.setdefault((module, claim), now)
        else:
            self._asked_in_vain.pop(module, None)
        return state

    def _may_be_sent(self, module: ModuleId, claim: Claim, now: float) -> bool:
        first = self._unsent.get((module, claim))
        return first is None or now - first < self._give_up_after
