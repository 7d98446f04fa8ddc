"""Who may take part in a run, as its operator says; and invitations, which a newcomer shows to the bootstrap node.

Whoever may not is heard by nobody and joins no round; it may read what everybody may read.
"""

import asyncio
import logging
import threading
from collections.abc import Iterable
from dataclasses import dataclass

from dipaco_swarm.errors import RemoteDataError
from dipaco_swarm.run.address import RunAddress
from dipaco_swarm.run.register import MAX_INVITATIONS, Register, digest_of
from dipaco_swarm.swarm.addresses import name_in
from dipaco_swarm.swarm.bans import Bans
from dipaco_swarm.swarm.calls import Calls
from dipaco_swarm.swarm.greetings import AdmissionIs, ShowInvitation
from dipaco_swarm.swarm.interface import PeerName
from dipaco_swarm.swarm.states.store import store_protocol
from dipaco_swarm.swarm.transport import Portal, Transport

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Admission:
    """What the operator has said last. By default everybody may take part."""

    admitted: frozenset[str] | None = None
    """None: everybody who is not banned."""
    banned: frozenset[str] = frozenset()

    @classmethod
    def by(cls, register: Register, *, invited_only: bool) -> "Admission":
        return cls(frozenset(register.admitted) if invited_only else None, frozenset(register.banned))

    def allows(self, name: str) -> bool:
        return name not in self.banned and (self.admitted is None or name in self.admitted)


class Door:
    """Of one peer. `allows` may be called from any thread, `answer` in the loop, all others from the program's."""

    def __init__(self, portal: Portal, transport: Transport, address: RunAddress, bans: Bans) -> None:
        """`bans`: whom this peer itself lets in no more."""
        roots = [name_in(place) for place in address.bootstraps]
        self._calls = Calls(portal)
        self._transport = transport
        self._protocol = store_protocol(address.fingerprint)
        self._roots = tuple(name for name in roots if name != transport.peer)
        """The operator's nodes."""
        self.admission = Admission()
        self.bans = bans
        self._invitations: dict[str, str | None] = {}
        """Digest of a code -> who has shown it."""
        self._shown: dict[str, PeerName] = {}
        """Those that were shown since they were asked for last."""
        self._lock = threading.Lock()
        """Of invitations: they are shown in the loop, and looked after in the program."""

    def allows(self, name: str) -> bool:
        """Whether we listen to a peer."""
        if name == self._transport.peer or name in self._roots:
            return True
        return name not in self.bans and self.admission.allows(name)

    # ------------------------------------------------------------------------------------------- the operator's node

    def expect(self, invitations: Iterable[str]) -> None:
        """These may be shown, each by one peer. Digests of their codes."""
        with self._lock:
            self._invitations = {digest: self._invitations.get(digest) for digest in [*invitations][:MAX_INVITATIONS]}

    def shown(self) -> dict[str, PeerName]:
        """Invitations that were shown since the last time, and by whom."""
        with self._lock:
            shown, self._shown = self._shown, {}
        return shown

    def answer(self, peer: str, asked: ShowInvitation) -> AdmissionIs:
        """A peer shows an invitation. Shown again by the same one, because our answer was lost, it counts as well."""
        digest = digest_of(asked.code)
        if peer in self.admission.banned:
            log.warning("peer %s is banned, and has shown an invitation; it may still be used by another one", peer)
            return AdmissionIs(noted=False)
        with self._lock:
            if digest not in self._invitations:
                return AdmissionIs(noted=self.admission.allows(peer))
            if self._invitations[digest] not in (None, peer):
                return AdmissionIs(noted=False)
            self._invitations[digest] = peer
            self._shown[digest] = PeerName(peer)
            return AdmissionIs(noted=True)

    # ------------------------------------------------------------------------------------------------- a newcomer

    def show(self, code: str, *, timeout: float) -> bool | None:
        """Show our invitation at the operator's nodes; None when none of them answers, False when none takes it."""
        return self._calls.run(self._show(code), timeout)

    async def _show(self, code: str) -> bool | None:
        answers = [await self._show_at(root, code) for root in self._roots]
        return next((noted for noted in (True, False) if noted in answers), None)

    async def _show_at(self, root: str, code: str) -> bool | None:
        try:
            async with (
                asyncio.timeout(self._transport.timing.dial),
                self._transport.dial(root, self._protocol) as stream,
            ):
                await stream.send(ShowInvitation(code=code))
                answer = await stream.receive()
        except (ConnectionError, EOFError, TimeoutError, RemoteDataError) as error:
            log.debug("bootstrap node %s does not look at our invitation: %s", root[-8:], error)
            return None
        return answer.noted if isinstance(answer, AdmissionIs) else None
