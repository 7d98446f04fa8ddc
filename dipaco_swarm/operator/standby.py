"""A second bootstrap node: it serves the manifest, introduces newcomers, keeps every module; and takes over when told.

It signs nothing until then. Its key is its own; the operator's has signed it, and that signature is in the manifest.
"""

from functools import partial

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from dipaco_swarm.dashboard.screens import Screen
from dipaco_swarm.dashboard.status import status_of
from dipaco_swarm.dashboard.views import BootstrapView
from dipaco_swarm.events.operator import NotPromoted, Promoted, Serving, StandingBy
from dipaco_swarm.machine.stopping import Stopping
from dipaco_swarm.operator.admissions import Admissions
from dipaco_swarm.operator.appointing import full_address
from dipaco_swarm.operator.home import OperatorHome
from dipaco_swarm.operator.keeping import Keeping
from dipaco_swarm.operator.publishing import REPUBLISH_SECONDS
from dipaco_swarm.operator.surroundings import Disk, Surroundings
from dipaco_swarm.operator.workshop import Workshop
from dipaco_swarm.run.manifest import Manifest
from dipaco_swarm.run.signature import Deputy, Signer, keys_in, open_manifest, public_hex
from dipaco_swarm.swarm.interface import Swarm

TICK_SECONDS = 1.0
AHEAD = 1000
"""Revisions that a node which takes over leaves free: the one before may have published some that nobody knows of."""


class Standby:
    """What it does, on any swarm. `run` is all of it."""

    def __init__(
        self,
        key: Ed25519PrivateKey,
        fingerprint: str,
        first: bytes,
        swarm: Swarm,
        home: OperatorHome,
        screen: Screen,
        stop: Stopping,
        address: str,
        workshop: Workshop,
    ) -> None:
        """`first`: the newest manifest that is known. `address`: of the run, with the places of this node."""
        self._key = key
        self._fingerprint = fingerprint
        self._signed = first
        self._manifest = open_manifest(first, fingerprint)
        self._around = Surroundings(self._manifest.config, swarm, home, workshop, screen, stop)
        self._address = address
        self._disk = Disk(self._around)
        self._keeping = Keeping(self._around, self._disk)
        self._admissions = Admissions(self._around)
        self._published = float("-inf")
        self._name = ""
        """What the operator is told to appoint."""

    def run(self, name: str) -> tuple[Manifest, Signer] | None:
        """Stand by until told to take over: the manifest to lead with, and how to sign it; None: asked to stop.

        `name`: what the operator is to appoint.
        """
        around, self._name = self._around, name
        around.swarm.follow_manifest()
        self._take_up(self._signed, self._manifest)
        self._keeping.take_up(self._manifest)
        around.screen.event(StandingBy(name, appointed=self._signer() is not None))
        around.screen.event(Serving(full_address(self._address, self._manifest)))
        while not around.stop():
            self._follow()
            self._keeping.catch_up(self._manifest.stage)
            self._disk.write(partial(self._keeping.write, self._manifest.stage))
            self._publish()
            self._show()
            if around.home.was_told_to_take_over():
                signer = self._signer()
                if signer is not None:
                    self._disk.write(partial(self._keeping.write, self._manifest.stage), now=True)
                    around.screen.event(Promoted(self._manifest.revision + AHEAD))
                    return self._ahead(), signer
                around.screen.event(NotPromoted(name))
            around.stop.wait(TICK_SECONDS)
        self._disk.write(partial(self._keeping.write, self._manifest.stage), now=True)
        return None

    def _ahead(self) -> Manifest:
        """The manifest with a revision above all that anybody has published."""
        return self._manifest.model_copy(update={"revision": self._manifest.revision + AHEAD})

    def _signer(self) -> Signer | None:
        return signer_in(self._signed, self._manifest, self._key)

    def _follow(self) -> None:
        """Go on with the newest manifest."""
        signed = self._around.swarm.known_manifest()
        if signed is None or signed == self._signed:
            return
        manifest = open_manifest(signed, self._fingerprint)
        if manifest.revision <= self._manifest.revision:
            return
        before, could_sign = self._manifest.stage.index, self._signer() is not None
        self._take_up(signed, manifest)
        if self._signer() is not None and not could_sign:
            self._around.screen.event(StandingBy(self._name, appointed=True))
        if manifest.stage.index != before:
            self._keeping.take_up(manifest)

    def _take_up(self, signed: bytes, manifest: Manifest) -> None:
        """Keep it, and all that it names: nobody else may have that tomorrow."""
        around = self._around
        self._signed, self._manifest = signed, manifest
        around.config = manifest.config
        around.workshop.follow(manifest.config)
        around.home.keep_manifest(signed)
        around.home.keep_address(full_address(self._address, manifest))
        for digest in files_of(manifest):
            around.fetch(digest)
        self._admissions.take_up(manifest)
        self._published = float("-inf")

    def _publish(self) -> None:
        """Say that there is a manifest, before what was said of it expires."""
        now = self._around.swarm.clock.boottime()
        if now - self._published > REPUBLISH_SECONDS:
            self._around.swarm.publish_manifest(self._signed)
            self._published = now

    def _show(self) -> None:
        swarm, manifest, rounds = self._around.swarm, self._manifest, self._manifest.stage.rounds
        traffic, status = swarm.traffic(), status_of(swarm, manifest)
        progress = None if rounds is None else min(1.0, status.version_min / rounds)
        activity = "standing by" if self._signer() is not None else "standing by; the operator has not appointed it yet"
        address = full_address(self._address, manifest)
        self._around.screen.show(BootstrapView(address, activity, status, progress, traffic.sent, traffic.received))


def signer_in(signed: bytes, manifest: Manifest, key: Ed25519PrivateKey) -> Signer | None:
    """How a node with this key signs; None: it may not. The operator's own key needs nobody's word."""
    operator, ours = keys_in(signed)[0], public_hex(key)
    if operator == ours:
        return key
    appointed = next((each for each in manifest.delegates if each.key == ours), None)
    return None if appointed is None else Deputy(key, operator, appointed.signature)


def files_of(manifest: Manifest) -> tuple[str, ...]:
    """Digests of all blobs that a peer may ask for, in the current stage or to get ready for the one that comes."""
    stage, closing, coming = manifest.stage, manifest.closing, manifest.coming
    routers = (stage.router, None if coming is None else coming.router)
    named = (*routers, manifest.scoring, manifest.window_router, manifest.peers)
    return tuple(
        dict.fromkeys(
            (
                manifest.tokenizer,
                *manifest.feature_seeds,
                *stage.seeds.values(),
                *stage.momenta.values(),
                *(() if closing is None else closing.params.values()),
                *(digest for digest in named if digest is not None),
            )
        )
    )
