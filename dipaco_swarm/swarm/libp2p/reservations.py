"""Our reservations at relays, while nobody can dial us: others come to us through these."""

import logging

from dipaco_swarm.machine.clock import Clock
from dipaco_swarm.swarm.addresses import address_of, name_in
from dipaco_swarm.swarm.libp2p import relay
from dipaco_swarm.swarm.libp2p.connections import UNREACHED

log = logging.getLogger(__name__)

RENEW_SECONDS = 60.0
"""One lasts for an hour, and not longer than the connection, of whose end nobody tells us."""


class Reservations:
    """Takes and renews them; in the node's loop."""

    def __init__(self, daemon: str, peer: str, clock: Clock) -> None:
        """`daemon`: path of the socket at which our daemon listens; `peer`: our name."""
        self._daemon = daemon
        self._peer = peer
        self._clock = clock
        self._taken: dict[str, float] = {}
        """When, by the relay's address."""

    async def take(self, bootstrap: str) -> bool:
        """Reserve, or renew, at the node with this address, to which we are connected; False: it does not relay."""
        try:
            await relay.reserve(self._daemon, name_in(bootstrap))
        except (*UNREACHED, ValueError) as error:
            log.debug("%s does not relay for us: %s", bootstrap, error)
            self.forget(bootstrap)
            return False
        self._taken[bootstrap] = self._clock.monotonic()
        return True

    def are_due(self, bootstrap: str) -> bool:
        """Whether there is none at this address, or it is time to renew it."""
        taken = self._taken.get(bootstrap)
        return taken is None or self._clock.monotonic() - taken >= RENEW_SECONDS

    def forget(self, bootstrap: str) -> None:
        """The node at this address does not answer."""
        self._taken.pop(bootstrap, None)

    def addresses(self) -> list[str]:
        """Where others can dial us so, one address of each relay."""
        return [address_of(f"{place}/p2p-circuit", self._peer) for place in relay.one_each(list(self._taken))]
