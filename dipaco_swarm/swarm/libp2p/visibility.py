"""Where others can dial us: what the bootstrap nodes have told, and what follows from it."""

from collections.abc import Callable, Sequence

from dipaco_swarm.swarm.addresses import address_of, is_on_this_machine, is_relayed, place_in
from dipaco_swarm.swarm.greetings import Welcome

DOUBTS = 2
"""So often in a row a reachable peer must be found unreachable; one lost packet should not make it one."""


class Visibility:
    """Whether others can dial us, and where, as far as we know."""

    def __init__(self, chosen: bool | None) -> None:
        """`chosen`: whether the operator of this machine says that others can; None: it is to be found out."""
        self._chosen = chosen
        self._doubts = 0
        self._seen_at: tuple[str, ...] = ()
        """Addresses at which bootstrap nodes see us, and at which we can be dialled."""
        self.reachable = chosen is not False

    def learn(self, welcomes: Sequence[Welcome], ports: Sequence[int]) -> None:
        """What the bootstrap nodes answered. `ports`: on which we listen.

        One of them that cannot dial us is enough: it may be the only one that sees us from outside our home.
        """
        if self._chosen:
            self._seen_at = places(welcomes, lambda _: ports)
            return
        told = [said for said in welcomes if said.reached is not None]
        if not told:
            return
        if all(said.reached for said in told):
            self._doubts, self.reachable = 0, True
            self._seen_at = places(told, lambda said: said.reached or ())
        else:
            self._doubts += 1
            if self._doubts >= DOUBTS or not self._seen_at:
                self.reachable, self._seen_at = False, ()

    def addresses(self, found: Sequence[str], peer: str) -> tuple[str, ...]:
        """All addresses of ours, best first: as we are seen, through relays, near by.

        `found`: those that the daemon has; `peer`: our name, at the end of each.
        """

        def worth(address: str) -> tuple[bool, bool, bool, str]:
            seen = place_in(address) in self._seen_at
            return is_on_this_machine(address), not seen, not is_relayed(address), address

        return tuple(sorted({*found, *(address_of(place, peer) for place in self._seen_at)}, key=worth))


def places(welcomes: Sequence[Welcome], ports_of: Callable[[Welcome], Sequence[int]]) -> tuple[str, ...]:
    """Where bootstrap nodes see us, with each of our ports that `ports_of` names."""
    seen = (f"{said.seen_at}/tcp/{port}" for said in welcomes if said.seen_at for port in ports_of(said))
    return tuple(dict.fromkeys(seen))
