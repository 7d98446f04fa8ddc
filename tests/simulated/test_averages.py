"""Versions travel as averages: what a keeper and a peer that was away cost the lines of the others."""

from dataclasses import dataclass
from pathlib import Path

from dipaco_swarm.swarm.traffic import Traffic
from dipaco_swarm.testing.process import Machine
from dipaco_swarm.testing.run import OPERATOR, Plan, StagePlan
from dipaco_swarm.testing.volunteer import SimulatedPeer
from dipaco_swarm.testing.world import World

APART = ((0,), (1,))
"""Two paths that share nothing."""
PARAMETERS = 60_000
STATE_BYTES = 8 * PARAMETERS
AVERAGE_BYTES = round(0.83 * PARAMETERS)
"""With int8."""


def traffic(peer: SimulatedPeer) -> Traffic:
    assert peer.watched is not None
    return peer.watched.as_swarm().traffic()


def version(peer: SimulatedPeer) -> int:
    """What it says that it is at; 0 before that."""
    at = {} if peer.watched is None else peer.watched.at
    return max((version for version, _ in at.values()), default=0)


def test_a_keeper_takes_a_byte_a_parameter_of_each_version(tmp_path: Path) -> None:
    """Peers that are alone in their modules send nothing in rounds: all of it goes to the bootstrap node."""
    plan = Plan((StagePlan(APART, rounds=8),), codec="int8", parameters=PARAMETERS, until_finished=True)
    world = World(1, plan, tmp_path / "world")
    kept: list[int] = []
    sent: list[int] = []

    async def story(world: World) -> None:
        peers = [world.start(f"peer-{path}", path) for path in range(2)]
        assert await world.until(lambda: world.finished, 600.0)
        kept.extend(state.version for state in world.operator.kept(0).values())
        sent.extend(traffic(peer).sent for peer in peers)

    world.play(story)
    assert not world.failures()
    assert not world.ledger.violations
    assert kept == [8, 8]
    assert all(8 * AVERAGE_BYTES < count < 8.5 * AVERAGE_BYTES for count in sent), sent


@dataclass
class Return:
    """What a peer that was away has missed, and what it took to catch up."""

    versions: int = 0
    received: int = 0
    forks: int = 0


def test_a_peer_that_was_away_for_two_versions_fetches_two_averages(tmp_path: Path) -> None:
    """Its steps are so slow that it makes no version alone: it has the state from which the others went on."""
    plan = Plan((StagePlan(APART),), inner_steps=20, codec="int8", parameters=PARAMETERS)
    world = World(1, plan, tmp_path / "world")
    back = Return()

    async def story(world: World) -> None:
        one, two = (world.start(name, 0) for name in ("one", "two"))
        away = world.start("away", 0, Machine(step_seconds=8.0))
        assert await world.until(lambda: {version(one), version(away)} == {2}, 300.0), world.apart()
        world.network.part([away.name], [one.name, two.name, OPERATOR])
        assert await world.until(lambda: version(one) == version(two) == version(away) + 2, 300.0), world.apart()
        before, was_at = traffic(away).received, version(away)
        world.network.heal()
        assert await world.until(lambda: version(away) > was_at, 60.0), world.apart()
        back.versions, back.received = version(away) - was_at, traffic(away).received - before
        back.forks = world.forks

    world.play(story)
    assert not world.failures()
    assert not world.ledger.violations
    assert not back.forks
    assert back.versions >= 2
    assert back.versions * AVERAGE_BYTES <= back.received < 1.05 * back.versions * AVERAGE_BYTES
    assert back.received < 0.27 * back.versions / 2 * STATE_BYTES
