"""What this machine chose about its network."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from dipaco_swarm.swarm.addresses import is_on_this_machine
from dipaco_swarm.swarm.libp2p.reachability import ports_of


@dataclass(frozen=True)
class NodeSettings:
    """How others reach us, and how much we send."""

    listen: str = "/ip4/0.0.0.0/tcp/0"
    announce: tuple[str, ...] = ()
    """Addresses to tell others instead of the ones found; for ports forwarded by a router."""
    reachable: bool | None = True
    """Whether others can dial us; None: the bootstrap nodes are asked, at the start and now and then.

    Whom nobody can dial dials out, takes what others want of it through a bootstrap node, which relays, and stores no
    records for others. It leads and reduces only where no member of the group can be dialled.
    """
    bandwidth: float | None = None
    """Bytes per second of modules, outer gradients and blobs that we send at most."""

    def settled(self, places: Sequence[str]) -> "NodeSettings":
        """The same, on the port that was found free: whoever knows these addresses of ours should find us there again.

        Nothing changes where the operator has chosen the port, or what others are told.
        """
        # among the others may be one that our router has chosen
        found = ports_of([place for place in places if is_on_this_machine(place)] or places)
        if not self.listen.endswith("/tcp/0") or self.announce or not found:
            return self
        return replace(self, listen=f"{self.listen.removesuffix('/tcp/0')}/tcp/{found[0]}")
