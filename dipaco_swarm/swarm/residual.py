"""What a lossy codec has left unsent."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, eq=False)
class Residual:
    """Error feedback: what a lossy codec has left unsent of a module's outer gradients, for the next one."""

    version: int
    """The version that the next outer gradient starts from; the residual is part of that one or of none."""
    vector: Tensor
    """fp32, shape (parameters,)."""
