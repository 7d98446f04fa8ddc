"""Members who make rounds fail, or last: each is found, and the others go on as fast as before."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from random import Random

import pytest

from dipaco_swarm.algorithm.paths import ModuleId
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

PATHS = 4
PARAMETERS = PATHS * SHORT_PIECE
"""So that each of four has a piece to reduce."""
SHARED = 0, ModuleId(0, 0)
PLAN = Plan((StagePlan(tuple((0, path) for path in range(PATHS))),), inner_steps=10, parameters=PARAMETERS)
"""One module that all share, and one that each has for itself."""
BEFORE = 3
"""Versions of the shared module that are made before anybody misbehaves."""
OUT = 5
"""... and from then on; later the culprit is out."""
AFTER = 6
LONGEST_SECONDS = 1800.0


@dataclass
class Attack:
    """What came of one. Times are seconds in which the honest came from one version to the next."""

    culprit: str
    before: list[float] = field(default_factory=list)
    during: list[float] = field(default_factory=list)
    after: list[float] = field(default_factory=list)
    banned: dict[str, set[str]] = field(default_factory=dict)
    """By each of the honest."""
    forks: int = 0
    """Versions that honest peers made from one state."""

    @property
    def pace(self) -> float:
        """Afterwards, as a share of what it was before."""
        return mean(self.before) / mean(self.after)


def play(role: Role, folder: Path, seed: int = 5, *, overlap: bool = False) -> Attack:
    """Four members, of whom one plays a role from some version on."""
    chance = Random(f"blame/{seed}")
    world = World(seed, replace(PLAN, overlap=overlap), folder / "world")
    path = chance.randrange(PATHS)
    culprit = Saboteur(world, f"peer-{path}", path, role, Machine(home_line(chance)))
    attack = Attack(culprit.name)

    async def story(world: World) -> None:
        role.active = False
        for path in range(PATHS):
            world.start(f"peer-{path}", path, Machine(home_line(chance)))
        honest = [peer for peer in world.peers.values() if peer is not culprit]

        async def times(versions: int) -> list[float]:
            found = [await when_all_have(world, honest, lowest(honest) + 1) for _ in range(versions + 1)]
            return [later - earlier for earlier, later in itertools.pairwise(found)]

        attack.before = await times(BEFORE)
        role.active = True
        attack.during = await times(OUT)
        attack.after = await times(AFTER)
        attack.banned = {peer.name: bans(peer) for peer in honest}
        attack.forks = honest_forks(world, culprit.name)
        culprit.kill()
        assert await world.until(world.is_one, 120.0), world.apart()

    world.play(story)
    assert role.times, "nobody misbehaved, which proves nothing"
    assert not world.failures()
    return attack


async def when_all_have(world: World, peers: Sequence[SimulatedPeer], version: int) -> float:
    assert await world.until(lambda: lowest(peers) >= version, LONGEST_SECONDS), f"version {version} is made by nobody"
    return world.now


def lowest(peers: Sequence[SimulatedPeer]) -> int:
    """Version of the shared module that all of these have."""
    return min(peer.watched.at.get(SHARED, (0, ""))[0] if peer.watched is not None else 0 for peer in peers)


def bans(peer: SimulatedPeer) -> set[str]:
    assert peer.watched is not None
    return set(peer.watched.as_swarm().door.bans.names())


def honest_forks(world: World, culprit: str) -> int:
    """Versions of the shared module that came from the same state as another one; not those of the culprit alone."""
    versions = world.ledger.versions[SHARED].values()
    makers = {version: version.members for version in versions}
    parents = [version.parent for version, names in makers.items() if names - {culprit}]
    return len(parents) - len(set(parents))


def mean(seconds: Sequence[float]) -> float:
    return sum(seconds) / len(seconds)


def towards_two(reducer: str) -> bool:
    return reducer in ("peer-0", "peer-1")


def test_a_reducer_that_makes_two_averages_is_banned_by_all_in_the_round_in_which_it_does(tmp_path: Path) -> None:
    role = sabotage.Equivocator()
    attack = play(role, tmp_path)
    assert role.times == 1, "it could do it again"
    assert all(banned == {attack.culprit} for banned in attack.banned.values()), attack.banned
    assert max(attack.during) < 1.5 * mean(attack.before)
    assert attack.pace > 0.9
    assert not attack.forks


@pytest.mark.parametrize(
    "make",
    cases(
        sabotage.Mute,
        long=[sabotage.OtherDigest, sabotage.MuteReducer, partial(sabotage.Mute, towards_two), sabotage.Asker],
    ),
)
def test_a_member_that_keeps_others_waiting_is_waited_for_twice(make: Callable[[], Role], tmp_path: Path) -> None:
    attack = play(make(), tmp_path)
    assert sum(seconds > 1.25 * mean(attack.before) for seconds in attack.during) <= 2
    assert 0.9 < attack.pace < 1.3, "what it has not given makes no round due"
    assert not attack.forks
    assert not any(attack.banned.values()), "lines break as well"


@pytest.mark.parametrize("make", cases(long=[sabotage.StallingLeader, sabotage.RefusingLeader]))
def test_a_leader_that_does_not_lead_does_so_twice(make: Callable[[], Role], tmp_path: Path) -> None:
    """Members leave it together: nobody goes on alone."""
    attack = play(make(), tmp_path)
    slow = [seconds for seconds in (*attack.during, *attack.after) if seconds > 1.5 * mean(attack.before)]
    assert len(slow) <= 2
    assert all(seconds < 2.5 * mean(attack.before) for seconds in slow)
    assert not attack.forks
    assert not any(attack.banned.values())


@pytest.mark.parametrize("seed", cases(8, long=[1, 3, 7]))
def test_a_leader_that_never_begins_is_left_by_all_and_nobody_is_sent_to_it_again(seed: int, tmp_path: Path) -> None:
    """It goes on to gather rounds, and says that it is alive: at once nobody goes there, and nobody waits for it.

    Members lose patience one after the other, are sent to and fro, and join each other (seeds 3 and 8): they meet.
    """
    attack = play(sabotage.StallingLeader(), tmp_path, seed=seed, overlap=True)
    slow = [seconds for seconds in (*attack.during, *attack.after) if seconds > 2 * mean(attack.before)]
    assert len(slow) <= 2, "one that all have seen, and one more of the next demotion"
    assert not attack.forks


@pytest.mark.long
def test_a_mute_member_that_leads_is_not_waited_for_either(tmp_path: Path) -> None:
    """It waits for itself, as a leader would for anybody: those who reduce do not, who know what it does."""
    attack = play(sabotage.Mute(), tmp_path, seed=7, overlap=True)
    assert max(*attack.during, *attack.after) < 1.3 * mean(attack.before)
    assert not attack.forks
