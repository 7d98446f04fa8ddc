"""What becomes of a module's local progress when its agreed state is replaced."""

from dataclasses import replace

import pytest
import torch

from dipaco_swarm.algorithm.progress import OLDEST, ModuleProgress, Part, adopted, rebased, resumed, weight_at
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
        (None, 5, 2.5, 640),  # on top of what the others have
        (None, 6, 2.25, 640),  # two versions old, it counts half
        (4, 5, 2.0, 0),  # it is in what they have, and would count twice
        (3, 5, 2.5, 640),  # what was given was older, and has been counted; this is new
        (4, 4, 2.5, 640),  # the other half of a partition, which has never seen it
    ],
)
def test_progress_is_kept_unless_the_others_have_it(given_at: int | None, to: int, value: float, tokens: int) -> None:
    ours = replace(OURS, given_at=given_at)
    progress, vector = rebased(ours, state(to, 2.0), LOCAL.clone())
    assert torch.equal(vector, torch.full((3,), value))
    assert (progress.version, progress.tokens, progress.failed_at) == (to, tokens, None)


def test_the_older_progress_is_the_less_it_counts() -> None:
    weights = [weight_at(age) for age in range(OLDEST + 2)]
    assert weights[:3] == [1.0, 1.0, 0.5]
    assert weights == sorted(weights, reverse=True)
    assert weights[OLDEST] > 0 == weights[OLDEST + 1]


HALF = Part(400, torch.full((3,), 1.25))
"""What a round had of LOCAL, which has moved by 0.5 since version 4."""


@pytest.mark.parametrize(
    ("given_at", "part", "to", "value", "local", "given", "stale"),
    [
        (None, None, 4, 1.5, 640, 0, 0),  # the group is where it was
        (None, None, 5, 2.5, 640, 0, 0),  # it has gone on without us
        (None, None, 5 + OLDEST, 2.0, 0, 0, 640),
        (4, None, 5, 2.0, 0, 640, 0),  # it may have all that was saved...
        (4, HALF, 5, 2.25, 240, 400, 0),  # ... or so much of it
        (4, HALF, 5 + OLDEST, 2.0, 0, 400, 240),
        (3, None, 5, 2.5, 640, 0, 0),  # what was given was counted before this was trained
        (7, None, 6, 2.0, 0, 640, 0),  # given after the checkpoint was saved
    ],
)
def test_what_a_checkpoint_is_worth(
    given_at: int | None, part: Part | None, to: int, value: float, local: int, given: int, stale: int
) -> None:
    left = resumed(ModuleProgress(OURS.base, 640, given_at, part), state(to, 2.0 if to > 4 else 1.0), LOCAL.clone())
    assert torch.allclose(left.params, torch.full((3,), value))
    assert (left.progress.version, left.progress.tokens, left.given, left.stale) == (to, local, given, stale)


@pytest.mark.parametrize(("now", "to"), [(6, 7), (7, 8), (3, 5)])
def test_what_is_trained_on_another_state_than_the_checkpoints_is_kept(now: int, to: int) -> None:
    """Whose last round, from version 7, may have had the checkpoint's progress: that of version 4."""
    left = resumed(ModuleProgress(OURS.base, 640, given_at=7), state(now, 1.0), LOCAL.clone())
    progress, _ = rebased(left.progress.trained(160), state(to, 2.0), left.params + 0.25)
    assert progress.tokens == 160


@pytest.mark.parametrize("given_at", [4, 5])  # 5: the checkpoint is older than the last round that was begun
def test_what_is_trained_after_a_crash_is_told_from_what_may_have_been_given_before(given_at: int) -> None:
    left = resumed(ModuleProgress(OURS.base, 640, given_at=given_at), OURS.base, LOCAL.clone())
    progress, vector = rebased(left.progress.trained(160), state(5, 2.0), LOCAL + 0.25)
    assert progress.tokens == 160
    assert torch.allclose(vector, torch.full((3,), 2.25))


def test_what_was_given_is_remembered_for_an_old_checkpoint_and_forgotten_with_its_version() -> None:
    ours = ModuleProgress(OURS.base, 640, given_at=4)
    assert adopted(ours, state(5, 2.0))[0].given_at == 4
    assert rebased(ours, state(6, 2.0), LOCAL.clone())[0].given_at == 4
    assert rebased(ours, state(4, 2.0), LOCAL.clone())[0].given_at is None
    assert adopted(ours, ours.base)[0].given_at is None
