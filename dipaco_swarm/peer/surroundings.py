"""What all parts of the volunteer's program work with."""

from dataclasses import dataclass

from dipaco_swarm.dashboard.screens import Screen
from dipaco_swarm.errors import UnreachableError
from dipaco_swarm.events.volunteer import FilesNotSent, Recovered
from dipaco_swarm.machine.clock import Clock
from dipaco_swarm.machine.notices import Notices
from dipaco_swarm.machine.stopping import Stopped, Stopping
from dipaco_swarm.machine.watching import ALWAYS_AT_WORK, Manners
from dipaco_swarm.peer.answering import AnswerDesk
from dipaco_swarm.peer.book import TokenBook
from dipaco_swarm.peer.workbench import Workbench
from dipaco_swarm.settings import PeerSettings
from dipaco_swarm.swarm.interface import Swarm

BLOB_SECONDS = 600.0
"""A holder that has not sent a file by then is not sending it."""
FETCH_PAUSE_SECONDS = 5.0


@dataclass(frozen=True)
class Surroundings:
    """The run, and the machine that its volunteer lives on."""

    settings: PeerSettings
    swarm: Swarm
    screen: Screen
    stop: Stopping
    workbench: Workbench
    notices: Notices
    book: TokenBook
    run: str
    """How checkpoints and snapshots name the run."""
    desk: AnswerDesk | None = None
    """Where questions are answered beside training; None: nowhere."""
    manners: Manners = ALWAYS_AT_WORK
    """Whether this machine is for us just now."""

    @property
    def clock(self) -> Clock:
        return self.swarm.clock

    def fetch(self, digest: str) -> bytes:
        """A blob of the run; keeps asking while nobody has it. Raises Stopped when asked to stop meanwhile."""
        while True:
            try:
                blob = self.swarm.fetch_blob(digest, timeout=BLOB_SECONDS)
                self.notices.recovered("files", Recovered("files"))
                return blob
            except UnreachableError:
                if self.stop():
                    raise Stopped from None
                self.notices.failing("files", FilesNotSent(again_seconds=FETCH_PAUSE_SECONDS))
                if self.stop.wait(FETCH_PAUSE_SECONDS):
                    raise Stopped from None
