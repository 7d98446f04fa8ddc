"""The hostile roles by name, and how each of them comes onto the stage of a simulated swarm."""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from dipaco_swarm.testing import hostile, sabotage, saboteur
from dipaco_swarm.testing.hostile import HostilePeer, Stranger
from dipaco_swarm.testing.poison import POISONS, Poisoner
from dipaco_swarm.testing.process import Machine
from dipaco_swarm.testing.roles import Member, Outsider, Role
from dipaco_swarm.testing.saboteur import Saboteur

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
    "dead": Role("says that it trains a path, and nobody is behind that name", hostile.PretendsToBeThere),
    "tarpit": Role("says that it trains a path; takes every call, and never says a word", hostile.Tarpit),
    "answers": Role("the same, and says so to whoever asks", hostile.Answers),
    "gathers": Role("the same, and that it gathers the round; it never begins", partial(hostile.Answers, leads=True)),
    "holds": Role("comes to every leader, begins rounds with nobody else in them, and never ends one", hostile.Holds),
}
"""Who is in no round."""

SABOTEURS: dict[str, Role] = {
    "mute": Role("is in every round and contributes nothing", sabotage.Mute),
    "mute-reducer": Role("takes contributions, and sends nobody an average (dishonest reducer)", sabotage.MuteReducer),
    "equivocator": Role("as a reducer makes two averages (dishonest reducer)", sabotage.Equivocator),
    "wrong-scaled": Role(
        "as a reducer makes averages three times as long (dishonest reducer)",
        partial(sabotage.WrongReducer, sabotage.scaled),
    ),
    "wrong-flipped": Role(
        "as a reducer turns averages round (dishonest reducer)", partial(sabotage.WrongReducer, sabotage.flipped)
    ),
    "wrong-partly": Role(
        "as a reducer turns a quarter of each average round (dishonest reducer)",
        partial(sabotage.WrongReducer, sabotage.partly_wrong),
    ),
    "wrong-hidden": Role(
        "the same with all of it, and does not show from what it was made (dishonest reducer)",
        partial(sabotage.WrongReducer, sabotage.flipped, shows=False),
    ),
    "other-digest": Role("says that it holds another average than it does", sabotage.OtherDigest),
    "unsent": Role("announces states that it never sends, of its own modules and of others'", sabotage.Unsent),
    "asker": Role("asks in the middle of a round how it ended", sabotage.Asker),
    "staller": Role("gathers a round and never begins it (dishonest leader)", sabotage.StallingLeader),
    "freezer": Role("begins a round and never ends it (dishonest leader)", sabotage.FreezingLeader),
    "refuser": Role("sends all to a state that there is not (dishonest leader)", sabotage.RefusingLeader),
}
"""Who takes part and makes rounds fail, or last; poison below."""

ROLES: dict[str, Role] = {
    **STRANGERS,
    **SABOTEURS,
    **{name: Role(poison.about, partial(Poisoner, poison)) for name, poison in POISONS.items()},
}

Process = Stranger | HostilePeer | Saboteur


def enter(world: "World", name: str, role: str, path: int, machine: Machine) -> Process:
    """A peer with a role, which is yet to be started. Raises KeyError when there is no such role."""
    make: Callable[[], object] = ROLES[role].make
    played = make()
    world.network.lines[name] = machine.line
    if isinstance(played, Member):
        peer = HostilePeer(world, name, path, machine, played)
        world.peers[name] = peer
        return peer
    if isinstance(played, saboteur.Role):
        return Saboteur(world, name, path, played, machine)
    assert isinstance(played, Outsider)
    return Stranger(world, name, machine, played, path)
