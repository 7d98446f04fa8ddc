"""Synchronous: every member takes exactly `inner_steps`, and waits for everybody alive."""

from dipaco_swarm.algorithm.pacing.pacing import GroupView, Pacing

PATIENCE = 10.0
"""Everybody waits for everybody alive: ten times as long as its own training took..."""
PATIENCE_FLOOR_SECONDS = 3600.0
"""... and at least this: no machine is so busy for so long. Who is gone is noticed much sooner, by asking."""


class Synchronous(Pacing):
    name = "synchronous"
    ends_early = False
    whole = True

    def is_due(self, view: GroupView) -> bool:
        return view.tokens > 0

    def patience(self, training_seconds: float) -> float:
        return max(PATIENCE_FLOOR_SECONDS, PATIENCE * training_seconds)


SYNCHRONOUS = Synchronous()
