"""Faults that aim at the few messages in which a rule of the protocol matters."""

from pathlib import Path

import pytest

from dipaco_swarm.testing.aims import AIMS, ANYTHING, Aim
from dipaco_swarm.testing.faults import KINDS, MOMENTS
from dipaco_swarm.testing.stories import tell
from tests.long import cases

SECONDS = 60.0
SHORT = ("stopped when ready",)
"""The others only in the long suite."""


@pytest.mark.parametrize("aim", [ANYTHING, *AIMS.values()], ids=["anything", *AIMS])
def test_every_kind_and_moment_exists(aim: Aim) -> None:
    assert set(aim.kinds) <= KINDS.keys()
    assert set(aim.moments) <= {"", *MOMENTS}


@pytest.mark.parametrize("aim", cases(*SHORT, long=sorted(AIMS.keys() - {*SHORT})))
def test_every_token_is_accounted_for_whatever_moment_is_aimed_at(tmp_path: Path, aim: str) -> None:
    outcome = tell(0, tmp_path, seconds=SECONDS, overlap=True, aim=AIMS[aim])
    assert outcome.faults
    assert not outcome.violations
    assert outcome.commits > 0
