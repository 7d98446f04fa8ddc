"""bf16 on a CPU is chosen where it was measured to be faster, and nowhere else."""

import logging
from pathlib import Path
from typing import Literal

import pytest
import torch
from torch import Tensor

from dipaco_swarm.run.config import RunConfig
from dipaco_swarm.run.file import read_run_file
from dipaco_swarm.training import rounding
from dipaco_swarm.training.inner import TrainingSettings
from dipaco_swarm.training.rounding import bf16_is_faster, with_rounding

RUN = read_run_file(Path(__file__).parents[2] / "bootstrap" / "runs" / "demo-2x2.toml")


def config(width: int = 512, pacing: Literal["paced", "synchronous"] = "paced") -> RunConfig:
    model = RUN.model.model_copy(update={"hidden_size": width})
    return RUN.model_copy(update={"model": model, "rounds": RUN.rounds.model_copy(update={"pacing": pacing})})


def chosen(monkeypatch: pytest.MonkeyPatch, times: float, settings: TrainingSettings, run: RunConfig) -> bool | None:
    monkeypatch.setattr(rounding, "bf16_is_faster", lambda width, inner: times)
    return with_rounding(settings, run).autocast


def test_where_it_is_faster_it_is_taken_with_a_word(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        assert chosen(monkeypatch, 1.9, TrainingSettings(), config())
    assert "1.9 times as fast" in caplog.text


@pytest.mark.parametrize(
    ("times", "settings", "run"),
    [
        pytest.param(1.1, TrainingSettings(), config(), id="hardly faster"),
        pytest.param(1.9, TrainingSettings(), config(width=64), id="a narrow path"),
        pytest.param(1.9, TrainingSettings(), config(pacing="synchronous"), id="a run that promises equal bytes"),
        pytest.param(1.9, TrainingSettings("cuda"), config(), id="a GPU, which is asked otherwise"),
    ],
)
def test_elsewhere_nothing_is_chosen(
    times: float, settings: TrainingSettings, run: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert chosen(monkeypatch, times, settings, run) is None


def test_a_choice_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    assert chosen(monkeypatch, 1.9, TrainingSettings(autocast=False), config()) is False


def test_the_trial_measures_something() -> None:
    assert 0.001 < bf16_is_faster(64, 128) < 1000


@pytest.mark.parametrize(("slower", "tried"), [(0.5, {64, 512}), (1.5, {64, 512}), (3.0, {64})])
def test_a_cpu_without_bf16_is_tried_with_few_tokens_only(
    slower: float, tried: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    now, tokens = 0.0, set()

    def linear(states: Tensor, weight: Tensor) -> None:
        nonlocal now
        now += len(states) * (slower if torch.is_autocast_enabled("cpu") else 1.0)
        tokens.add(len(states))

    monkeypatch.setattr("torch.nn.functional.linear", linear)
    monkeypatch.setattr("time.perf_counter", lambda: now)
    assert bf16_is_faster(64, 128) == pytest.approx(1 / slower)
    assert tokens == tried
