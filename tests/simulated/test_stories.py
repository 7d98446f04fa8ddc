"""Whole swarms in virtual time: what holds in every one of them."""

from pathlib import Path

import pytest

from dipaco_swarm.testing.ledger import AT_THE_EDGE
from dipaco_swarm.testing.stories import tell
from tests.long import cases

MOVED_AWAY = (19, 45, 59)
"""Where a newcomer went on alone from a version that the others had just left behind, and each other's way."""


@pytest.mark.parametrize("seed", cases(0, MOVED_AWAY[0], long=(1, 2, 3, *MOVED_AWAY[1:])))
def test_without_faults_nothing_forks_and_nothing_is_lost(tmp_path: Path, seed: int) -> None:
    outcome = tell(seed, tmp_path, faulty=False, seconds=60.0)
    assert not outcome.violations
    assert not outcome.forks
    assert not outcome.balance.lost.keys() - AT_THE_EDGE
    assert outcome.commits > 0


@pytest.mark.parametrize("seed", cases(100, long=(*range(101, 108), 1002, 1017)))
def test_whatever_breaks_every_token_is_accounted_for_and_all_are_one_again(tmp_path: Path, seed: int) -> None:
    outcome = tell(seed, tmp_path, seconds=90.0)
    assert outcome.faults
    assert not outcome.violations, "nobody is banned, for one"
    assert outcome.most_demotions <= 2, "who was in bad weather is not waited for, for three minutes in all"
    assert outcome.commits > 0
