"""A role of `dipaco_swarm/testing/cast.py` as a real process: the command `dipaco-peer`, and somebody else inside."""

import sys
import time
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from dipaco_swarm.machine.stopping import Stopping
from dipaco_swarm.peer import program
from dipaco_swarm.peer.volunteer import Volunteer
from dipaco_swarm.settings import PeerSettings
from dipaco_swarm.swarm.libp2p import opening
from dipaco_swarm.swarm.networked import NetworkedSwarm, networked_swarm
from dipaco_swarm.testing.cast import ROLES
from dipaco_swarm.testing.hostile import Claimer
from dipaco_swarm.testing.roles import Member, Outsider, Surroundings
from dipaco_swarm.testing.saboteur import Role as Saboteur
from dipaco_swarm.testing.saboteur import bend

FORGED_FILE = "forged.txt"
"""In its home: digests of states that it has made up, one a line."""
DONE_FILE = "done.txt"
"""In its home: when a member did what it does, by `time.time`, and in a round of which module, one a line."""


class _Written(dict[str, int]):
    """What a stranger has forged, in a file as well: it will be killed."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self._file = file

    def __setitem__(self, digest: str, version: int) -> None:
        super().__setitem__(digest, version)
        with self._file.open("a") as lines:
            lines.write(f"{digest}\n")


def _write_done(file: Path, module: str) -> None:
    """It will be killed, and has no other way to say when it did what it does."""
    with file.open("a") as lines:
        lines.write(f"{time.time()} {module}\n")


class _Acting:
    """What stands where the program has its volunteer."""

    def __init__(self, outsider: Outsider, swarm: NetworkedSwarm, around: Surroundings) -> None:
        self._outsider = outsider
        self._swarm = swarm
        self._around = around

    def live(self) -> None:
        self._outsider.live(self._swarm, self._around)


def _bend(role: Saboteur) -> None:
    """What this process says over its streams goes through the role from here on."""

    def bent(portal: Any, node: Any, *rest: Any, **more: Any) -> Any:
        return networked_swarm(portal, bend(node, role), *rest, **more)

    setattr(opening, "networked_swarm", bent)  # noqa: B010  # for good, as below


def act(role: str) -> None:
    """From here on a peer that this process starts has this role."""

    bent = ROLES[role].make()
    if isinstance(bent, Saboteur):
        _bend(bent)

    def volunteer(
        settings: PeerSettings, swarm: Any, screen: Any, stop: Stopping, *rest: Any, **more: Any
    ) -> Volunteer | _Acting:
        around = Surroundings(stop, Random(), settings.path or 0, settings.address.fingerprint)
        played = bent
        if isinstance(played, Saboteur):
            played.tell = partial(_write_done, settings.home / DONE_FILE)
            played.joins(swarm)
            return Volunteer(settings, swarm, screen, stop, *rest, **more)
        if isinstance(played, Member):
            return Volunteer(settings, played.bend(swarm, around), screen, stop, *rest, **more)
        if isinstance(played, Claimer):
            played.forged = _Written(settings.home / FORGED_FILE)
        assert isinstance(played, Outsider)
        return _Acting(played, swarm, around)

    setattr(program, "Volunteer", volunteer)  # noqa: B010  # another class, for good: this process is not a volunteer


def main() -> None:
    """The command, for who starts programs: the role comes before the arguments of `dipaco-peer`."""
    from dipaco_swarm.cli import peer

    act(sys.argv.pop(1))
    peer.main()
