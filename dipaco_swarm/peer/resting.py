"""A machine that its owner uses as well: after each inner step it rests, or takes none for now."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from dipaco_swarm.algorithm.doubts import Place, Trial
from dipaco_swarm.path_in_training import Trainer
from dipaco_swarm.training.inner import Batches, InnerState, StepReport, TrainReport


class RestingTrainer:
    """A `Trainer` that computes for a share of the time. How the steps come out does not change."""

    def __init__(
        self,
        trainer: Trainer,
        share: float,
        pause: Callable[[float], object],
        paused: Callable[[], bool] = lambda: False,
    ) -> None:
        """`share`: above 0 and at most 1. `pause`: waits for so many seconds, or until Ctrl+C. `paused`: whether no
        step may be taken now; one that has begun is given up and has changed nothing."""
        self._trainer = trainer
        self._share = share
        self._pause = pause
        self._paused = paused

    @property
    def steps_done(self) -> int:
        return self._trainer.steps_done

    @property
    def decay_of_step(self) -> float:
        return self._trainer.decay_of_step

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

        def is_over() -> bool:
            return stop() or self._paused()

        return self._trainer.train(batches, steps, stop=is_over, on_step=rest if self._share < 1 else on_step)

    def bends(self, level: int, ways: Sequence[Iterable[Place]], stop: Callable[[], bool]) -> list[Trial]:
        return self._trainer.bends(level, ways, lambda: stop() or self._paused())

    def state(self, *, copy: bool = True) -> InnerState:
        return self._trainer.state(copy=copy)

    def load_state(self, state: InnerState) -> None:
        self._trainer.load_state(state)
