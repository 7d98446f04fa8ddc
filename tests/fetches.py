"""Fetches whose end a test decides."""

from dataclasses import dataclass

from dipaco_swarm.algorithm.state import ModuleState


@dataclass(frozen=True, eq=False)
class Over:
    """A `FetchUnderWay` that is over: this came, or nothing."""

    sent: ModuleState | None
    is_over: bool = True

    def state(self, timeout: float | None = None) -> ModuleState | None:
        return self.sent

    def cancel(self) -> None:
        """It is over."""
