"""Whom a member follows into a round: each row of the table in candidates.py is a line here."""

from dataclasses import fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dipaco_swarm.algorithm.paths import ModuleId
from dipaco_swarm.swarm.round.candidates import (
    DEMOTED_AT,
    DEMOTED_SECONDS,
    FORGIVEN_SECONDS,
    LONGEST_ROUND_SECONDS,
    LONGEST_SECONDS,
    MAX_DEMERITS,
    STRANGERS,
    Candidates,
    Demotions,
    may_redirect,
    most_joined,
    next_leader,
    outnumbered,
    voices,
    with_strangers,
)
from dipaco_swarm.swarm.round.reduction import leader_order

MODULE = ModuleId(0, 1)
FIRST, SECOND, THIRD, FOURTH = leader_order(0, MODULE, 7, ["nora", "ole", "pia", "quin"])


def some(*peers: str) -> frozenset[str]:
    return frozenset(peers)


@pytest.mark.parametrize(
    ("candidates", "leader"),
    [
        (Candidates(some(SECOND, THIRD), some(FIRST)), SECOND),
        (Candidates(some(SECOND, THIRD), some(FIRST), failed=some(SECOND)), THIRD),
        (Candidates(some(SECOND, THIRD), some(FIRST), doubted=some(SECOND)), THIRD),
        (Candidates(some(SECOND, THIRD), some(FIRST), failed=some(SECOND), doubted=some(THIRD)), SECOND),
        (Candidates(some(SECOND, THIRD), some(FIRST), lost=some(SECOND), failed=some(THIRD)), THIRD),
        (Candidates(some(SECOND, THIRD), some(FIRST, FOURTH), lost=some(SECOND, THIRD)), FIRST),
        (Candidates(some(), some(FIRST, FOURTH), failed=some(FIRST)), FOURTH),
        (Candidates(some(), some(FIRST, FOURTH), doubted=some(FIRST, FOURTH)), FIRST),
        (Candidates(some(FIRST), some(SECOND), lost=some(FIRST, SECOND)), None),
        (Candidates(some(), some()), None),
        (Candidates(some(SECOND, THIRD), some(FIRST), waiting=some(SECOND)), THIRD),
        (Candidates(some(SECOND), some(FIRST), lost=some(SECOND), waiting=some(FIRST)), None),
        (Candidates(some(SECOND, THIRD), some(FIRST), demoted=some(SECOND)), THIRD),
        (Candidates(some(SECOND, THIRD), some(FIRST), demoted=some(SECOND, THIRD)), SECOND),
        (Candidates(some(SECOND, THIRD), some(FIRST), demoted=some(SECOND), doubted=some(THIRD)), SECOND),
        (Candidates(some(SECOND, THIRD), some(FIRST), strangers=some(FIRST, SECOND)), THIRD),
        (Candidates(some(SECOND, THIRD), some(FIRST), strangers=some(SECOND, THIRD)), SECOND),
        (Candidates(some(SECOND, THIRD), some(FIRST), strangers=some(SECOND), demoted=some(THIRD)), SECOND),
    ],
)
def test_the_first_row_with_somebody_in_it_decides(candidates: Candidates, leader: str | None) -> None:
    assert next_leader(candidates, 0, MODULE, 7) == leader


@pytest.mark.parametrize(
    ("candidates", "follows"),
    [
        (Candidates(some(SECOND), some()), True),  # not heard of yet
        (Candidates(some(FIRST, SECOND), some(), doubted=some(FIRST)), True),
        (Candidates(some(FIRST, SECOND), some(), lost=some(FIRST)), False),
        (Candidates(some(SECOND), some(), lost=some(FIRST)), False),
        (Candidates(some(FIRST, SECOND), some(), waiting=some(FIRST)), True),  # it gathers the round itself now
        (Candidates(some(FIRST, SECOND), some(), failed=some(FIRST)), False),
        (Candidates(some(SECOND), some(FIRST), failed=some(FIRST)), True),
        (Candidates(some(FIRST, SECOND), some(), demoted=some(FIRST)), True),  # others may have nothing against it
    ],
)
def test_nobody_is_sent_back_to_a_leader_that_was_lost_or_failed(candidates: Candidates, follows: bool) -> None:
    assert may_redirect(candidates, FIRST) == follows


peers = st.frozensets(st.sampled_from([FIRST, SECOND, THIRD, FOURTH, "rolf", "siri"]))
knowledge = st.builds(Candidates, *[peers] * len(fields(Candidates)))


@given(knowledge)
def test_a_leader_is_never_one_that_was_lost_and_there_is_one_if_anybody_is_left(candidates: Candidates) -> None:
    leader = next_leader(candidates, 0, MODULE, 7)
    left = (candidates.dialled | candidates.of_group) - candidates.lost - candidates.waiting
    assert (leader in left) == bool(left)
    assert (leader is None) == (not left)


@given(knowledge)
def test_losing_leaders_one_after_the_other_comes_past_everybody_once(candidates: Candidates) -> None:
    tried: list[str] = []
    left = Candidates(candidates.dialled, candidates.of_group, candidates.lost)
    while (leader := next_leader(left, 0, MODULE, 7)) is not None:
        tried.append(leader)
        left = replace(left, lost=left.lost | {leader})
    assert len(set(tried)) == len(tried)
    assert set(tried) == (candidates.dialled | candidates.of_group) - candidates.lost
    reachable = candidates.dialled - candidates.lost
    assert set(tried[: len(reachable)]) == reachable, "relays come last"


