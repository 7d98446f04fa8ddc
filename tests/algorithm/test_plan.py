"""What a peer does next: each row of the table in plan.py is a line here."""

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dipaco_swarm.algorithm.paths import ModuleId
from dipaco_swarm.algorithm.plan import (
    Action,
    CatchUp,
    Claim,
    Leave,
    MoveOn,
    Pause,
    Situation,
    Train,
    Wait,
    better_claim,
    next_action,
)

BEHIND = CatchUp(ModuleId(0, 1), Claim(4, "d" * 64))
EVERYTHING = Situation(
    stopping=True,
    paused=True,
    newer_stage=True,
    catch_up=(BEHIND,),
    run_finished=True,
    stage_done=True,
    peers=1,
    peers_needed=3,
)


@pytest.mark.parametrize(
    ("now", "action"),
    [
        (EVERYTHING, Leave()),
        (replace(EVERYTHING, stopping=False), MoveOn()),
        (replace(EVERYTHING, stopping=False, run_finished=False), Pause()),
        (replace(EVERYTHING, stopping=False, run_finished=False, paused=False), MoveOn()),
        (replace(EVERYTHING, stopping=False, newer_stage=False), BEHIND),
        (Situation(run_finished=True, leaves_when_finished=True), Leave()),
        (Situation(begun=True), Train()),
        (Situation(peers=3, peers_needed=3), Train()),
        (Situation(begun=True, peers=1, peers_needed=3), Train()),
    ],
)
def test_the_first_row_that_fits_decides(now: Situation, action: Action) -> None:
    assert next_action(now) == action


@pytest.mark.parametrize(
    ("now", "wait"),
    [
        (Situation(run_finished=True, stage_done=True), Wait("finished")),
        (Situation(stage_done=True, peers=1, peers_needed=2), Wait("stage")),
        (Situation(peers=1, peers_needed=3), Wait("peers", 2)),
        (Situation(peers=2, peers_needed=3), Wait("peers", 1)),
    ],
)
def test_a_wait_says_what_for(now: Situation, wait: Wait) -> None:
    assert next_action(now) == wait


A, B, C = (letter * 64 for letter in "abc")


@pytest.mark.parametrize(
    ("ours", "others", "better"),
    [
        (Claim(3, B, 30), [], None),
        (Claim(3, B, 30), [Claim(3, B, 30), Claim(2, A, 20)], None),
        (Claim(3, B, 30), [Claim(4, C, 40)], Claim(4, C, 40)),
        (Claim(3, B, 30), [Claim(9, C, 29), Claim(9, C, 29)], None),
        (Claim(9, B, 29), [Claim(3, C, 30)], Claim(3, C, 30)),
        (Claim(3, B, 30), [Claim(4, B.upper(), 30)], Claim(4, B.upper(), 30)),
        (Claim(3, B, 30), [Claim(3, A, 30)], Claim(3, A, 30)),
        (Claim(3, A, 30), [Claim(3, B, 30), Claim(3, C, 30)], None),
    ],
    ids=["alone", "older", "newer", "many versions, less work", "a lone fast peer", "as much work", "smaller", "ours"],
)
def test_the_state_with_the_most_work_behind_it_wins(ours: Claim, others: list[Claim], better: Claim | None) -> None:
    assert better_claim(ours, others) == better


# a digest covers version and work
claims = st.builds(lambda v, w, d: Claim(v, f"{d}{v}{w}", w), st.integers(0, 9), st.integers(0, 9), st.integers(0, 9))


@given(claims, st.lists(claims), st.randoms())
def test_whoever_is_heard_first_all_choose_the_same(ours: Claim, others: list[Claim], random: Random) -> None:
    best = better_claim(ours, others) or ours
    everybody = [ours, *others]
    random.shuffle(everybody)
    first, *rest = everybody
    assert (better_claim(first, rest) or first) == best


def test_two_halves_that_meet_again_choose_the_same() -> None:
    left, right = Claim(7, B), Claim(7, A)
    assert {better_claim(left, [right]) or left, better_claim(right, [left]) or right} == {right}
