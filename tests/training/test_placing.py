"""Where a bootstrap node reckons between two stages."""

import logging

import pytest
import torch

from dipaco_swarm.training.placing import where_fast


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)


def test_without_a_gpu_the_cpu_works(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert where_fast(lambda device: device) == "cpu"


@pytest.mark.usefixtures("gpu")
def test_a_gpu_works_where_there_is_one() -> None:
    assert where_fast(lambda device: device) == "cuda"


@pytest.mark.usefixtures("gpu")
def test_the_cpu_begins_anew_what_a_full_gpu_could_not_finish(caplog: pytest.LogCaptureFixture) -> None:
    asked = list[str]()

    def work(device: str) -> int:
        asked.append(device)
        if device == "cuda":
            raise torch.cuda.OutOfMemoryError("CUDA out of memory")
        return 7

    with caplog.at_level(logging.WARNING):
        assert where_fast(work) == 7
    assert asked == ["cuda", "cpu"]
    assert "too little memory" in caplog.text


@pytest.mark.usefixtures("gpu")
def test_any_other_failure_is_the_works_own() -> None:
    def work(device: str) -> int:
        raise ValueError(device)

    with pytest.raises(ValueError, match="cuda"):
        where_fast(work)
