"""Rules that the benchmark of mutations takes out are rules of the code as it is."""

from importlib.util import find_spec
from pathlib import Path

import pytest

from benchmarks.simulated_mutations import MUTATIONS, Mutation
from dipaco_swarm.testing.aims import AIMS


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.rule)
def test_a_rule_that_can_be_taken_out_is_in_one_place_of_the_code(mutation: Mutation) -> None:
    spec = find_spec(mutation.module)
    assert spec is not None
    assert spec.origin is not None
    assert Path(spec.origin).read_text().count(mutation.old) == 1
    assert not mutation.aim or mutation.aim in AIMS
