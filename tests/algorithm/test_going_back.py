"""What a restored state counts for, and which anchors are kept."""

import pytest
import torch

from dipaco_swarm.algorithm.anchors import kept
from dipaco_swarm.algorithm.generations import (
    GENERATION,
    MAX_GENERATION,
    generation_of,
    more_work,
    restored,
    taken_back,
    tokens_of,
)
from dipaco_swarm.algorithm.paths import ModuleId
from dipaco_swarm.algorithm.plan import Claim
from dipaco_swarm.algorithm.progress import ModuleProgress, Part, rebased, resumed
from dipaco_swarm.algorithm.state import MAX_WORK, ModuleState

MODULE = ModuleId(0, 1)


def state_at(version: int, work: int, value: float = 0.0) -> ModuleState:
    return ModuleState(version, torch.full((8,), value), torch.zeros(8), work)


def test_a_restored_state_beats_whatever_was_done_since() -> None:
    old, bad = state_at(20, 5000, 1.0), state_at(40, GENERATION - 1, 2.0)
    back = restored(old, 1)
    assert Claim.of(back).beats(Claim.of(bad))
    assert not Claim.of(bad).beats(Claim.of(back))
    assert (back.version, generation_of(back.work), tokens_of(back.work)) == (20, 1, 5000)
    assert torch.equal(back.params, old.params)
    assert torch.equal(back.momentum, old.momentum)
    assert back.digest == ModuleState(20, old.params, old.momentum, back.work).digest != old.digest


def test_going_back_twice_counts_for_more_than_once() -> None:
    once = restored(state_at(20, 5000), 1)
    further = state_at(30, more_work(once.work, 10**15))
    again = restored(state_at(10, 2000), generation_of(further.work) + 1)
    assert Claim.of(again).beats(Claim.of(further))
    assert generation_of(restored(further, 3).work) == 3


@pytest.mark.parametrize("generation", [0, 1, MAX_GENERATION])
def test_whatever_members_say_that_they_have_trained_the_generation_stays(generation: int) -> None:
    work = generation * GENERATION + 7
    for _ in range(100):
        work = more_work(work, 1 << 58)
    assert generation_of(work) == generation
    assert work <= MAX_WORK


def test_who_has_what_was_taken_back_is_told_so() -> None:
    back = restored(state_at(20, 5000), 1)
    assert taken_back({MODULE: state_at(40, 9000)}, {MODULE: 1}) == {MODULE}
    assert taken_back({MODULE: back}, {MODULE: 1}) == taken_back({MODULE: back}, {}) == frozenset()


@pytest.mark.parametrize("given_at", [None, 40])
def test_what_was_trained_from_what_is_taken_back_is_dropped(given_at: int | None) -> None:
    progress = ModuleProgress(state_at(40, 9000, 2.0), 640, given_at)
    back = restored(state_at(20, 5000, 1.0), 1)
    left = resumed(progress, back, torch.full((8,), 9.0))
    for after, params in (rebased(progress, back, torch.full((8,), 9.0)), (left.progress, left.params)):
        assert (after.tokens, after.given_at, after.part) == (0, None, None)
        assert torch.equal(params, back.params)
    assert (left.taken_back, left.given, left.stale) == (640, 0, 0)


def test_progress_from_a_restored_state_is_kept_as_ever() -> None:
    back = restored(state_at(20, 5000, 1.0), 1)
    on = state_at(21, more_work(back.work, 100), 1.5)
    progress = ModuleProgress(back, 64, None, Part(32, torch.full((8,), 1.25)))
    after, params = rebased(progress, on, torch.full((8,), 2.0))
    assert after.tokens == 64
    assert torch.equal(params, torch.full((8,), 2.5))


def test_anchors_are_thinned_out_with_age() -> None:
    there: tuple[int, ...] = ()
    seen = []
    for number in range(1, 200):
        there = kept((*there, number), 3)
        seen.append(there)
        assert number in there
        assert len(there) == min(number, 3)
    for newest, (*_, middle, last) in enumerate(seen[20:], start=21):
        assert last == newest
        assert newest - middle <= 4
        oldest = seen[newest - 1][0]
        assert 4 < newest - oldest <= 32


@pytest.mark.parametrize(
    ("numbers", "most", "left"), [((), 3, ()), ((1, 2), 0, ()), ((5,), 3, (5,)), ((3, 4), 1, (4,))]
)
def test_few_anchors(numbers: tuple[int, ...], most: int, left: tuple[int, ...]) -> None:
    assert kept(numbers, most) == left
