"""The run's newest manifest: signed, on the disk before anybody hears of it, and published again before it expires."""

import math

from dipaco_swarm.events.operator import Superseded
from dipaco_swarm.operator.surroundings import Surroundings
from dipaco_swarm.run.manifest import Manifest
from dipaco_swarm.run.signature import (
    Deputy,
    Signer,
    delegation_to,
    fingerprint_of_signer,
    keys_in,
    open_manifest,
    public_hex,
    sign_manifest,
)

REPUBLISH_SECONDS = 45.0
"""A DHT record lives at most two minutes; the manifest's is renewed well before."""


class Publisher:
    """Signs and publishes. Raises HomeError while the disk has no room for the manifest."""

    def __init__(self, around: Surroundings, signer: Signer) -> None:
        self._around = around
        self._signer = signer
        self._published = -math.inf
        """When the manifest was published last, by the clock that counts sleep."""
        self._on_disk: bytes | None = None
        """The manifest that was written last."""

    @property
    def fingerprint(self) -> str:
        """Of the operator's public key."""
        return fingerprint_of_signer(self._signer)

    @property
    def key(self) -> str:
        """The public key that we sign with, in hexadecimal."""
        return public_hex(self._signer.key if isinstance(self._signer, Deputy) else self._signer)

    @property
    def signed(self) -> bytes | None:
        """What was published last."""
        return self._on_disk

    def delegation_to(self, key: str) -> str | None:
        """The operator's signature under a standby's public key; None: we are a standby ourselves."""
        return None if isinstance(self._signer, Deputy) else delegation_to(key, self._signer)

    def is_superseded(self, manifest: Manifest) -> bool:
        """Whether another node of the operator's has taken over; its manifest is on the disk then."""
        swarm = self._around.swarm
        if not manifest.delegates:
            return False
        if self._on_disk is None:  # we have just come back
            swarm.newest_manifest(timeout=swarm.timing.look_up)
            swarm.follow_manifest()
        known = swarm.known_manifest()
        if known is None or known == self._on_disk:
            return False
        newest = open_manifest(known, self.fingerprint)
        if newest.revision <= manifest.revision or keys_in(known)[1] == self.key:
            return False
        self._around.home.keep_manifest(known)
        self._around.screen.event(Superseded(newest.revision))
        return True

    def publish(self, manifest: Manifest) -> None:
        signed = sign_manifest(manifest, self._signer)
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
