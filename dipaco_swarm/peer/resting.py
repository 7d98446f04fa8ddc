"""A machine that its owner uses as well: after each inner step it rests."""

from collections.abc import Callable
from dataclasses import replace

from dipaco_swarm.path_in_training import Trainer
from dipaco_swarm.training.inner import Batches, InnerState, StepReport, TrainReport


class RestingTrainer:
    """A `Trainer` that computes for a share of the time. How the steps come out does not change."""

    def __init__(self, trainer: Trainer, share: float, pause: Callable[[float], object]) -> None:
        """`share`: above 0 and at most 1. `pause`: waits for so many seconds, or until Ctrl+C."""
        self._trainer = trainer
        self._share = share
        self._pause = pause

    @property
    def steps_done(self) -> int:
        return self._trainer.steps_done

    def skip_to(self, steps: int) -> None:
        self._trainer.skip_to(steps)

    def train(
        self,
        batches: Batches,
        steps: int,
        *,
        stop: Callable[[], bool],
        on_step: Callable[[StepReport], None],
    ) -> TrainReport:
        """As `Trainer.train`. What is reported of a step has the rest in its seconds: others reckon with our speed."""

        def rest(step: StepReport) -> None:
            seconds = step.seconds / self._share
            self._pause(seconds - step.seconds)
            on_step(replace(step, seconds=seconds))

        return self._trainer.train(batches, steps, stop=stop, on_step=rest if self._share < 1 else on_step)

    def state(self, *, copy: bool = True) -> InnerState:
        return self._trainer.state(copy=copy)

    def load_state(self, state: InnerState) -> None:
        self._trainer.load_state(state)
