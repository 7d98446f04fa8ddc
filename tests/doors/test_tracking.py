"""A run's curves go to an experiment tracker as well, and a tracker that fails harms nobody."""

import logging
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from dipaco_swarm.errors import UsageError
from dipaco_swarm.page.history import Sample
from dipaco_swarm.page.tracking import tracked, values_of
from dipaco_swarm.settings import Tracking


def sample(at: float, tokens: int = 1000) -> Sample:
    return Sample(at, 1, tokens, 2.5, 3, 4, 500.0, loss=4.25, paths=(4.5, None, 4.0))


class Trackio:
    """What is called of the package."""

    def __init__(self, broken: bool = False) -> None:
        self.begun: dict[str, Any] = {}
        self.told: list[tuple[dict[str, float], int]] = []
        self.finished = 0
        self.broken = broken

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        parts = {"init": self._init, "log": self._log, "finish": self._finish, "__spec__": object()}
        monkeypatch.setitem(sys.modules, "trackio", SimpleNamespace(**parts))

    def _init(self, **how: Any) -> None:
        self.begun = how

    def _log(self, values: dict[str, float], step: int) -> None:
        if self.broken:
            raise OSError("no room")
        self.told.append((values, step))

    def _finish(self) -> None:
        self.finished += 1


def test_values_have_names_and_what_nobody_can_say_is_left_out() -> None:
    told = {"stage": 1, "version": 2.5, "peers": 3, "staffed": 4, "speed": 500.0, "loss": 4.25}
    assert values_of(sample(0.0)) == {**told, "path/0/loss": 4.5, "path/2/loss": 4.0}


def test_it_is_told_every_half_minute_by_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    trackio = Trackio()
    trackio.install(monkeypatch)
    with tracked(Tracking.parse("trackio:my-runs"), "python-2x2") as on_sample:
        for second in range(0, 61, 5):
            on_sample(sample(1e9 + second, tokens=100 * second))
        assert trackio.finished == 0
    assert trackio.begun == {"project": "my-runs", "name": "python-2x2", "resume": "allow"}
    assert [step for _, step in trackio.told] == [0, 3000, 6000]
    assert trackio.told[0][0]["loss"] == 4.25
    assert trackio.finished == 1


def test_one_that_fails_is_said_once_and_left_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    Trackio(broken=True).install(monkeypatch)
    with tracked(Tracking("p"), "run") as on_sample, caplog.at_level(logging.WARNING):
        for minute in range(3):
            on_sample(sample(1e9 + 60 * minute))
    (said,) = caplog.messages
    assert said == "trackio takes no more lines, and is told none from now on: no room"


@pytest.mark.parametrize(
    "wrong", ["", "trackio", "trackio:", "wandb:x", "trackio:a b", "trackio:../x", "trackio:" + "a" * 81]
)
def test_other_trackers_are_refused(wrong: str) -> None:
    with pytest.raises(UsageError, match="--log"):
        Tracking.parse(wrong)


def test_one_that_is_not_installed_is_named_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dipaco_swarm.settings.find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"pip install '\.\[trackio\]'"):
        Tracking.parse("trackio:x")
    with tracked(None, "run") as on_sample:
        on_sample(sample(0.0))
