"""The states of modules that this peer has had, and who made them: what it says when it is asked about a claim."""

from collections.abc import Sequence

from dipaco_swarm.algorithm.forgetting import keep_last
from dipaco_swarm.algorithm.paths import ModuleId
from dipaco_swarm.algorithm.plan import Claim
from dipaco_swarm.swarm.fields import MAX_NAMES

REMEMBERED_STATES = 64
"""Of each module; so many rounds, of all modules."""
Place = tuple[int, ModuleId]
"""Stage and module."""


class HadStates:
    """Written and read in the loop."""

    def __init__(self) -> None:
        self._had: dict[Place, dict[Claim, None]] = {}
        """The oldest first."""
        self._ours: dict[Place, None] = {}
        """Modules of which we have made a version."""
        self._contributors: dict[tuple[int, ModuleId, str], tuple[str, ...]] = {}
        """Stage, module and digest of a state -> who has contributed to the one after it, until its digest is known."""
        self._makers: dict[str, tuple[str, ...]] = {}
        """Digest of a state -> who has contributed to it."""

    def note(self, stage: int, module: ModuleId, claim: Claim) -> None:
        """We have this state, and believe that it is the run's."""
        had = self._had.setdefault((stage, module), {})
        had.pop(claim, None)
        had[claim] = None
        keep_last(had, REMEMBERED_STATES)

    def note_contributors(self, stage: int, module: ModuleId, base: str, names: Sequence[str]) -> None:
        """These, and we, have contributed to the state that comes after `base` (a digest)."""
        self._ours.setdefault((stage, module))
        self._contributors[stage, module, base] = tuple(names[:MAX_NAMES])
        keep_last(self._contributors, REMEMBERED_STATES)

    def note_step(self, stage: int, module: ModuleId, base: str, to: str) -> None:
        """The state after `base` has this digest."""
        names = self._contributors.pop((stage, module, base), None)
        if names is not None:
            self._makers[to] = names
            keep_last(self._makers, REMEMBERED_STATES)

    def has(self, stage: int, module: ModuleId, claim: Claim) -> bool:
        """Whether we have had exactly this state, and not long ago."""
        return claim in self._had.get((stage, module), {})

    def begun(self, stage: int, module: ModuleId) -> bool:
        """Whether we have had a version after the one that the stage begins with."""
        return any(claim.version for claim in self._had.get((stage, module), {}))

    def made(self, stage: int, module: ModuleId) -> bool:
        """Whether we have made a version of a module."""
        return (stage, module) in self._ours

    def makers(self, digest: str) -> tuple[str, ...]:
        """Who has contributed to a state, as far as we know."""
        return self._makers.get(digest, ())

    def forget(self, stage: int, module: ModuleId) -> None:
        self._had.pop((stage, module), None)
        self._ours.pop((stage, module), None)
