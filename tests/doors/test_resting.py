"""`--cpu-share`: a machine that is used by its owner as well."""

from collections.abc import Callable, Iterable, Sequence

import pytest
import torch
from torch import Tensor

from dipaco_swarm.algorithm.doubts import Trial
from dipaco_swarm.peer.resting import RestingTrainer
from dipaco_swarm.training.inner import Batches, InnerState, StepReport, TrainReport


class Steps:
    """A trainer whose steps take two seconds each."""

    steps_done = 7
    decay_of_step = 1e-4

    def skip_to(self, steps: int) -> None:
        self.steps_done = steps

    def train(
        self,
        batches: Batches,
        steps: int,
        *,
        stop: Callable[[], bool],
        on_step: Callable[[StepReport], None],
    ) -> TrainReport:
        for step in range(1, steps + 1):
            if stop():
                break
            on_step(StepReport(step, 1.0, 1e-3, 100, 2.0))
        return TrainReport(steps, 100 * steps, 1.0, 2.0 * steps)

    def bends(
        self, level: int, ways: Sequence[Iterable[tuple[slice, Tensor]]], stop: Callable[[], bool]
    ) -> list[Trial]:
        return [] if stop() else [Trial(float(level), 0.0, 1.0)]

    def state(self, *, copy: bool = True) -> InnerState:
        return InnerState(self.steps_done, {})

    def load_state(self, state: InnerState) -> None:
        self.steps_done = state.steps_done


@pytest.mark.parametrize(("share", "rests"), [(1.0, []), (0.5, [2.0, 2.0, 2.0]), (0.2, [8.0, 8.0, 8.0])])
def test_it_rests_after_each_step_and_says_how_fast_it_is(share: float, rests: list[float]) -> None:
    rested: list[float] = []
    seen: list[StepReport] = []
    trainer = RestingTrainer(Steps(), share, rested.append)
    trainer.train(iter([torch.zeros(1)]), 3, stop=lambda: False, on_step=seen.append)
    assert rested == pytest.approx(rests)
    assert [step.tokens / step.seconds for step in seen] == pytest.approx([50 * share] * 3)


def test_ctrl_c_ends_the_rest_and_the_round() -> None:
    asked = False

    def pause(_: float) -> None:
        nonlocal asked
        asked = True

    taken: list[StepReport] = []
    RestingTrainer(Steps(), 0.1, pause).train(iter([]), 3, stop=lambda: asked, on_step=taken.append)
    assert len(taken) == 1


def test_the_optimizer_behind_it_is_the_same() -> None:
    steps = Steps()
    trainer = RestingTrainer(steps, 0.5, lambda _: None)
    trainer.skip_to(9)
    assert trainer.steps_done == steps.steps_done == trainer.state().steps_done == 9


def test_no_step_is_taken_while_the_machine_is_needed_otherwise() -> None:
    taken: list[StepReport] = []
    paused = [False, False, True, True]
    trainer = RestingTrainer(Steps(), 1.0, lambda _: None, lambda: paused.pop(0))
    trainer.train(iter([]), 3, stop=lambda: False, on_step=taken.append)
    trainer.train(iter([]), 3, stop=lambda: False, on_step=taken.append)
    assert len(taken) == 2


def test_nothing_is_tried_while_the_machine_is_needed_otherwise_or_once_we_leave() -> None:
    asked, paused = False, False
    trainer = RestingTrainer(Steps(), 1.0, lambda _: None, lambda: paused)
    assert [trial.bend for trial in trainer.bends(3, [], lambda: asked)] == [3.0]
    asked = True
    assert trainer.bends(3, [], lambda: asked) == []
    asked, paused = False, True
    assert trainer.bends(3, [], lambda: asked) == []
