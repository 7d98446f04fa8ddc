"""How much a contribution bends the loss."""

import math
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from dipaco_swarm.training.bending import bends
from dipaco_swarm.training.inner import InnerTrainer, TrainingSettings
from dipaco_swarm.training.modules import PathModel
from tests.training.test_inner import CONFIG, VOCABULARY, batches, path_model

Way = list[tuple[slice, Tensor]]


def on() -> bool:
    """Nobody asks to stop."""
    return False


def count_upwards(step: int) -> Tensor:
    """Sequences in which each token is that before plus one: something can be learned."""
    first = torch.randint(VOCABULARY, (CONFIG.batch_sequences, 1), generator=torch.Generator().manual_seed(step))
    return (first + torch.arange(12)) % VOCABULARY


def trained(steps: int) -> InnerTrainer:
    trainer = InnerTrainer(path_model(), CONFIG, TrainingSettings())
    trainer.train((count_upwards(step) for step in range(steps)), steps)
    return trainer


def whole(vector: Tensor) -> Way:
    return [(slice(0, len(vector)), vector)]


def random_way(model: PathModel, length: float, seed: int = 0) -> Tensor:
    vector = torch.randn(model.size(0), generator=torch.Generator().manual_seed(seed))
    return vector * (length / float(vector.norm()))


def test_the_model_is_left_as_it_was_and_in_training() -> None:
    trainer = trained(3)
    before = [trainer.model.vector(level) for level in range(2)]
    trainer.model.network.train()
    assert len(trainer.bends(0, [whole(random_way(trainer.model, 1.0)), []], on)) == 2
    assert all(torch.equal(trainer.model.vector(level), before[level]) for level in range(2))
    assert trainer.model.network.training

    with pytest.raises(RuntimeError, match="size"):  # a way that does not fit
        trainer.bends(0, [whole(random_way(trainer.model, 1.0)), [(slice(0, 2), torch.ones(3))]], on)
    assert torch.equal(trainer.model.vector(0), before[0])


@pytest.mark.parametrize("passes", [0, 1, 3])
def test_who_is_asked_to_stop_ends_with_the_pass_it_is_in_and_with_its_model_as_it_was(passes: int) -> None:
    trainer = trained(3)
    before, asked = trainer.model.vector(0), 0

    def stop() -> bool:
        nonlocal asked
        asked += 1
        return asked > passes

    assert trainer.bends(0, [whole(random_way(trainer.model, 1.0))] * 4, stop) == []
    assert asked == passes + 1
    assert torch.equal(trainer.model.vector(0), before)


def test_training_goes_on_with_the_same_bytes() -> None:
    one, other = trained(3), trained(3)
    one.bends(1, [[(slice(0, 20), torch.ones(20))]], on)
    for trainer in (one, other):
        trainer.train(batches(3), 2)
    assert all(torch.equal(one.model.vector(level), other.model.vector(level)) for level in range(2))


def test_before_the_first_step_there_is_nothing_to_try_on() -> None:
    trainer = InnerTrainer(path_model(), CONFIG, TrainingSettings())
    assert trainer.bends(0, [whole(random_way(trainer.model, 1.0))], on) == []


def test_both_ways_bend_alike_and_twice_as_far_four_times_as_much() -> None:
    trainer = trained(3)
    way = random_way(trainer.model, 0.3)
    nothing, there, back, twice = trainer.bends(0, [[], whole(way), whole(-way), whole(2 * way)], on)
    assert nothing.bend == nothing.error == 0.0
    assert there.bend == pytest.approx(back.bend, rel=1e-3)  # fp32 rounds a way and its opposite apart
    assert twice.bend == pytest.approx(4 * there.bend, rel=0.15)
    assert 0 < there.error < there.bend


def test_pieces_of_a_way_are_what_the_whole_is() -> None:
    trainer = trained(3)
    way = random_way(trainer.model, 0.3)
    pieces = [(slice(500, len(way)), way[500:]), (slice(0, 500), way[:500])]
    one, other = trainer.bends(0, [whole(way), pieces], on)
    assert (one.bend, one.error) == (other.bend, other.error)
    assert one.length == pytest.approx(0.3) == pytest.approx(other.length)


def test_one_sequence_has_no_error_that_could_be_known() -> None:
    trainer = trained(3)
    (found,) = bends(trainer.model, 0, [whole(random_way(trainer.model, 0.3))], count_upwards(0)[:1], on)
    assert math.isinf(found.error)


def test_a_contribution_is_decoded_once_for_a_trial() -> None:
    class Decoded:
        times = 0

        def __iter__(self) -> Iterator[tuple[slice, Tensor]]:
            self.times += 1
            yield from whole(way)

    trainer, contribution = trained(3), Decoded()
    way = random_way(trainer.model, 0.3)
    (found,) = trainer.bends(0, [contribution], on)
    assert contribution.times == 1
    assert found.length == pytest.approx(0.3)


def test_a_step_of_training_bends_less_than_noise_of_its_length_and_than_one_under_noise() -> None:
    trainer = trained(200)
    before = trainer.model.vector(0)
    trainer.train((count_upwards(step) for step in range(200, 220)), 20)
    step = before - trainer.model.vector(0)
    length = float(step.norm())
    noise = random_way(trainer.model, length)
    under_noise = step + 2 * noise
    under_noise *= length / float(under_noise.norm())
    honest, hidden, nothing_else = trainer.bends(0, [whole(step), whole(under_noise), whole(noise)], on)
    assert honest.bend < 0.4 * nothing_else.bend
    assert hidden.bend > 0.6 * nothing_else.bend
