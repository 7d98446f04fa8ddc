"""Promise 3 over real libp2p: a round that fails loses nothing. Members are processes, and faults are real signals."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from dipaco_swarm.swarm.networked import NetworkedSwarm
from dipaco_swarm.swarm.round.reduction import leader_order
from tests.long import cases

from .member import MODULE
from .processes import Process, group

pytestmark = pytest.mark.swarm

PARAMETERS = 6_000_000
"""A reduce of this size lasts long enough to be killed in the middle of."""
MOMENTS = 3
"""The simulated network tries hundreds more; here the daemons, sockets and signals are real."""


def leader_of(members: list[Process], version: int) -> Process:
    first = leader_order(0, MODULE, version, sorted(member.peer for member in members))[0]
    return next(member for member in members if member.peer == first)


def agree(outcomes: list[dict], version: int) -> bool:  # type: ignore[type-arg]
    """Whether all took the step from `version`; False: all stayed. Anything else fails."""
    assert len({outcome["digest"] for outcome in outcomes}) == 1, outcomes
    assert all(outcome["gradient_untouched"] for outcome in outcomes)
    committed = {outcome["agreed"] for outcome in outcomes}
    assert len(committed) == 1, outcomes
    assert {outcome["version"] for outcome in outcomes} == {version + committed.pop()}
    return bool(outcomes[0]["agreed"])


@pytest.mark.timeout(300)  # some twenty seconds on two idle cores; the machine may be busy
def test_a_member_killed_at_any_moment_of_a_reduce_costs_nobody_anything(
    tmp_path: Path, make_libp2p_swarms: Callable[[int], list[NetworkedSwarm]], record_property: Callable[..., None]
) -> None:
    (bootstrap,) = make_libp2p_swarms(1)
    with group(tmp_path, str(bootstrap.address), PARAMETERS) as members:
        alive = [members.start(path) for path in range(4)]
        for member in alive:
            member.until_ready()
        version = 0
        members.begin_round(alive, version)
        outcomes = members.outcomes(alive)
        assert agree(outcomes, version)
        version += 1
        duration = sorted(outcome["seconds"] for outcome in outcomes)[1]

        committed = kept = late = 0
        slowest = 0.0
        for case in range(MOMENTS):
            leads = leader_of(alive, version)
            victim = leads if case % 2 == 0 else next(member for member in alive if member is not leads)
            survivors = [member for member in alive if member is not victim]
            newcomer = members.start(victim.path)  # comes up meanwhile, for the next case
            members.begin_round(alive, version)
            time.sleep(duration * (case + 0.5) / MOMENTS)
            victim.kill()
            late += not victim.says_nothing()
            outcomes = members.outcomes(survivors)
            slowest = max(slowest, *(outcome["seconds"] for outcome in outcomes))
            if agree(outcomes, version):
                committed, version = committed + 1, version + 1
            else:
                kept += 1
            members.begin_round(survivors, version)
            outcomes = members.outcomes(survivors)
            assert agree(outcomes, version), "the survivors go on"
            version += 1
            # the first round paid for all the connections, and the machine may be less busy by now
            duration = min(duration, sorted(outcome["seconds"] for outcome in outcomes)[1])
            newcomer.until_ready()
            alive = [*survivors, newcomer]
        assert late <= 1, "killed after their rounds, which proves nothing"
        record_property("killed_in_the_middle", f"{committed} committed, {kept} kept, slowest {slowest:.1f} s")
        print(f"of {MOMENTS}: {committed} committed, {kept} kept; fault-free {duration:.1f} s, slowest {slowest:.1f} s")  # noqa: T201


@pytest.mark.parametrize("frozen", cases("the leader", long=["a member"]))
def test_a_frozen_member_is_left_out_in_bounded_time(
    tmp_path: Path, make_libp2p_swarms: Callable[[int], list[NetworkedSwarm]], frozen: str
) -> None:
    (bootstrap,) = make_libp2p_swarms(1)
    with group(tmp_path, str(bootstrap.address), PARAMETERS) as members:
        alive = [members.start(path) for path in range(3)]
        for member in alive:
            member.until_ready()
        members.begin_round(alive, 0)
        leads = leader_of(alive, 0)
        victim = leads if frozen == "the leader" else next(member for member in alive if member is not leads)
        survivors = [member for member in alive if member is not victim]
        time.sleep(0.1)
        victim.freeze()
        assert victim.says_nothing(), "it was frozen after its round, which proves nothing"
        outcomes = members.outcomes(survivors)
        assert agree(outcomes, 0)
        assert max(outcome["seconds"] for outcome in outcomes) < 40
        victim.thaw()
        (late,) = members.outcomes([victim])
        assert not late["agreed"]
        assert late["version"] == 0
        assert late["gradient_untouched"]
