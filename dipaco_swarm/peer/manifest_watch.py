"""Which manifest the operator has published last, looked for in the background."""

import logging
import threading

from dipaco_swarm.dashboard.screens import Screen
from dipaco_swarm.errors import ManifestError, UnreachableError
from dipaco_swarm.machine.notices import Weather
from dipaco_swarm.manifest import Manifest, open_manifest
from dipaco_swarm.swarm.interface import Swarm

log = logging.getLogger(__name__)

MANIFEST_SECONDS = 20.0
WATCH_SECONDS = 3.0
"""How often the manifest is looked for in the background."""


class ManifestWatch:
    """Looks for newer manifests, so that a silent bootstrap node never holds up training."""

    def __init__(self, swarm: Swarm, fingerprint: str, screen: Screen) -> None:
        self._swarm = swarm
        self._fingerprint = fingerprint
        self._weather = Weather(screen.event)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, name="manifest", daemon=True)
        self.newest: Manifest | None = None

    def __enter__(self) -> "ManifestWatch":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()

    def _look(self) -> None:
        while not self._over.wait(WATCH_SECONDS if self.newest else 0.1):
            try:
                signed = self._swarm.newest_manifest(timeout=MANIFEST_SECONDS)
            except ManifestError as error:
                log.debug("ignored a manifest: %s", error)
                self._weather.bad("manifest", "somebody sends a manifest that is not the operator's; it is ignored")
                continue
            except UnreachableError as error:
                log.debug("%s", error)
                continue
            if signed is not None:
                manifest = open_manifest(signed, self._fingerprint)
                if self.newest is None or manifest.revision > self.newest.revision:
                    self.newest = manifest
