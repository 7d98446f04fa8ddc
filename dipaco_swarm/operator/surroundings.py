"""What all parts of the operator's program work with."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from dipaco_swarm.dashboard.screens import Screen
from dipaco_swarm.errors import HomeError, UnreachableError
from dipaco_swarm.events.volunteer import CannotWrite, Recovered
from dipaco_swarm.machine.notices import Notices
from dipaco_swarm.machine.stopping import Stopped, Stopping
from dipaco_swarm.operator.home import OperatorHome
from dipaco_swarm.operator.workshop import Workshop
from dipaco_swarm.run.config import RunConfig
from dipaco_swarm.swarm.interface import Swarm

T = TypeVar("T")

BLOB_SECONDS = 600.0
"""A holder that has not sent a file by then is not sending it."""
WRITE_AGAIN_SECONDS = 20.0
"""After a full disk. Opening a stage is much work to do in vain every second."""


@dataclass
class Surroundings:
    """The run, and the machine that its operator's node lives on."""

    config: RunConfig
    """Another one, when the operator extends the run."""
    swarm: Swarm
    home: OperatorHome
    workshop: Workshop
    screen: Screen
    stop: Stopping

    def fetch(self, digest: str) -> bytes:
        """A blob of the run. Raises UnreachableError when nobody sends it, Stopped when asked to stop meanwhile."""
        try:
            return self.swarm.fetch_blob(digest, timeout=BLOB_SECONDS)
        except UnreachableError:
            if self.stop():
                raise Stopped from None
            raise


class Disk:
    """Work that writes: while the disk is full it waits, and the run goes on."""

    def __init__(self, around: Surroundings) -> None:
        self._clock = around.swarm.clock
        self._notices = Notices(around.screen.event, around.swarm.clock)
        self._again_at = -math.inf

    def write(self, work: Callable[[], T], *, now: bool = False) -> T | None:
        """What `work` returns; None while the disk is full: call it again later. `now`: do not wait for later."""
        if not now and self._clock.boottime() < self._again_at:
            return None
        try:
            result = work()
        except HomeError as error:
            self._notices.failing("disk", CannotWrite(error=str(error), goes_on="the run"))
            self._again_at = self._clock.boottime() + WRITE_AGAIN_SECONDS
            return None
        self._notices.recovered("disk", Recovered("disk"))
        return result
