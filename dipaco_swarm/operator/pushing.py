"""`serve --push-best`: every so many versions the run's model goes to the Hugging Face hub, as it is then.

A program of its own writes the folder and uploads it, by the same `export` that people use: it takes the memory of the
whole model, and time, and the node has its run to keep.
"""

import json
import logging
import shutil
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from dipaco_swarm.dashboard.screens import Screen
from dipaco_swarm.dashboard.views import BootstrapView, SwarmStatus, View
from dipaco_swarm.events.event import Event
from dipaco_swarm.events.pushing import NotPushed, Pushed
from dipaco_swarm.files import keep_if_possible
from dipaco_swarm.machine.beside import BESIDE_THREADS, Beside, Work
from dipaco_swarm.settings import Push

log = logging.getLogger(__name__)

FOLDER = "pushed"
"""In a node's home: the model that was pushed last, or could not be."""
NOTE = "pushed.json"
"""In a node's home: what was pushed last."""
MAX_WHY = 300
EXPORT = "from dipaco_swarm.cli.swarm import main; main()"


@dataclass(frozen=True)
class Moment:
    """How far the run was."""

    stage: int
    version: int
    """That every module of the stage has."""
    finished: bool = False

    def is_due(self, since: "Moment", every: int) -> bool:
        """Whether a model of now is worth pushing after one of `since`: `every` versions on, or a stage, or the end."""
        if self.stage == since.stage and self.version == since.version:
            return False
        return self.stage != since.stage or self.version >= since.version + every or self.finished


NOTHING = Moment(0, 0)


class PushingScreen:
    """A screen that is told how far the run is, and pushes the model when that is due; all else it passes on."""

    def __init__(self, screen: Screen, home: Path, push: Push, beside: Beside = BESIDE_THREADS) -> None:
        """`home`: of the bootstrap node."""
        self._screen = screen
        self._home = home
        self._push = push
        self._beside = beside
        self._last = _noted(home / NOTE)
        """What was pushed, or tried."""
        self._work: Work[str | None] | None = None

    def show(self, view: View) -> None:
        if isinstance(view, BootstrapView):
            self._look(view.status)
        self._screen.show(view)

    def event(self, event: Event) -> None:
        self._screen.event(event)

    def _look(self, status: SwarmStatus) -> None:
        if self._work is not None:
            if self._work.is_over:
                self._end(self._work.result())
                self._work = None
            return
        now = Moment(status.stage, status.version_min, status.finished)
        if now.is_due(self._last, self._push.every):
            self._last = now
            self._work = self._beside.begin(self._export, "push")

    def _export(self) -> str | None:
        """In another thread. Why it came to nothing; None when it did not."""
        out = self._home / FOLDER
        shutil.rmtree(out, ignore_errors=True)  # the one before
        command = [sys.executable, "-c", EXPORT, "export", "--home", self._home, "--out", out, "--best", "--push"]
        try:
            ended = subprocess.run([*map(str, command), self._push.name], capture_output=True, text=True, check=False)
        except OSError as error:
            return str(error)
        if ended.returncode == 0:
            return None
        log.debug("%s", ended.stderr)
        said = ended.stderr.strip().splitlines() or [f"the export ended with status {ended.returncode}"]
        return said[-1][:MAX_WHY]

    def _end(self, why: str | None) -> None:
        name, last = self._push.name, self._last
        if why is None:
            self._screen.event(Pushed(name, last.stage, last.version))
            keep_if_possible(self._home / NOTE, json.dumps(asdict(last)).encode())
        else:
            self._screen.event(NotPushed(name, last.stage, last.version, why))


def _noted(file: Path) -> Moment:
    """What was pushed last by an earlier life of this node."""
    try:
        return Moment(**json.loads(file.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return NOTHING
    except (ValueError, TypeError):
        log.warning("%s is damaged; the model is pushed again", file)
        return NOTHING
