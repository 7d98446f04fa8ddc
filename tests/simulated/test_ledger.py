"""The ledger of a simulated run: whose tokens are where."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dipaco_swarm.algorithm.paths import ModuleId
from dipaco_swarm.testing.ledger import Ledger, Version
from dipaco_swarm.testing.ranges import Ranges

PLACE = (0, ModuleId(0, 0))


def version(digest: str, parent: str, number: int, work: int) -> Version:
    return Version(digest, parent, number, work)


@pytest.fixture
def ledger() -> Ledger:
    """Ada has trained 10 tokens, and given 6 of them to the version "one"."""
    ledger = Ledger()
    ledger.train("ada", PLACE, 6)
    ledger.give("ada", PLACE, "seed", 6)
    ledger.commit(1.0, PLACE, version("one", "seed", 1, 6), {"ada": 6})
    ledger.train("ada", PLACE, 4)
    return ledger


def test_every_token_is_somewhere(ledger: Ledger) -> None:
    ledger.local["ada", PLACE] = 4
    balance = ledger.balance({PLACE: "one"})
    assert (balance.trained, balance.counted, balance.local) == (10, 6, 4)
    assert not balance.lost
    assert not balance.nowhere
    assert not balance.twice


def test_tokens_that_nobody_has_are_noticed(ledger: Ledger) -> None:
    ledger.local["ada", PLACE] = 1
    assert ledger.balance({PLACE: "one"}).nowhere == {"ada L0M0": 3}


def test_tokens_that_are_written_down_as_lost_are_not_nowhere(ledger: Ledger) -> None:
    ledger.drop("ada", PLACE, 1, "too old")
    ledger.local["ada", PLACE] = 1
    balance = ledger.balance({PLACE: "one"})
    assert balance.lost == {"too old": 3}
    assert not balance.nowhere


def test_what_is_in_a_version_and_still_local_would_count_twice(ledger: Ledger) -> None:
    ledger.local["ada", PLACE] = 10
    assert ledger.balance({PLACE: "one"}).twice == {"ada L0M0": 6}


def test_what_is_in_a_version_twice_is_noticed(ledger: Ledger) -> None:
    ledger.give("ada", PLACE, "one", 10)
    ledger.commit(2.0, PLACE, version("two", "one", 2, 16), {"ada": 10})
    assert ledger.balance({PLACE: "two"}).twice == {"ada L0M0": 6}


def test_a_version_that_another_replaced_is_a_fork_and_its_tokens_are_lost(ledger: Ledger) -> None:
    ledger.train("bob", PLACE, 8)
    ledger.give("bob", PLACE, "seed", 8)
    ledger.commit(2.0, PLACE, version("other", "seed", 1, 8), {"bob": 8})
    ledger.local["ada", PLACE] = 4
    assert ledger.forks(PLACE) == 1
    balance = ledger.balance({PLACE: "other"})
    assert balance.counted == 8
    assert balance.lost == {"in versions that another replaced": 6}


def test_a_contribution_that_starts_from_another_state_is_a_violation(ledger: Ledger) -> None:
    ledger.give("ada", PLACE, "one", 4)
    ledger.commit(2.0, PLACE, version("two", "elsewhere", 2, 10), {"ada": 4})
    assert [found.rule for found in ledger.violations] == ["a round starts from one state"]


@pytest.mark.parametrize(("base", "tokens", "right"), [("seed", 6, True), ("seed", 7, False), ("one", 1, False)])
def test_whoever_goes_on_without_more_than_it_gave_is_noticed(
    ledger: Ledger, base: str, tokens: int, right: bool
) -> None:
    ledger.check_given(2.0, "ada", PLACE, base, tokens)
    assert [found.rule for found in ledger.violations] == ([] if right else ["what nobody has is kept"])


ranges = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), max_size=6)


@given(ranges, ranges)
def test_ranges_are_sets(one: list[tuple[int, int]], two: list[tuple[int, int]]) -> None:
    def numbers(some: Ranges) -> set[int]:
        return {number for start, stop in some.ranges for number in range(start, stop)}

    a, b = Ranges(one), Ranges(two)
    assert numbers(a | b) == numbers(a) | numbers(b)
    assert numbers(a & b) == numbers(a) & numbers(b)
    assert numbers(a - b) == numbers(a) - numbers(b)
    assert len(a) == len(numbers(a))
