"""One module of a path between two rounds: what the group agreed on, and what was trained here since. Pure."""

from dataclasses import dataclass, replace

from torch import Tensor

from dipaco_swarm.algorithm.generations import generation_of
from dipaco_swarm.algorithm.plan import Claim
from dipaco_swarm.algorithm.state import ModuleState

OLDEST = 8
"""Progress that is more versions old than this does not count any more (docs/paper.md#late-contributions)."""


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
    """The last version whose round had our outer gradient and ended without us: a newer state may contain it.

    After a crash it may be newer than `base`, which is of the checkpoint."""
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
    def is_given(self) -> bool:
        """Whether others may have our progress since `base`, or `part` of it."""
        return self.given_at is not None and self.given_at >= self.version

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
    ours = on_top(state, local.sub_(part.params), state.version - progress.version)
    return ModuleProgress(state, since, _still_given(progress, state)), ours


def rebased(progress: ModuleProgress, state: ModuleState, local: Tensor) -> tuple[ModuleProgress, Tensor]:
    """The state that others agreed on, with our local progress on top; and the parameters to go on with.

    `local`: a copy of the parameters now, fp32 (parameters,), which is used up. Progress that is in the others' state
    already is dropped: it would count twice. So is what was trained from a state that the operator has taken back.
    """
    if _is_taken_back(progress, state):
        return ModuleProgress(state), state.params
    if state.work > progress.base.work and progress.is_given:
        return adopted(progress, state) if progress.part is None else merged(progress, state, progress.part, local)
    ours = on_top(state, local.sub_(progress.base.params), state.version - progress.version)
    return ModuleProgress(state, progress.tokens, _still_given(progress, state)), ours


@dataclass(frozen=True, eq=False)
class Resumed:
    """What is left of a checkpoint's progress with a module."""

    progress: ModuleProgress
    params: Tensor
    """To go on with: fp32 (parameters,)."""
    given: int = 0
    """Tokens that are gone as others may have them; they would count twice."""
    stale: int = 0
    """Tokens that are gone as they are too old."""
    taken_back: int = 0
    """Tokens that are gone as the operator has gone back to a state before them."""


def resumed(saved: ModuleProgress, state: ModuleState, local: Tensor) -> Resumed:
    """Go on from a checkpoint, where the group is at `state`.

    `local`: the saved parameters, fp32 (parameters,), which are used up.

    `saved.given_at` is of the last round that was begun, which may be after the checkpoint; `saved.part` is what that
    round had of the checkpoint's progress, where that is known.
    """
    if _is_taken_back(saved, state):
        return Resumed(ModuleProgress(state), state.params, taken_back=saved.tokens)
    age, part = state.version - saved.version, saved.part
    nothing = ModuleProgress(state, given_at=saved.given_at, part=Part(0, state.params))
    if age > 0 and saved.is_given:
        # what we had given is in the newest state already, or nowhere
        given = saved.tokens if part is None else part.tokens
        if part is None or not weight_at(age):
            return Resumed(nothing, state.params, given, saved.tokens - given)
        return Resumed(*merged(saved, state, part, local), given)
    if not weight_at(age):
        return Resumed(nothing, state.params, stale=saved.tokens)
    ours = on_top(state, local.sub_(saved.base.params), age)
    left = replace(saved, base=state)
    if part is None and left.is_given:
        left = replace(left, part=Part(saved.tokens, ours))  # all that was saved, and nothing of what comes from now on
    return Resumed(left, ours)


def on_top(state: ModuleState, moved: Tensor, age: int) -> Tensor:
    """Parameters to go on with: a state, and what local progress has moved, weighted by its age.

    `moved`: fp32 (parameters,), which is used up. `age`: how many versions before the state the progress began.
    """
    return (moved if age <= 1 else moved.mul_(weight_at(age))).add_(state.params)


def weight_at(age: int) -> float:
    """How much of progress counts that began so many versions ago: all of it, then less and less, then nothing."""
    if age > OLDEST:
        return 0.0
    return 1 / max(1, age)


def _is_taken_back(progress: ModuleProgress, state: ModuleState) -> bool:
    """Whether the operator has gone back with the module since this progress began."""
    return generation_of(progress.base.work) < generation_of(state.work)


def _still_given(progress: ModuleProgress, state: ModuleState) -> int | None:
    """`given_at` once this state is the base: another history of that version was made without what we gave."""
    given_at = progress.given_at
    return given_at if given_at is not None and given_at < state.version else None
