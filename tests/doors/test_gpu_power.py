"""A GPU that may take less power while a peer trains on it. Its driver is played."""

import pytest

from dipaco_swarm.cli.words import gpu_power_choice
from dipaco_swarm.errors import UsageError
from dipaco_swarm.machine.gpu_power import LimitError, limited
from dipaco_swarm.peer.training_workbench import gpus_of


class Nvml:
    """The module pynvml with a GPU whose power can be limited, 100 to 300 watts."""

    class NVMLError(Exception):
        pass

    class NVMLError_NoPermission(NVMLError):  # as it is called there
        pass

    def __init__(self, allowed: bool = True) -> None:
        self.limits = {"GPU-a": 250_000, "GPU-b": 300_000}
        self.open = 0
        self._allowed = allowed

    def nvmlInit(self) -> None:
        self.open += 1

    def nvmlShutdown(self) -> None:
        self.open -= 1

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        if uuid not in self.limits:
            raise self.NVMLError("not found")
        return uuid

    def nvmlDeviceGetPowerManagementLimitConstraints(self, gpu: str) -> tuple[int, int]:
        return 100_000, 300_000

    def nvmlDeviceGetPowerManagementLimit(self, gpu: str) -> int:
        return self.limits[gpu]

    def nvmlDeviceSetPowerManagementLimit(self, gpu: str, milliwatts: int) -> None:
        if not self._allowed:
            raise self.NVMLError_NoPermission("no")
        self.limits[gpu] = milliwatts


def test_gpus_take_less_power_meanwhile_and_as_much_as_before_afterwards() -> None:
    nvml = Nvml()
    with limited(150, ["GPU-a", "GPU-b"], nvml):
        assert nvml.limits == {"GPU-a": 150_000, "GPU-b": 150_000}
    assert nvml.limits == {"GPU-a": 250_000, "GPU-b": 300_000}
    assert not nvml.open


@pytest.mark.parametrize(
    ("watts", "gpus", "allowed", "words"),
    [
        (99, ["GPU-a"], True, "100 to 300 watts"),
        (301, ["GPU-a"], True, "100 to 300 watts"),
        (150, ["GPU-a"], False, "sudo nvidia-smi -pl 150"),
        (150, ["GPU-a", "GPU-c"], True, "not found"),
    ],
)
def test_power_that_cannot_be_limited_is_said_and_nothing_is_left_changed(
    watts: int, gpus: list[str], allowed: bool, words: str
) -> None:
    nvml = Nvml(allowed)
    with pytest.raises(LimitError, match=words), limited(watts, gpus, nvml):
        pass
    assert nvml.limits["GPU-a"] == 250_000
    assert not nvml.open


def test_who_limits_a_gpu_needs_one(monkeypatch: pytest.MonkeyPatch) -> None:
    assert gpu_power_choice(None, ["cpu"]) is None
    with pytest.raises(UsageError, match="no GPU"):
        gpu_power_choice(150, ["cpu"])
    monkeypatch.setattr("dipaco_swarm.cli.words.find_spec", lambda name: None)
    with pytest.raises(UsageError, match="nvidia-ml-py"):
        gpu_power_choice(150, ["cuda"])
    monkeypatch.setattr("dipaco_swarm.cli.words.find_spec", lambda name: "here")
    assert gpu_power_choice(150, ["cuda"]) == 150
    with pytest.raises(UsageError, match="no GPU"):
        gpus_of(["cpu"])
