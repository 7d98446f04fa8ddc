"""Strangers who train further than this node takes their states: its operator is told why nothing seems to move."""

import math
from collections.abc import Mapping

from dipaco_swarm.algorithm.paths import ModuleId
from dipaco_swarm.algorithm.state import ModuleState
from dipaco_swarm.events.operator import StrangersAhead
from dipaco_swarm.operator.surroundings import Surroundings
from dipaco_swarm.run.manifest import Stage

AFTER_SECONDS = 60.0
"""Who is believed is so within seconds."""
AGAIN_SECONDS = 600.0


class Unbelieved:
    """Looks at what is announced, at each tick."""

    def __init__(self, around: Surroundings) -> None:
        self._around = around
        self._since: float | None = None
        """When there were strangers ahead and nobody known; None: it is not so."""
        self._told = -math.inf

    def look(self, stage: Stage, states: Mapping[ModuleId, ModuleState]) -> None:
        """`states`: what we hold."""
        swarm = self._around.swarm
        now = swarm.clock.monotonic()
        training = [(module, said) for module in states for said in swarm.members(stage.index, module) if said.trains]
        ahead = {said.peer for module, said in training if said.version > states[module].version}
        if not ahead or any(said.known for _, said in training):
            self._since = None
            return
        self._since = now if self._since is None else self._since
        if now - self._since >= AFTER_SECONDS and now - self._told >= AGAIN_SECONDS:
            self._told = now
            self._around.screen.event(StrangersAhead(len(ahead), round(swarm.timing.long_ago / 60)))
