"""Whether a volunteer may take part, and whom it listens to: what the operator's register says, as it changes."""

from dipaco_swarm.algorithm.generations import taken_back
from dipaco_swarm.algorithm.stages import generations
from dipaco_swarm.errors import NotAdmittedError, UnreachableError
from dipaco_swarm.events.volunteer import AwaitingAdmission
from dipaco_swarm.machine.stopping import Stopped
from dipaco_swarm.path_in_training import PathInTraining
from dipaco_swarm.peer.manifest_watch import ManifestWatch, newer
from dipaco_swarm.peer.surroundings import Surroundings
from dipaco_swarm.run.manifest import Manifest
from dipaco_swarm.run.register import MAX_REGISTER_BYTES, Register
from dipaco_swarm.swarm.door import Admission

SHOW_SECONDS = 30.0
ADMITTED_SECONDS = 120.0
"""So long after it has taken an invitation, the bootstrap node has published that its peer is admitted."""
LOOK_SECONDS = 1.0
REGISTER_SECONDS = 60.0


class Admittance:
    """A volunteer's part in it."""

    def __init__(self, around: Surroundings) -> None:
        self._around = around
        self._watch = ManifestWatch(around.swarm, around.settings.address.fingerprint, around.screen)
        self._register = Register()
        self._went_by: tuple[str | None, str] | None = None
        """The register's digest, and whom the run takes; None before the first manifest."""
        self._door = around.swarm.door

    def has_moved_on(self, peer: PathInTraining) -> bool:
        """Whether the run is known to be in a later stage, or its operator to have gone back with a module of ours."""
        newest = self._watch.newest
        if newest is None or newest.stage.index < peer.stage:
            return False
        return newest.stage.index > peer.stage or bool(taken_back(peer.base, generations(newest.stage)))

    def seen(self, ours: Manifest) -> Manifest:
        """The newest manifest, in the middle of something: nobody goes by its register yet."""
        return newer(ours, self._watch.newest)

    def newest(self, ours: Manifest) -> Manifest:
        """The newest manifest, whose register we go by from now on. Raises NotAdmittedError when we may not take part
        any more."""
        manifest = newer(ours, self._watch.newest)
        self.follow(manifest)
        if not self._door.admission.allows(self._around.swarm.peer):
            raise NotAdmittedError(
                f"the run {manifest.config.name} takes invited peers only from now on, and its operator has not "
                f"admitted this one. What it has trained is kept here. Ask to be admitted by name: "
                f"{self._around.swarm.peer}"
            )
        return manifest

    def enter(self, manifest: Manifest) -> Manifest:
        """The manifest by which we may take part: this one or, once an invitation has been taken, a later one.

        Raises NotAdmittedError when we may not, Stopped when asked to stop meanwhile.
        """
        self.follow(manifest)
        if self._is_admitted(manifest):
            return manifest
        around, run = self._around, manifest.config.name
        code = around.settings.address.invitation
        if code is None:
            raise NotAdmittedError(
                f"the run {run} takes invited peers only. Ask its operator for an invitation, which comes behind the "
                f"run address, or to admit this peer by its name: {around.swarm.peer}"
            )
        if self._door.show(code, timeout=SHOW_SECONDS) is False:
            raise NotAdmittedError(
                f"the run {run} does not take the invitation in the run address: another peer has used it, or "
                f"this run never had it. Ask for another one, or to be admitted by name: {around.swarm.peer}"
            )
        around.screen.event(AwaitingAdmission(str(around.swarm.peer)))
        until = around.swarm.clock.monotonic() + ADMITTED_SECONDS
        while around.swarm.clock.monotonic() < until:
            if around.stop.wait(LOOK_SECONDS):
                raise Stopped
            manifest = self.seen(manifest)
            self.follow(manifest)
            if self._is_admitted(manifest):
                return manifest
        raise NotAdmittedError(
            f"the bootstrap node of {run} has not admitted this peer within {ADMITTED_SECONDS:.0f} s; it may be down: "
            f"try again later with the same run address. This peer's name is {around.swarm.peer}"
        )

    def follow(self, manifest: Manifest) -> None:
        """Go by a newer register or other rules, if there are any. Raises NotAdmittedError when it bans us."""
        kind = manifest.config.admission.kind
        if (manifest.peers, kind) == self._went_by:
            return
        if manifest.peers is not None:
            try:
                data = self._around.swarm.fetch_blob(manifest.peers, timeout=REGISTER_SECONDS, limit=MAX_REGISTER_BYTES)
            except UnreachableError:
                return  # the one before counts until somebody sends it
            self._register = Register.read(data)
        self._went_by = manifest.peers, kind
        self._door.admission = Admission.by(self._register, invited_only=kind == "invited")
        why = self._register.banned.get(self._around.swarm.peer)
        if why is not None:
            raise NotAdmittedError(
                f"the operator of {manifest.config.name} has banned this peer, {self._around.swarm.peer}"
                + (f": {why}" if why else "")
            )

    def _is_admitted(self, manifest: Manifest) -> bool:
        return self._register.admits(self._around.swarm.peer, invited_only=manifest.config.admission.kind == "invited")
