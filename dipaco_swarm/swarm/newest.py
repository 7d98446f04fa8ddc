"""The newest state of a module that others announce: which one to ask for, and what to do when nobody sends it."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dipaco_swarm.algorithm.paths import ModuleId
from dipaco_swarm.algorithm.plan import Claim, better_claim
from dipaco_swarm.algorithm.state import ModuleState
from dipaco_swarm.swarm.encoded_average import MAX_CHAIN
from dipaco_swarm.swarm.fetching import FetchUnderWay, Follow, Older
from dipaco_swarm.swarm.interface import Swarm

STATE_SECONDS = 600.0
"""A holder that has not sent a state by then is not sending it."""


@dataclass(frozen=True)
class InVain:
    """When a state was asked for and nobody sent it, in seconds of the monotonic clock."""

    first: float
    last: float


class NewestStates:
    """Fetches states of modules, and remembers which ones were asked for in vain."""

    def __init__(
        self,
        swarm: Swarm,
        *,
        follow: Callable[[ModuleId], Follow] | None = None,
        again_after: float = 0.0,
        give_up_after: float = math.inf,
    ) -> None:
        """`follow`: the outer steps of each module; None: states are fetched whole, never made of averages.

        `again_after`: seconds in which a state that nobody sent is not asked for again. `give_up_after`: seconds after
        which a state that nobody sends is not believed to exist; 0: it is asked for once.
        """
        self._swarm = swarm
        self._follow = follow
        self._again_after = again_after
        self._give_up_after = give_up_after
        self._unsent: dict[ModuleId, dict[Claim, InVain]] = {}
        """States that nobody sent, by module."""

    def better(
        self, stage: int, module: ModuleId, ours: Claim, others: Sequence[Claim], *, timeout: float = 0.0
    ) -> Claim | None:
        """The state that we should have instead of ours, and can ask for now; None when there is none.

        `timeout`: seconds to wait for others to confirm what we hear.
        """
        now = self._swarm.clock.monotonic()
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
            older = Older(ours, self._follow(module))
        return self._swarm.begin_fetch(
            stage, module, claim.digest, timeout=STATE_SECONDS, parameters=parameters, older=older
        )

    def take(self, module: ModuleId, claim: Claim, under_way: FetchUnderWay) -> ModuleState | None:
        """What came of it, once it is over; None when nobody sent it."""
        state = under_way.state()
        unsent = self._unsent.setdefault(module, {})
        if state is None:
            now = self._swarm.clock.monotonic()
            unsent[claim] = InVain(unsent[claim].first if claim in unsent else now, now)
        else:
            self._unsent[module] = {other: times for other, times in unsent.items() if other.beats(claim)}
        return state

    def _may_be_sent(self, module: ModuleId, claim: Claim, now: float) -> bool:
        asked = self._unsent.get(module, {}).get(claim)
        return asked is None or (now - asked.last >= self._again_after and now - asked.first < self._give_up_after)
