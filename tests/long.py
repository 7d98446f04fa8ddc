"""Which cases of a test are played when."""

from collections.abc import Iterable

import pytest
from _pytest.mark import ParameterSet


def cases(*always: object, long: Iterable[object]) -> list[object | ParameterSet]:
    """Those of every suite, and those that only the long one plays: more of what the others play already."""
    return [*always, *(pytest.param(case, marks=pytest.mark.long) for case in long)]
