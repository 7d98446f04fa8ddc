"""Which manifest the operator has published last, as far as this peer knows."""

import logging
from itertools import chain, repeat

from dipaco_swarm.dashboard.screens import Screen
from dipaco_swarm.errors import ManifestError, UnreachableError
from dipaco_swarm.events.volunteer import AwaitingManifest, ForgedManifest
from dipaco_swarm.machine.notices import Notices
from dipaco_swarm.peer.keeping import MANIFEST_SECONDS, has_been_in_run, kept_manifest
from dipaco_swarm.peer.surroundings import Surroundings
from dipaco_swarm.run.manifest import Manifest
from dipaco_swarm.run.signature import open_manifest
from dipaco_swarm.swarm.interface import Swarm

log = logging.getLogger(__name__)

MANIFEST_PAUSES = (2, 4, 8, 16, 30)
"""A bootstrap node that has just been started has its manifest after a minute."""


def first_manifest(around: Surroundings) -> Manifest | None:
    """The run's manifest: what is found, or what is kept here where that is newer. None when asked to stop.

    Raises, for who has never been in the run, UnreachableError when nobody here knows it, ManifestError when all that
    there is is not its operator's. Who has been waits: a node that comes back reads all modules first.
    """
    address, returns = around.settings.address, has_been_in_run(around.settings.home)
    refused: ManifestError | None = None
    for pause in chain(MANIFEST_PAUSES, repeat(MANIFEST_PAUSES[-1]) if returns else (None,)):
        try:
            signed = around.swarm.newest_manifest(timeout=MANIFEST_SECONDS)
        except UnreachableError:
            if pause != MANIFEST_PAUSES[0] and not returns:
                raise
            signed = None  # a node in its first second does not speak for its run yet
        except ManifestError as error:
            signed, refused = None, error  # anybody may answer: others may come who have the right one
        if signed is not None:
            found = open_manifest(signed, address.fingerprint)
            return newer(found, kept_manifest(around.settings.home, found, address.fingerprint))
        if pause is not None:
            around.screen.event(AwaitingManifest(pause))
        if around.stop.wait(pause or 0):
            return None
    raise refused or UnreachableError(address.nobody_knows_it)


def newer(ours: Manifest, other: Manifest | None) -> Manifest:
    """The one with the higher revision: nobody goes back, whatever is said to be the newest."""
    return other if other is not None and other.revision > ours.revision else ours


class ManifestWatch:
    """Opens what the swarm finds in the background, so that a silent bootstrap node never holds up training."""

    def __init__(self, swarm: Swarm, fingerprint: str, screen: Screen) -> None:
        self._swarm = swarm
        self._fingerprint = fingerprint
        self._notices = Notices(screen.event, swarm.clock)
        self._signed: bytes | None = None
        self._newest: Manifest | None = None

    @property
    def newest(self) -> Manifest | None:
        """The manifest with the highest revision so far; None before the first. Never waits."""
        try:
            signed = self._swarm.known_manifest()
        except ManifestError as error:
            log.debug("ignored a manifest: %s", error)
            self._notices.failing("manifest", ForgedManifest())
            return self._newest
        if signed is not None and signed != self._signed:
            manifest = open_manifest(signed, self._fingerprint)
            if self._newest is None or manifest.revision > self._newest.revision:
                self._newest = manifest
            self._signed = signed
        return self._newest
