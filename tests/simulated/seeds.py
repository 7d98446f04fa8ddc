"""Which seeds are played when."""

from collections.abc import Iterable

import pytest
from _pytest.mark import ParameterSet


def seeds(*always: int, long: Iterable[int]) -> list[int | ParameterSet]:
    """Those of every suite, and those that only the long one plays; `benchmarks.simulated` plays a thousand."""
    return [*always, *(pytest.param(seed, marks=pytest.mark.long) for seed in long)]
