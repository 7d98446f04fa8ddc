"""Several devices on one path: the losses of one, and nothing lost with a helper that ends."""

import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from multiprocessing.connection import Connection
from pathlib import Path

import psutil
import pytest
import torch
from torch import Tensor

from dipaco_swarm.events.helping import HelperFailed, HelperLost, HelpersAtWork
from dipaco_swarm.training import together
from dipaco_swarm.training.gradients import Gradients, Passes
from dipaco_swarm.training.helper import HelperSettings, Place, help_out
from dipaco_swarm.training.inner import InnerTrainer, StepReport, TrainingSettings
from dipaco_swarm.training.modules import PathModel
from dipaco_swarm.training.together import Start, Together, start_process
from tests.training.test_inner import CONFIG, LEVELS, TINY, VOCABULARY, batches, path_model

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}
SETTINGS = HelperSettings(TINY, VOCABULARY, LEVELS, Passes(1), threads=1)


class Thread:
    """A helper beside the test."""

    pid = None

    def __init__(self, pipe: Connection, settings: HelperSettings, place: Place) -> None:
        self._thread = threading.Thread(target=help_out, args=(pipe, settings, place), daemon=True)
        self._thread.start()
        self.is_alive, self.join = self._thread.is_alive, self._thread.join

    def kill(self) -> None:
        raise AssertionError("a helper did not end by itself")


class Trained:
    """A model that is trained on several devices, or on one."""

    def __init__(self, helpers: int, start: Start = Thread, settings: HelperSettings = SETTINGS) -> None:
        self.model: PathModel = path_model()
        ours = Gradients(self.model, Passes(1))
        self.all = Together(self.model, ours, settings, ["cpu"] * helpers, start)
        self.trainer = InnerTrainer(self.model, CONFIG, TrainingSettings(threads=1), self.all if helpers else ours)
        self.reports: list[StepReport] = []
        self.batches: Iterator[Tensor] = batches()

    def train(self, steps: int) -> list[float]:
        """The losses of these steps."""
        before = len(self.reports)
        self.trainer.train(self.batches, steps, on_step=self.reports.append)
        return [report.loss for report in self.reports[before:]]


def assert_alike(one: Trained, other: Trained, losses: list[float], of_other: list[float]) -> None:
    assert losses == pytest.approx(of_other, rel=1e-5)
    for level in range(one.model.num_levels):
        torch.testing.assert_close(one.model.vector(level), other.model.vector(level), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("helpers", [1, 2, 5], ids=["2 devices", "3 devices", "more devices than sequences"])
def test_losses_are_those_of_one_device(helpers: int) -> None:
    alone, several = Trained(0), Trained(helpers)
    with closing(several.trainer):
        assert several.all.await_helpers(20)
        assert len(several.all.helpers) == helpers
        assert_alike(several, alone, several.train(6), alone.train(6))
        for trained in (several, alone):  # as after an outer round
            trained.model.load(0, trained.model.vector(0) * 0.5)
        assert_alike(several, alone, several.train(2), alone.train(2))


def test_a_step_that_is_given_up_changes_nothing_and_is_taken_later() -> None:
    alone, several = Trained(0), Trained(1)
    asked = iter([False, True])  # before the step, and after our first forward pass
    with closing(several.trainer):
        assert several.all.await_helpers(20)
        report = several.trainer.train(several.batches, 1, stop=lambda: next(asked, True))
        assert report.steps == 0
        assert all(parameter.grad is None for parameter in several.model.network.parameters())
        assert_alike(several, alone, several.train(3), alone.train(3))


def test_who_cannot_help_says_why_and_is_not_asked_again(caplog: pytest.LogCaptureFixture) -> None:
    def no_device(pipe: Connection, settings: HelperSettings, place: Place) -> Thread:
        return Thread(pipe, settings, Place("no such device", place.rank, place.ranks, place.meeting))

    several = Trained(1, no_device)
    with closing(several.trainer), caplog.at_level(logging.INFO):
        assert not several.all.await_helpers(0.5)
        assert several.train(2) == Trained(0).train(2)
    (said,) = (record.msg for record in caplog.records)
    assert isinstance(said, HelperFailed)
    assert "no such device" in said.line


@pytest.mark.long
@pytest.mark.timeout(180)
def test_a_helper_that_is_killed_takes_nothing_along_and_starts_again(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(together, "AGAIN_SECONDS", 0.0)
    alone, several = Trained(0), Trained(1, start_process)
    with closing(several.trainer), caplog.at_level(logging.INFO):
        assert several.all.await_helpers(60)
        (first,) = several.all.helpers
        assert first is not None
        assert_alike(several, alone, several.train(3), alone.train(3))
        os.kill(first, signal.SIGKILL)
        assert_alike(several, alone, several.train(3), alone.train(3))
        assert several.all.await_helpers(60)
        assert several.all.helpers != (first,)
        assert_alike(several, alone, several.train(3), alone.train(3))
    said = [type(record.msg) for record in caplog.records]
    assert said == [HelpersAtWork, HelperLost, HelpersAtWork]


PEER = """
import time
from tests.training.test_together import Trained
from dipaco_swarm.training.together import start_process

if __name__ == "__main__":
    peer = Trained(1, start_process)
    assert peer.all.await_helpers(60)
    print(*peer.all.helpers, flush=True)
    while True:
        peer.train(1)
"""


@pytest.mark.long
@pytest.mark.timeout(180)
def test_a_helper_ends_calmly_when_the_peer_is_killed(tmp_path: Path) -> None:
    (tmp_path / "peer.py").write_text(PEER)
    command = [sys.executable, str(tmp_path / "peer.py")]
    with subprocess.Popen(
        command, cwd=ROOT, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as peer:
        assert peer.stdout is not None
        helper = psutil.Process(int(peer.stdout.readline()))
        peer.kill()
        helper.wait(20)
        _, complaints = peer.communicate()  # the helper has this pipe as well: it is over when both have ended
    assert complaints == ""
