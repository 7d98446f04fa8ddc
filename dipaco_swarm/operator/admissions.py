"""Who may take part: what the operator orders on the command line, and who has shown an invitation."""

from pathlib import Path

from dipaco_swarm.events.admission import InvitationsWithdrawn, PeerAdmitted, PeerBanned, PeerForgiven, RegisterFull
from dipaco_swarm.files import remove
from dipaco_swarm.operator.surroundings import Surroundings
from dipaco_swarm.run.manifest import Manifest
from dipaco_swarm.run.orders import Admit, Appoint, Ban, Extend, Forgive, Invite, Order, Rollback, Withdraw
from dipaco_swarm.run.register import MAX_INVITATIONS, MAX_NAMES, Register
from dipaco_swarm.swarm.door import Admission


class Admissions:
    """The bootstrap node's register of peers."""

    def __init__(self, around: Surroundings) -> None:
        self._around = around
        self._register = Register()
        self._invitations: list[str] = []
        """Digests of the codes that nobody has used yet."""
        self._obeying: list[Path] = []
        """Files of the orders that are done, and not published yet."""

    def take_up(self, manifest: Manifest) -> None:
        """Go on with what was published last. Raises ManifestError when it is damaged."""
        around = self._around
        if manifest.peers is not None:
            self._register = Register.read(around.fetch(manifest.peers))
        self._invitations = around.home.invitations()
        self.open_door(manifest)

    def renewed(self, manifest: Manifest) -> Manifest:
        """The manifest with all that was ordered and shown since the last time; the same one when nothing was.

        Raises HomeError while the disk is full; then all of it is done the next time.
        """
        around = self._around
        of_others = Extend | Appoint | Rollback
        orders = [(file, order) for file, order in around.home.orders() if not isinstance(order, of_others)]
        shown = around.swarm.door.shown()
        if not orders and not shown:
            return manifest
        register, invitations = self._register, list(self._invitations)
        for digest, peer in shown.items():
            if digest in invitations and peer not in register.banned:  # only the operator forgives
                invitations.remove(digest)
                register = self._with_admitted(register, peer, invited=True)
        for _, order in orders:
            register = self._obeyed(register, invitations, order)
        around.home.keep_invitations(invitations)
        self._register, self._invitations = register, invitations
        self._obeying = [file for file, _ in orders]
        self.open_door(manifest)
        named = around.swarm.put_blob(register.canonical_bytes()) if register != Register() else None
        if named == manifest.peers:
            return manifest
        return manifest.model_copy(update={"revision": manifest.revision + 1, "peers": named})

    def published(self) -> None:
        """What `renewed` returned last is on the disk: nothing that was ordered has to be done again."""
        for file in self._obeying:
            remove(file)
        self._obeying.clear()

    def _obeyed(self, register: Register, invitations: list[str], order: Order) -> Register:
        """The register after an order; invitations are added to the list, or taken from it."""
        event = self._around.screen.event
        match order:
            case Invite(digests=digests):
                invitations += [digest for digest in digests if digest not in invitations]
                del invitations[MAX_INVITATIONS:]
            case Withdraw(digests=digests):
                left = [digest for digest in invitations if digests and digest not in digests]
                event(InvitationsWithdrawn(len(invitations) - len(left)))
                invitations[:] = left
            case Admit(name=name):
                return self._with_admitted(register, name, invited=False)
            case Ban(name=name, why=why):
                if len({*register.banned, name}) > MAX_NAMES:
                    event(RegisterFull(name, MAX_NAMES))
                    return register
                event(PeerBanned(name, why))
                return register.with_banned(name, why)
            case Forgive(name=name):
                event(PeerForgiven(name, was_banned=name in register.banned))
                return register.forgiven(name)
        return register

    def _with_admitted(self, register: Register, name: str, *, invited: bool) -> Register:
        if len({*register.admitted, name}) > MAX_NAMES:
            self._around.screen.event(RegisterFull(name, MAX_NAMES))
            return register
        self._around.screen.event(PeerAdmitted(name, invited=invited))
        return register.with_admitted(name)

    def open_door(self, manifest: Manifest) -> None:
        """Let in whom this manifest lets in, and expect the invitations that nobody has used."""
        door, invited_only = self._around.swarm.door, manifest.config.admission.kind == "invited"
        door.admission = Admission.by(self._register, invited_only=invited_only)
        door.expect(self._invitations)