def demoted_for(demotions: Demotions, now: float) -> float:
    """How long a leader is demoted that wastes rounds until it is: two of them the first time, then one."""
    for _ in range(2):
        if not demotions.demoted(now):
            demotions.note("stalls", now, 2)
    step = DEMOTED_SECONDS / 2
    seconds = 0.0
    while demotions.demoted(now + seconds):
        seconds += step
    return seconds


def test_who_wastes_rounds_is_demoted_for_twice_as_long_each_time() -> None:
    demotions, now, lasted = Demotions(), 1000.0, []
    for _ in range(8):
        lasted.append(demoted_for(demotions, now))
        now += lasted[-1]
    assert lasted == [min(DEMOTED_SECONDS * 2**times, LONGEST_SECONDS) for times in range(8)]


def test_a_round_that_was_agreed_on_or_a_long_time_makes_up_for_it() -> None:
    demotions = Demotions()
    first = demoted_for(demotions, 0.0)
    demotions.note("late", 0.0, 2)
    demotions.forgive("late")
    demotions.note("late", 1.0, 2)
    assert "late" not in demotions.demoted(1.0), "once is nothing, and it was in time since"
    demotions.forgive("stalls")
    assert demoted_for(demotions, first) == 2 * first, "what it was demoted for is not forgotten so soon"
    assert demoted_for(demotions, first + FORGIVEN_SECONDS + 1.0) == first
    for _ in range(2):  # a refusal because of a state that nobody has weighs less
        demotions.note("refuses", 0.0)
    assert "refuses" not in demotions.demoted(0.0)
    demotions.note("refuses", 0.0)
    assert "refuses" in demotions.demoted(0.0)


@pytest.mark.parametrize(
    ("round_seconds", "first"), [(2.0, DEMOTED_SECONDS), (420.0, 12 * 420.0), (1e6, 12 * LONGEST_ROUND_SECONDS)]
)
def test_who_is_demoted_misses_rounds_however_long_they_take(round_seconds: float, first: float) -> None:
    demotions = Demotions()
    for seconds in (round_seconds, 1e9, round_seconds):  # in the middle it was away
        demotions.round_took(seconds)
    now = 0.0
    for times in range(6):
        demotions.note("silent", now, DEMOTED_AT)
        lasts = min(first * 2**times, max(LONGEST_SECONDS, 8 * first))
        assert demotions.is_demoted("silent", now + lasts - 1)
        assert not demotions.is_demoted("silent", now + lasts)
        now += lasts + 1.0
    demotions.note("silent", now + 2 * max(FORGIVEN_SECONDS, 8 * first), DEMOTED_AT)
    assert demotions.times() == [1], "what was long ago is forgotten"


def test_only_so_many_names_are_remembered() -> None:
    demotions = Demotions()
    for i in range(2 * MAX_DEMERITS):
        demotions.note(f"name {i}", 0.0, 3)
    assert len(demotions.demoted(0.0)) == MAX_DEMERITS


def test_nobody_is_sent_to_a_demoted_leader_that_fewer_have_joined_than_are_here() -> None:
    alone, with_two = {FIRST: FIRST}, {FIRST: FIRST, SECOND: FIRST}
    assert outnumbered(some(FIRST), alone, here=2) == {FIRST}
    assert not outnumbered(some(FIRST), with_two, here=2), "two that do not go there would make another version"
    assert not outnumbered(some(), alone, here=2)


def test_more_elsewhere_are_more_than_here_and_a_tie_is_broken_by_name() -> None:
    follows = {"a": FIRST, "b": FIRST, "c": SECOND, "d": SECOND, "e": THIRD}
    assert most_joined(follows, here=1) == min(FIRST, SECOND)
    assert most_joined(follows, here=2) is None
    assert most_joined({}, here=0) is None


def test_what_most_others_say_of_somebody_counts_for_a_while_and_is_not_said_on() -> None:
    demotions = Demotions()
    demotions.believe("late", 10.0)
    demotions.note("later", 20.0, DEMOTED_AT)
    assert demotions.demoted(20.0) == {"late", "later"}
    assert demotions.found(20.0) == ["later"], "else what nobody has seen would never end"
    assert demotions.is_demoted("late", 10.0 + DEMOTED_SECONDS - 1.0)
    assert not demotions.is_demoted("late", 10.0 + DEMOTED_SECONDS)
    assert demotions.times() == [1], "nor does it count the next time"
    demotions.believe("late", 100.0)
    demotions.forgive("late")
    assert not demotions.is_demoted("late", 100.0), "it was in time"


def test_of_members_the_known_decide_or_all_where_nobody_is_known() -> None:
    members = frozenset({"ada", "ben", "made up"})
    assert voices(members, lambda name: name == "made up") == {"ada", "ben"}
    assert voices(members, lambda name: True) == members


def test_strangers_are_demoted_together() -> None:
    there = frozenset({"ada", "made up", "another"})
    is_strange = lambda name: name != "ada"  # noqa: E731
    assert with_strangers(frozenset({"ben"}), there, is_strange) == {"ben"}
    assert with_strangers(frozenset({"ben", STRANGERS}), there, is_strange) == {"ben", STRANGERS, "made up", "another"}
