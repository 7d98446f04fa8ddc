"""Which manifest the operator has published last, as far as this peer knows."""

import logging

from dipaco_swarm.dashboard.screens import Screen
from dipaco_swarm.errors import ManifestError
from dipaco_swarm.events.volunteer import ForgedManifest
from dipaco_swarm.machine.notices import Notices
from dipaco_swarm.run.manifest import Manifest
from dipaco_swarm.run.signature import open_manifest
from dipaco_swarm.swarm.interface import Swarm

log = logging.getLogger(__name__)


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
