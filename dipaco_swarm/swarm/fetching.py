"""A state that comes from others: what it may be made from, and while it is on its way."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from dipaco_swarm.algorithm.state import ModuleState, Room
from dipaco_swarm.swarm.encoded_average import EncodedAverage

Follow = Callable[[ModuleState, Sequence[EncodedAverage], Room], ModuleState | None]
"""The state that these averages lead to from this one, each an outer step; None when one starts from another state."""


@dataclass(frozen=True, eq=False)
class Older:
    """A state that we have, and how averages lead from it to newer ones."""

    state: ModuleState
    follow: Follow
    """Called in a thread of the swarm's."""


class FetchUnderWay(Protocol):
    """A state that others send to us, while our program does something else."""

    @property
    def is_over(self) -> bool: ...

    def state(self, timeout: float | None = None) -> ModuleState | None:
        """Wait until it is over: the state, verified; None when nobody sent it in time.

        `timeout`: seconds to wait; None where it is not over by then.
        """
        ...

    def cancel(self) -> None:
        """Let go of it; what has arrived is kept for the next asking."""
        ...
