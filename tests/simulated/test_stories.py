"""Whole swarms in virtual time: what holds in every one of them."""

from pathlib import Path

import pytest

from dipaco_swarm.testing.stories import tell

from .seeds import seeds

MOVED_AWAY = (19, 45, 59)
"""Where a newcomer went on alone from a version that the others had just left behind, and each other's way."""
FOUR_BITS = (1002, 1017)
"""A run with int4, and one with e3m0."""


@pytest.mark.parametrize("seed", seeds(0, *MOVED_AWAY, long=range(1, 4)))
def test_without_faults_nothing_forks_and_nothing_is_lost(tmp_path: Path, seed: int) -> None:
    outcome = tell(seed, tmp_path, faulty=False, seconds=60.0)
    assert not outcome.violations
    assert not outcome.forks
    assert not outcome.balance.lost
    assert outcome.commits > 0


@pytest.mark.parametrize("seed", seeds(100, 102, *FOUR_BITS, long=(101, *range(103, 108))))
def test_whatever_breaks_every_token_is_accounted_for_and_all_are_one_again(tmp_path: Path, seed: int) -> None:
    outcome = tell(seed, tmp_path, seconds=90.0)
    assert outcome.faults
    assert not outcome.violations
    assert outcome.commits > 0
