"""Before a peer goes: what nobody else holds is handed to a keeper, calmly and not for long."""

from collections.abc import Callable, Collection, Mapping

from dipaco_swarm.algorithm.paths import ModuleId
from dipaco_swarm.algorithm.plan import Claim
from dipaco_swarm.algorithm.state import ModuleState
from dipaco_swarm.events.event import Event
from dipaco_swarm.events.volunteer import HandedOver, HandingOver, OnlyHere
from dipaco_swarm.machine.stopping import Stopping
from dipaco_swarm.outer_round import holdings
from dipaco_swarm.run.address import RunAddress
from dipaco_swarm.run.manifest import Manifest
from dipaco_swarm.swarm.addresses import name_in
from dipaco_swarm.swarm.interface import Announcement, Role, Swarm

HAND_OVER_SECONDS = 3.0
"""How long after Ctrl+C a peer waits for a keeper: it has ended within five seconds."""
HAND_OVER_FLOOR_SECONDS = 1.0
"""... after a slow disk too."""
UNHURRIED_HAND_OVER_SECONDS = 60.0
"""The same for one that leaves because it has done what it was told to."""
LOOK_SECONDS = 0.3


def hand_over(
    swarm: Swarm,
    stage: int,
    states: Mapping[ModuleId, ModuleState],
    nodes: Collection[str],
    stop: Stopping,
    report: Callable[[Event], None],
) -> None:
    """Wait until others hold what nobody else has, above all modules that only one path uses; or say that nobody does.

    Who leaves because the work is done waits for a keeper: the others may be leaving as well. Where no keeper is to be
    heard there is nothing to wait for. `nodes`: names of the operator's nodes.
    """
    ours = [module for module, state in states.items() if state.version > 0]
    swarm.look_up(stage, ours, timeout=swarm.timing.look_up)
    over = swarm.clock.monotonic() + UNHURRIED_HAND_OVER_SECONDS
    told = False
    while True:
        if stop():
            over = min(over, max(stop.asked_at + HAND_OVER_SECONDS, swarm.clock.monotonic() + HAND_OVER_FLOOR_SECONDS))
        held = {m: other_holders(swarm, stage, m, states[m], nodes) for m in ours}
        alone = [m for m in ours if not (held[m] if stop() else any(map(is_keeper, held[m])))]
        heard = [said for module in alone for said in swarm.members(stage, module)]
        keepers = sorted({said.peer for said in heard if is_keeper(said) and counts(said, nodes)})
        if not alone or swarm.clock.monotonic() > over or not keepers:
            break
        if not told:
            report(HandingOver(tuple(map(str, alone))))
            told = True
        swarm.announce(holdings(swarm.peer, stage, states, moves=False))
        ours_alone = holdings(swarm.peer, stage, {module: states[module] for module in alone}, moves=False)
        for keeper in keepers:
            swarm.tell(keeper, ours_alone)
        if stop():
            stop.pause(LOOK_SECONDS)  # the event that others wait for here has come already
        else:
            stop.wait(LOOK_SECONDS)
    alone = [m for m in alone if not other_holders(swarm, stage, m, states[m], nodes)]
    if alone:
        report(OnlyHere(tuple(map(str, alone))))
    elif told:
        report(HandedOver())


def other_holders(
    swarm: Swarm, stage: int, module: ModuleId, ours: ModuleState, nodes: Collection[str]
) -> list[Announcement]:
    """Of everybody else who says that it has this state of the module or a better one, and whose word counts: a
    stranger can say anything, and what is lost with us is lost. `nodes`: names of the operator's nodes."""
    claim = Claim.of(ours)
    others = [said for said in swarm.members(stage, module) if said.peer != swarm.peer and counts(said, nodes)]
    return [said for said in others if said.digest == claim.digest or Claim.of(said).beats(claim)]


def nodes_of(address: RunAddress, manifest: Manifest) -> frozenset[str]:
    """Names of the operator's nodes: those in the run address, and the standbys that it has appointed."""
    places = (*address.bootstraps, *(place for each in manifest.delegates for place in each.places))
    return frozenset(map(name_in, places))


def counts(said: Announcement, nodes: Collection[str]) -> bool:
    """Whether somebody's word on where it stands counts: one of the operator's `nodes`, or whom we know."""
    return said.peer in nodes or said.known


def is_keeper(said: Announcement) -> bool:
    """Whether it is of a peer that is there to hold modules, as the bootstrap node is."""
    return said.role is Role.KEEPS
