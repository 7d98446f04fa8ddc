"""What becomes of a module's local progress when its agreed state is replaced."""

from dataclasses import replace

import pytest
import torch

from dipaco_swarm.algorithm.progress import ModuleProgress, adopted, rebased
from dipaco_swarm.algorithm.state import ModuleState


def state(version: int, value: float) -> ModuleState:
    return ModuleState(version, torch.full((3,), value), torch.zeros(3), work=100 * version)


OURS = ModuleProgress(state(4, 1.0), tokens=640, failed_at=600, catching_up=True)
LOCAL = torch.full((3,), 1.5)  # half a step beyond the agreed state


def test_the_groups_next_state_is_taken_as_it_is() -> None:
    progress, vector = adopted(OURS, state(5, 2.0))
    assert (progress.version, progress.tokens, progress.failed_at, progress.catching_up) == (5, 0, None, False)
    assert torch.equal(vector, torch.full((3,), 2.0))


@pytest.mark.parametrize(
    ("given_at", "to", "value", "tokens"),
    [
        (None, 6, 2.5, 640),  # on top of what the others have
        (4, 6, 2.0, 0),  # it is in what they have, and would count twice
        (3, 6, 2.5, 640),  # what was given was older, and has been counted; this is new
        (4, 4, 2.5, 640),  # the other half of a partition, which has never seen it
    ],
)
def test_progress_is_kept_unless_the_others_have_it(given_at: int | None, to: int, value: float, tokens: int) -> None:
    ours = replace(OURS, given_at=given_at)
    progress, vector = rebased(ours, state(to, 2.0), LOCAL.clone())
    assert torch.equal(vector, torch.full((3,), value))
    assert (progress.version, progress.tokens, progress.failed_at) == (to, tokens, None)


def test_what_was_given_is_remembered_for_an_old_checkpoint_and_forgotten_with_its_version() -> None:
    ours = ModuleProgress(OURS.base, 640, given_at=4)
    assert adopted(ours, state(5, 2.0))[0].given_at == 4
    assert rebased(ours, state(6, 2.0), LOCAL.clone())[0].given_at == 4
    assert rebased(ours, state(4, 2.0), LOCAL.clone())[0].given_at is None
    assert adopted(ours, ours.base)[0].given_at is None
