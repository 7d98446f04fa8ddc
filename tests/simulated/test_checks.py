"""Averages are checked after their rounds: a reducer that makes wrong ones is found, and nobody honest ever is."""

import asyncio
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from random import Random

import pytest

from dipaco_swarm.algorithm.paths import ModuleId
from dipaco_swarm.events.admission import PeersConvicted
from dipaco_swarm.swarm.round.auditing import Auditing
from dipaco_swarm.testing import sabotage
from dipaco_swarm.testing.network import home_line
from dipaco_swarm.testing.process import Machine
from dipaco_swarm.testing.run import Plan, StagePlan
from dipaco_swarm.testing.saboteur import Role, Saboteur
from dipaco_swarm.testing.volunteer import SimulatedPeer
from dipaco_swarm.testing.world import World
from tests.long import cases

from .conftest import SHORT_PIECE

pytestmark = pytest.mark.usefixtures("short_pieces")

SHARED = 0, ModuleId(0, 0)
PIECES = 8
PARAMETERS = PIECES * SHORT_PIECE
"""So that each of eight has a piece to reduce."""
VERSIONS = 5
FIVE_ROUNDS = 5
LONGEST_SECONDS = 4000.0
TOLD_SECONDS = 10.0
"""So long after all members know it, the operator's node has told."""

Looks = Callable[[float], None]


def plan_of(members: int, codec: str = "int8") -> Plan:
    return Plan(
        (StagePlan(tuple((0, path) for path in range(members))),),
        inner_steps=4,
        parameters=PARAMETERS,
        codec=codec,
        overlap=True,
    )


def auditing(peer: SimulatedPeer) -> Auditing:
    assert peer.watched is not None
    swarm = peer.watched.as_networked()
    assert swarm._rounds is not None
    return swarm._rounds._auditing


def bans(peer: SimulatedPeer) -> set[str]:
    assert peer.watched is not None
    return set(peer.watched.as_networked().door.bans.names())


@dataclass
class Found:
    """What came of a wrong reducer."""

    versions: int = 0
    """That were made before all of the honest had banned it."""
    banned: dict[str, set[str]] = field(default_factory=dict)
    hidden: int = 0
    """Peers by whom it reduces nothing for a while."""
    told: list[PeersConvicted] = field(default_factory=list)
    """The operator, by its node."""


def play(role: Role, folder: Path, members: int, seed: int, most: int) -> Found:
    """A group of whom one plays a role, until it is out, or so many versions were made."""
    chance = Random(f"checks/{seed}")
    world = World(seed, plan_of(members), folder / f"world-{members}-{seed}")
    culprit = Saboteur(world, "peer-0", 0, role, Machine(home_line(chance)))
    found = Found()

    async def story(world: World) -> None:
        role.active = False
        for path in range(members):
            world.start(f"peer-{path}", path, Machine(home_line(chance)))
        honest = [peer for peer in world.peers.values() if peer is not culprit]
        assert await world.until(lambda: version(world) >= 3, LONGEST_SECONDS)
        role.active, before = True, version(world)

        def is_over() -> bool:
            now = honest[0].clock.monotonic()
            is_hidden = all(auditing(peer).hidden.is_demoted(culprit.name, now) for peer in honest)
            is_out = all(bans(peer) == {culprit.name} for peer in honest)
            return is_out or is_hidden or version(world) >= before + most

        assert await world.until(is_over, LONGEST_SECONDS)
        found.versions = version(world) - before
        found.banned = {peer.name: bans(peer) for peer in honest}
        await asyncio.sleep(TOLD_SECONDS)
        found.told = [event for event in world.operator.said if isinstance(event, PeersConvicted)]
        found.hidden = sum(bool(auditing(peer).hidden.times()) for peer in honest)
        culprit.kill()

    world.play(story)
    assert role.times, "nobody misbehaved, which proves nothing"
    assert not world.failures()
    return found


def version(world: World) -> int:
    return max((made.number for made in world.ledger.versions[SHARED].values()), default=0)


BENT = [sabotage.scaled, sabotage.flipped, sabotage.partly_wrong]


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Looks:
    """Have another part of the pieces drawn to be looked at."""
    return partial(monkeypatch.setattr, "dipaco_swarm.swarm.round.showing.CHECKED")


@pytest.mark.parametrize(
    "case", cases((sabotage.partly_wrong, 4), long=[(sabotage.flipped, 4), *itertools.product(BENT, (2, 4, 8))])
)
def test_a_reducer_whose_averages_are_wrong_is_banned_by_all(case: tuple[sabotage.Bend, int], tmp_path: Path) -> None:
    bent, members = case
    found = play(sabotage.WrongReducer(bent), tmp_path, members, seed=3, most=80)
    assert all(names == {"peer-0"} for names in found.banned.values()), found
    assert [event.peer for event in found.told] == ["peer-0"], "the node has made it anew as well, and says so once"
    assert found.versions <= FIVE_ROUNDS, "it is odd what they make, and looked at at once"


def test_what_is_not_odd_is_found_by_chance(tmp_path: Path, looks: Looks, monkeypatch: pytest.MonkeyPatch) -> None:
    looks(0.5)
    monkeypatch.setattr("dipaco_swarm.swarm.round.suspecting.ODD", 1e9)
    found = play(sabotage.WrongReducer(sabotage.scaled), tmp_path, 4, seed=3, most=80)
    assert all(names == {"peer-0"} for names in found.banned.values()), found


def test_a_reducer_that_does_not_show_from_what_it_has_made_averages_reduces_no_more(tmp_path: Path) -> None:
    found = play(sabotage.WrongReducer(sabotage.flipped, shows=False), tmp_path, 4, seed=3, most=80)
    assert not any(found.banned.values()), "that proves nothing"
    assert not found.told
    assert found.versions <= FIVE_ROUNDS
    assert found.hidden == 3, "one has seen it, and the others have seen for themselves"


@pytest.mark.parametrize(
    "case",
    cases(
        (4, "int8", "robust"),
        long=[*itertools.product((2, 4, 8), ("fp32", "bf16", "int8", "int4", "e3m0"), ("mean", "robust", "radial"))],
    ),
)
def test_nobody_honest_is_ever_found(case: tuple[int, str, str], tmp_path: Path, looks: Looks) -> None:
    """With every piece of every round looked at."""
    looks(1.0)
    members, codec, averaging = case
    world = World(11, replace(plan_of(members, codec), averaging=averaging), tmp_path / "world")
    chance = Random(f"{members}/{codec}")
    checked: list[int] = []

    async def story(world: World) -> None:
        for path in range(members):
            world.start(f"peer-{path}", path, Machine(home_line(chance)))
        peers = list(world.peers.values())
        assert await world.until(lambda: version(world) >= VERSIONS, LONGEST_SECONDS)
        await asyncio.sleep(60.0)
        checked.extend(auditing(peer).accusing.judged for peer in peers)
        for peer in peers:
            assert not bans(peer)
            assert not auditing(peer).hidden.times()
        assert not any(isinstance(event, PeersConvicted) for event in world.operator.said)

    world.play(story)
    assert not world.failures()
    assert sum(checked) > 0.6 * PIECES * VERSIONS, checked
