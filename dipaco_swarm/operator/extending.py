"""A run that grows: its operator has changed the run file, and everybody follows by a new revision of the manifest."""

import math
from collections.abc import Mapping
from pathlib import Path

from dipaco_swarm.algorithm.paths import ModuleId
from dipaco_swarm.algorithm.state import ModuleState
from dipaco_swarm.dashboard.status import status_of
from dipaco_swarm.events.operator import NotExtended, RunExtended
from dipaco_swarm.files import remove
from dipaco_swarm.operator.stages import Stages
from dipaco_swarm.operator.surroundings import Surroundings
from dipaco_swarm.run.growth import changes_between, refused
from dipaco_swarm.run.manifest import Manifest
from dipaco_swarm.run.orders import Extend

HEARD_SECONDS = 60.0
"""After which every peer that is there has heard of a new manifest."""
HEARD_VERSIONS = 2
"""A version that is being made, and one more."""


class Extending:
    """Obeys `dipaco-bootstrap extend`."""

    def __init__(self, around: Surroundings, stages: Stages) -> None:
        self._around = around
        self._stages = stages
        self._obeying: list[Path] = []
        """Files of the orders that are done, and not published yet."""

    def renewed(self, manifest: Manifest, states: Mapping[ModuleId, ModuleState]) -> Manifest:
        """The manifest with all that was ordered since the last time; the same one when nothing was.

        `states`: the agreed modules of its stage.
        """
        for file, order in self._around.home.orders():
            if isinstance(order, Extend):
                self._obeying.append(file)
                manifest = self._extended(manifest, order, states)
        return manifest

    def published(self) -> None:
        """What `renewed` returned last is on the disk: nothing that was ordered has to be done again."""
        for file in self._obeying:
            remove(file)
        self._obeying.clear()

    def _extended(self, manifest: Manifest, order: Extend, states: Mapping[ModuleId, ModuleState]) -> Manifest:
        around, config = self._around, order.config
        changes = changes_between(manifest.config, config)
        if not changes:
            return manifest
        newest = max(state.version for state in states.values())
        for problem in refused(manifest.config, config, manifest.stage.index):
            around.screen.event(NotExtended(problem.key, problem.what))
            return manifest
        extended = self._stages.extended(manifest, config, newest + self._rounds_until_heard(manifest))
        rounds = extended.stage.rounds
        if rounds != manifest.stage.rounds and rounds is not None and rounds < newest:
            key, why = f"stages[{manifest.stage.index}].rounds", f"there are versions {newest} of modules already"
            around.screen.event(NotExtended(key, f"{rounds} are too few: {why}; give {newest} or more"))
            return manifest
        around.config = config
        around.workshop.follow(config)
        around.screen.event(RunExtended(tuple(map(str, changes))))
        return extended

    def _rounds_until_heard(self, manifest: Manifest) -> int:
        """Rounds that are made before everybody knows what is different."""
        pace = status_of(self._around.swarm, manifest).round_seconds
        return HEARD_VERSIONS + (0 if not pace else math.ceil(HEARD_SECONDS / pace))
