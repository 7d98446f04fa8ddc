"""Error feedback: what a lossy codec leaves unsent of an outer gradient is added to the next one of the module."""

from collections.abc import Callable, Mapping

from torch import Tensor

from dipaco_swarm.algorithm.paths import ModuleId, PathIndex
from dipaco_swarm.swarm.interface import Contribution, Residual
from dipaco_swarm.swarm.round.codecs.codec import Codec


class ErrorFeedback:
    """The residuals of the one path that we train. Used within rounds and between them, by one thread at a time."""

    def __init__(self, codec: Codec, zeros: Callable[[int], Tensor]) -> None:
        """`zeros`: room for so many numbers, fp32, that are looked at once a round."""
        self._exact = codec.exact
        self._zeros = zeros
        self._of: tuple[int, PathIndex] | None = None
        """Stage and path."""
        self._residuals: dict[ModuleId, Residual] = {}

    def residuals(self, stage: int, path: PathIndex) -> dict[ModuleId, Residual]:
        """What is unsent of each module; empty for a path that we do not train."""
        return dict(self._residuals) if self._of == (stage, path) else {}

    def resume(self, stage: int, path: PathIndex, residuals: Mapping[ModuleId, Residual]) -> None:
        """Go on with what an earlier life had; what is left of another path is of no use any more."""
        self._of, self._residuals = (stage, path), {} if self._exact else dict(residuals)

    def left_over(self, contribution: Contribution) -> Tensor | None:
        """What is to be added to an outer gradient, fp32 (parameters,).

        Not the residual of another version: a round whose end we did not hear may have it, or it is too old.
        """
        residual = self.residuals(contribution.group.stage, contribution.path).get(contribution.group.module)
        return None if residual is None or residual.version != contribution.version else residual.vector

    def room_for(self, contribution: Contribution) -> Tensor | None:
        """Where the loss of this contribution is written, zeros, fp32 (parameters,); None with an exact codec."""
        return None if self._exact else self._zeros(len(contribution.gradient))

    def keep(self, contribution: Contribution, unsent: Tensor) -> None:
        """The round is decided, and this is what it has not been sent."""
        stage, path = contribution.group.stage, contribution.path
        residual = Residual(contribution.version + 1, unsent)
        self.resume(stage, path, {**self.residuals(stage, path), contribution.group.module: residual})
