"""When a round is due: pacings over one view of a group."""

from dataclasses import replace

import pytest

from dipaco_swarm.algorithm.pacing.paced import (
    CATCH_UP_ROUNDS,
    PACED,
    PATIENCE_FLOOR_SECONDS,
    STRANGERS_EVERY,
    was_put_off,
)
from dipaco_swarm.algorithm.pacing.pacing import GroupView, Other
from dipaco_swarm.algorithm.pacing.synchronous import SYNCHRONOUS
from dipaco_swarm.algorithm.paths import PathIndex

OURS, THEIRS = PathIndex(0), PathIndex(1)
ALONE = GroupView(OURS, version=20, tokens=100, failed_at=None, gathering=False, others=(), round_tokens=100)
BESIDE = Other(THEIRS, version=20, tokens=60, speaks=True)
REPLICA = replace(BESIDE, path=OURS, version=19, tokens=0)
STRANGER = replace(BESIDE, tokens=1 << 40, known=False)


def beside(*others: Other, **changes: object) -> GroupView:
    return replace(ALONE, others=others, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("view", "due"),
    [
        (ALONE, True),
        (replace(ALONE, tokens=99), False),
        # every staffed path adds a full round to the target, every member brings what it has
        (beside(BESIDE), False),
        (beside(BESIDE, tokens=140), True),
        (beside(BESIDE, replace(BESIDE, tokens=40)), True),
        # who is at another version brings nothing
        (beside(BESIDE, replace(BESIDE, version=19, tokens=900)), False),
        # somebody gathers: come with whatever there is, and not without anything
        (beside(BESIDE, tokens=1, gathering=True), True),
        (beside(BESIDE, tokens=0, gathering=True), False),
        # after a failure: something new if we are called, a twentieth of a round if not
        (replace(ALONE, failed_at=100), False),
        (replace(ALONE, failed_at=100, tokens=105), True),
        (replace(ALONE, failed_at=100, tokens=101, gathering=True), True),
        (replace(ALONE, failed_at=100, gathering=True), False),
        # a path that is behind and speaks is waited for, some rounds' worth of training; one too far behind is not
        (beside(replace(BESIDE, version=19), tokens=200), False),
        (beside(replace(BESIDE, version=19), tokens=200 * CATCH_UP_ROUNDS), True),
        (beside(replace(BESIDE, version=19, speaks=False), tokens=200), True),
        (beside(replace(BESIDE, version=19 - CATCH_UP_ROUNDS), tokens=200), True),
        (beside(replace(BESIDE, version=19), BESIDE, tokens=140), True),  # another on its path is here
        # nor is a replica, unless as many are behind as are here: else every round would have the same half of them
        (beside(REPLICA), False),
        (beside(REPLICA, tokens=100 * CATCH_UP_ROUNDS), True),
        (beside(REPLICA, replace(REPLICA, version=20)), True),
        (beside(REPLICA, REPLICA, replace(REPLICA, version=20)), False),
        (beside(replace(REPLICA, speaks=False)), True),
        (beside(replace(REPLICA, version=19 - CATCH_UP_ROUNDS)), True),
        (beside(replace(REPLICA, known=False)), True),
        # what a round was to have and left out makes the next one due no sooner, and is brought when somebody gathers
        (beside(BESIDE, tokens=1139, carried=1000), False),
        (beside(BESIDE, tokens=1140, carried=1000), True),
        (beside(BESIDE, tokens=1000, carried=1000, gathering=True), True),
        # of a stranger's word nothing depends: neither its tokens nor its path count, and its call only at nine tenths
        # of a round, or half of one where nobody is known
        (beside(STRANGER, tokens=99), False),
        (beside(STRANGER, tokens=100), True),
        (beside(BESIDE, STRANGER, tokens=119, asked=True), False),
        (beside(BESIDE, STRANGER, tokens=120, asked=True), True),
        (beside(STRANGER, tokens=49, asked=True), False),
        (beside(STRANGER, tokens=50, asked=True), True),
        (beside(STRANGER, tokens=0, asked=True), False),
        # who has made versions alone is called no more often than who knows others
        (replace(beside(STRANGER, tokens=89, asked=True), passed=60.0), False),
        (replace(beside(STRANGER, tokens=90, asked=True), passed=60.0), True),
        # who is a stranger itself comes when the others have nine tenths of a round without it: it would sit and wait;
        # unless it came too late before, or nobody is here whom it knows, or they never have
        (beside(BESIDE, tokens=900, counts=False), False),
        (beside(replace(BESIDE, tokens=89), tokens=900, counts=False), False),
        (beside(replace(BESIDE, tokens=90), tokens=110, counts=False), True),
        (beside(replace(BESIDE, tokens=90), tokens=109, counts=False), False),
        (beside(BESIDE, replace(BESIDE, path=OURS), tokens=900, counts=False), False),
        (beside(BESIDE, tokens=140, counts=False, too_late=True), True),
        (beside(BESIDE, tokens=1, counts=False, gathering=True), True),
        (beside(BESIDE, tokens=200 * CATCH_UP_ROUNDS, counts=False), True),
        (beside(replace(BESIDE, version=19, speaks=False), tokens=200, counts=False), True),
        (beside(STRANGER, tokens=100, counts=False), True),
        # ... and it is waited for now and then
        (beside(replace(STRANGER, version=19), tokens=100), False),
        (beside(replace(STRANGER, version=19), tokens=100 * CATCH_UP_ROUNDS), True),
        (beside(replace(STRANGER, version=19), tokens=100, since_put_off=STRANGERS_EVERY - 1), True),
        (beside(replace(STRANGER, version=19), tokens=100, since_put_off=STRANGERS_EVERY), False),
    ],
)
def test_a_paced_round_is_due_when_the_group_has_enough(view: GroupView, due: bool) -> None:
    assert PACED.is_due(view) == due


def test_a_version_was_put_off_when_it_took_two_rounds_of_training() -> None:
    assert not was_put_off(replace(ALONE, tokens=199))
    assert was_put_off(replace(ALONE, tokens=200))
    assert was_put_off(beside(replace(BESIDE, tokens=390), tokens=10))
    assert not was_put_off(replace(ALONE, tokens=1199, carried=1000))


def test_a_synchronous_round_is_due_whatever_others_have_after_exactly_its_steps() -> None:
    assert SYNCHRONOUS.is_due(beside(BESIDE, tokens=1))
    assert not SYNCHRONOUS.ends_early
    assert PACED.ends_early


def test_synchronous_rounds_wait_much_longer_than_paced_ones() -> None:
    assert SYNCHRONOUS.patience(1.0) == 3600.0
    assert SYNCHRONOUS.patience(600.0) == 6000.0
    assert PACED.patience(60.0) == 60.0
    assert PACED.patience(0.1) == PATIENCE_FLOOR_SECONDS
