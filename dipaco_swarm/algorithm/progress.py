"""One module of a path between two rounds: what the group agreed on, and what was trained here since. Pure."""

from dataclasses import dataclass, replace

from torch import Tensor

from dipaco_swarm.algorithm.plan import Claim
from dipaco_swarm.algorithm.state import ModuleState


@dataclass(frozen=True, eq=False)
class Part:
    """What a peer gives to a round: all that it had trained on a module by then."""

    tokens: int
    params: Tensor
    """The module's parameters when it was given: fp32 (parameters,)."""


@dataclass(frozen=True, eq=False)
class ModuleProgress:
    """How far a peer has come with one of its modules."""

    base: ModuleState
    """The last agreed state; what the model has beyond it is local progress."""
    tokens: int = 0
    """Tokens trained since that state."""
    given_at: int | None = None
    """The last version whose round had our outer gradient and ended without us: a newer state may contain it."""
    part: Part | None = None
    """What that round had of ours; None where that is not known any more, and may be all that is local."""
    failed_at: int | None = None
    """`tokens` when the round of this version failed the last time; None: it has not."""
    failed: Part | None = None
    """What it had of ours then."""
    catching_up: bool = False
    """Whether a newer state is on its way to us."""

    @property
    def version(self) -> int:
        return self.base.version

    @property
    def claim(self) -> Claim:
        """Our word on what we have."""
        return Claim.of(self.base)

    def trained(self, tokens: int) -> "ModuleProgress":
        """After so many tokens more."""
        return replace(self, tokens=self.tokens + tokens)


def adopted(progress: ModuleProgress, state: ModuleState) -> tuple[ModuleProgress, Tensor]:
    """The successor of a module's agreed state, with our progress in it or dropped; and the parameters to go on with.

    Parameters are fp32, shape (parameters,).
    """
    return ModuleProgress(state, given_at=_still_given(progress, state)), state.params


def merged(progress: ModuleProgress, state: ModuleState, part: Part, local: Tensor) -> tuple[ModuleProgress, Tensor]:
    """The successor of a module's agreed state, with what we gave in it and what we have trained since on top.

    `local`: a copy of the parameters now, which is used up. So every inner step is in one outer gradient, however late
    its round ends.
    """
    since = progress.tokens - part.tokens
    if not since:
        return adopted(progress, state)
    on_top = local.sub_(part.params).add_(state.params)
    return ModuleProgress(state, since, _still_given(progress, state)), on_top


def rebased(progress: ModuleProgress, state: ModuleState, local: Tensor) -> tuple[ModuleProgress, Tensor]:
    """The state that others agreed on, with our local progress on top; and the parameters to go on with.

    `local`: a copy of the parameters now, fp32 (parameters,), which is used up. Progress that is in the others' state
    already is dropped: it would count twice.
    """
    if state.work > progress.base.work and progress.version == progress.given_at:
        return adopted(progress, state) if progress.part is None else merged(progress, state, progress.part, local)
    ours = local.sub_(progress.base.params).add_(state.params)
    return ModuleProgress(state, progress.tokens, _still_given(progress, state)), ours


def _still_given(progress: ModuleProgress, state: ModuleState) -> int | None:
    """`given_at` once this state is the base: another history of that version was made without what we gave."""
    given_at = progress.given_at
    return given_at if given_at is not None and given_at < state.version else None
