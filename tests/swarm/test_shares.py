"""What a peer gives for answers is divided fairly, however much one asker asks for."""

from collections import Counter
from dataclasses import dataclass

import pytest

from dipaco_swarm.peer.shares import BURST_SECONDS, SHARE, WAITING, Allowance, Turns
from tests.clocks import HandClock


@dataclass(eq=False)
class Question:
    asker: str


def take_all(allowance: Allowance, clock: HandClock, askers: str, seconds: int) -> Counter[str]:
    """Seconds that each got, when all ask all the time, the first one first."""
    taken: Counter[str] = Counter()
    for _ in range(seconds):
        waits = [(allowance.seconds_until_some(asker), asker) for asker in askers]
        asker = next((asker for wait, asker in waits if wait == 0), None)
        if asker is not None:
            allowance.spend(1.0, asker)
            taken[asker] += 1
        clock.now += 1.0
    return taken


def test_answers_take_a_small_share_of_the_time() -> None:
    clock = HandClock()
    allowance = Allowance(clock)
    taken = take_all(allowance, clock, "a", 10_000)["a"]
    assert 0.9 * SHARE * 10_000 <= taken <= BURST_SECONDS + SHARE * 10_000 + 2
    clock.now += 10_000
    assert allowance.left == BURST_SECONDS


def test_who_asks_all_the_time_leaves_half_of_a_burst_to_who_comes_then() -> None:
    clock = HandClock()
    allowance = Allowance(clock)
    greedy = take_all(allowance, clock, "a", 60)["a"]
    assert greedy <= BURST_SECONDS / 2 + SHARE * 60 + 1
    assert allowance.seconds_until_some("b") == 0
    both = take_all(allowance, clock, "ab", 20_000)  # the one that is always the first of both
    assert both["b"] >= 0.8 * both["a"]
    assert sum(both.values()) <= BURST_SECONDS + SHARE * 20_000 + 2


def test_a_wait_that_was_said_is_enough_and_no_shorter_one_would_be() -> None:
    clock = HandClock()
    allowance = Allowance(clock)
    allowance.spend(12.0, "a")
    wait = allowance.seconds_until_some("a")  # it has had more than is left
    assert wait > 0
    clock.now += 0.9 * wait
    assert allowance.seconds_until_some("a") > 0
    clock.now += 0.1 * wait + 1e-6
    assert allowance.seconds_until_some("a") == 0
    allowance.spend(allowance.left, "a")
    wait = allowance.seconds_until_some("b")  # nothing is left
    clock.now += 0.9 * wait
    assert allowance.seconds_until_some("b") > 0
    clock.now += 0.1 * wait + 1e-6
    assert allowance.seconds_until_some("b") == 0


@pytest.mark.parametrize("mine", [1, 2, 3])
def test_who_has_had_least_is_read_first(mine: int) -> None:
    turns: Turns[Question] = Turns(4)
    many = [Question("many") for _ in range(mine)]
    one = Question("one")
    for question in (*many, one):
        assert turns.add(question) == []
    assert set(turns.begun()) == {*many, one}
    for question in turns.begun():  # all have a token, in one turn
        turns.spent(question, 1.0)
    turns.spent(many[0], 0.5)
    assert turns.begun()[0] is one, "whoever has many questions is read no more often"
    turns.spent(one, 0.25 + mine)
    assert turns.begun()[-1] is one


def test_who_has_none_takes_the_place_of_one_of_several() -> None:
    turns: Turns[Question] = Turns(2)
    first, second, other, third = Question("a"), Question("a"), Question("b"), Question("c")
    assert turns.add(first) == turns.add(second) == []
    assert turns.begun() == [first, second]
    assert turns.add(other) in ([first], [second])
    assert other in set(turns)
    assert turns.add(third) == []  # nobody has two
    assert other in turns.begun()
    assert third not in turns.begun()
    turns.remove(other)
    assert third in turns.begun()


def test_the_queue_is_bounded_and_nobody_fills_it_alone() -> None:
    turns: Turns[Question] = Turns(1)
    for _ in range(1 + WAITING):
        assert turns.add(Question("a")) == []
    assert len(turns.begun()) == 1
    too_many, other = Question("a"), Question("b")
    assert turns.add(too_many) == [too_many]
    (gone,) = turns.add(other)
    assert gone.asker == "a"
    assert len(turns) == 1 + WAITING
    assert other in set(turns)
    for question in list(turns):
        turns.remove(question)
    assert turns.begun() == []
