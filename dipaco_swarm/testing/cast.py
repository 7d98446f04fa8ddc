"""The hostile roles by name, and how each of them comes onto the stage of a simulated swarm."""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from dipaco_swarm.testing import hostile
from dipaco_swarm.testing.hostile import HostilePeer, Stranger
from dipaco_swarm.testing.poison import POISONS, Poisoner
from dipaco_swarm.testing.process import Machine
from dipaco_swarm.testing.roles import Member, Outsider, Role

if TYPE_CHECKING:
    from dipaco_swarm.testing.world import World

STRANGERS: dict[str, Role] = {
    "takeover": Role("claims the next version, of its own making", partial(hostile.Claimer, hostile.takeover)),
    "far": Role("claims version + 1,000,000", partial(hostile.Claimer, hostile.far)),
    "not-a-number": Role("claims a version that is not numbers", partial(hostile.Claimer, hostile.not_a_number)),
    "twin": Role("claims another state for the newest version", partial(hostile.Claimer, hostile.twin)),
    "claims-tokens": Role("announces 2^40 tokens", partial(hostile.PretendsToBeThere, hostile.has_trained_much)),
    "on-its-way": Role("says that it catches up, for ever", partial(hostile.PretendsToBeThere, hostile.is_on_its_way)),
    "is-there": Role("says that it trains a path, and never comes", hostile.PretendsToBeThere),
    "calls": Role("calls a round twice a second", hostile.CallsRounds),
}
"""Who is in no round."""

MEMBERS: dict[str, Role] = {}
"""Who takes part and does not do what it should; poison below."""

ROLES: dict[str, Role] = {
    **STRANGERS,
    **MEMBERS,
    **{name: Role(poison.about, partial(Poisoner, poison)) for name, poison in POISONS.items()},
}

Process = Stranger | HostilePeer


def enter(world: "World", name: str, role: str, path: int, machine: Machine) -> Process:
    """A peer with a role, which is yet to be started. Raises KeyError when there is no such role."""
    make: Callable[[], object] = ROLES[role].make
    played = make()
    world.network.lines[name] = machine.line
    if isinstance(played, Member):
        peer = HostilePeer(world, name, path, machine, played)
        world.peers[name] = peer
        return peer
    assert isinstance(played, Outsider)
    return Stranger(world, name, machine, played, path)
