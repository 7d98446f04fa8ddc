"""A machine is tried on what it would train."""

import pytest

from dipaco_swarm.errors import ManifestError
from dipaco_swarm.training.trial import Trial
from tests.doors.test_manifest import manifest
from tests.training.test_inner import CONFIG, LEVELS, TINY, VOCABULARY


def test_a_trial_takes_a_step_at_least_and_says_how_fast() -> None:
    small = manifest().rules.model_copy(update={"model": TINY, "levels": LEVELS, "inner": CONFIG})
    trial = Trial(small, VOCABULARY)
    assert trial.round_tokens == small.rounds.inner_steps * CONFIG.batch_sequences * small.data.sequence_length
    assert trial.tokens_per_second("cpu", 0.0) > 0
    wrong = small.model_copy(update={"model": TINY.model_copy(update={"model_type": "none"})})
    with pytest.raises(ManifestError):
        Trial(wrong, VOCABULARY).tokens_per_second("cpu", 0.0)
