"""Reducers that made wrong averages: members show them to the node, which makes these anew and tells the operator."""

import math

from dipaco_swarm.events.admission import PeersConvicted
from dipaco_swarm.operator.surroundings import Surroundings
from dipaco_swarm.run.manifest import Manifest
from dipaco_swarm.swarm.checks import Convicted

PAUSE_SECONDS = 60.0
"""Names cost nothing, and who has many may have them convicted one after the other: at most a line a minute."""


class Convictions:
    """What the bootstrap node has heard of them."""

    def __init__(self, around: Surroundings) -> None:
        self._around = around
        self._codec: str | None = None
        """Of the rounds that accusations are heard about."""
        self._told: set[str] | None = None
        """Names that the operator knows of; None: nobody was looked at yet."""
        self._told_at = -math.inf

    def look(self, manifest: Manifest) -> None:
        """Hear accusations of the stage's rounds, and tell of whom they have convicted since."""
        swarm, codec = self._around.swarm, manifest.rules.wire.codec
        if codec != self._codec:
            swarm.court.open(codec)
            self._codec = codec
        bans = [ban for ban in swarm.door.bans.all() if isinstance(ban, Convicted)]
        if self._told is None:
            self._told = {ban.reducer for ban in bans}  # of a life before this one
        news, now = [ban for ban in bans if ban.reducer not in self._told], swarm.clock.monotonic()
        if not news or now < self._told_at + PAUSE_SECONDS:
            return
        self._told |= {ban.reducer for ban in news}
        self._told_at = now
        first = news[0]
        self._around.screen.event(PeersConvicted(first.reducer, first.module, first.version + 1, len(news) - 1))
