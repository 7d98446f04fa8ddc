"""Synchronous: every member takes exactly `inner_steps`, and waits for everybody alive."""

from dipaco_swarm.algorithm.pacing.pacing import GroupView, Pacing

PATIENCE = 10.0
"""Everybody waits for everybody alive: ten times as long as its own training took..."""
PATIENCE_FLOOR_SECONDS = 120.0
"""... and at least this, for the first rounds on a busy machine. Dead peers are noticed much sooner."""


class Synchronous(Pacing):
    name = "synchronous"
    ends_early = False

    def is_due(self, view: GroupView) -> bool:
        return True

    def patience(self, training_seconds: float) -> float:
        return max(PATIENCE_FLOOR_SECONDS, PATIENCE * training_seconds)


SYNCHRONOUS = Synchronous()
