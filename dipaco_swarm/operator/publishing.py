"""The run's newest manifest: signed, on the disk before anybody hears of it, and published again before it expires."""

import math

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from dipaco_swarm.operator.surroundings import Surroundings
from dipaco_swarm.run.manifest import Manifest
from dipaco_swarm.run.signature import fingerprint_of, sign_manifest

REPUBLISH_SECONDS = 45.0
"""A DHT record lives at most two minutes; the manifest's is renewed well before."""


class Publisher:
    """Signs and publishes. Raises HomeError while the disk has no room for the manifest."""

    def __init__(self, around: Surroundings, key: Ed25519PrivateKey) -> None:
        self._around = around
        self._key = key
        self._published = -math.inf
        """When the manifest was published last, by the clock that counts sleep."""
        self._on_disk: bytes | None = None
        """The manifest that was written last."""

    @property
    def fingerprint(self) -> str:
        """Of the operator's public key."""
        return fingerprint_of(self._key.public_key())

    def publish(self, manifest: Manifest) -> None:
        signed = sign_manifest(manifest, self._key)
        if signed != self._on_disk:  # before anybody hears of it: after a restart we must not know less
            self._around.home.keep_manifest(signed)
            self._on_disk = signed
        self._around.swarm.publish_manifest(signed)
        self._published = self._around.swarm.clock.boottime()

    def renew(self, manifest: Manifest) -> None:
        """Publish the manifest if its record is about to expire, or has expired."""
        if self._around.swarm.clock.boottime() - self._published > REPUBLISH_SECONDS:
            self.publish(manifest)

    def expire(self) -> None:
        """Have the next `renew` publish: there is something new, or nobody has heard of us for long."""
        self._published = -math.inf
