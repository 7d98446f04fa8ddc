"""How much power GPUs may take while a program computes on them, where their driver lets it say so: NVIDIA's."""

import logging
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib import import_module
from typing import Any

log = logging.getLogger(__name__)


class LimitError(Exception):
    """The driver does not allow that limit."""


@contextmanager
def limited(watts: int, uuids: Sequence[str], nvml: Any = None) -> Iterator[None]:
    """Within the block these GPUs take no more than `watts` each; afterwards what they took before.

    `uuids`: as torch and NVIDIA name them. `nvml`: the module pynvml; None: the one that is installed. Raises
    LimitError where the driver does not allow it, with what to do.
    """
    nvml = nvml or import_module("pynvml")
    with ExitStack() as later:
        try:
            nvml.nvmlInit()
            later.callback(nvml.nvmlShutdown)
            for uuid in uuids:
                _limit(watts, nvml.nvmlDeviceGetHandleByUUID(uuid), nvml, later)
        except nvml.NVMLError as error:
            raise LimitError(_why(error, watts, nvml)) from None
        yield


def _limit(watts: int, gpu: Any, nvml: Any, later: ExitStack) -> None:
    """Raises NVMLError, and LimitError for watts that this GPU cannot be held to."""
    least, most = (milliwatts // 1000 for milliwatts in nvml.nvmlDeviceGetPowerManagementLimitConstraints(gpu))
    if not least <= watts <= most:
        raise LimitError(f"this GPU takes a limit of {least} to {most} watts")
    before = nvml.nvmlDeviceGetPowerManagementLimit(gpu)
    nvml.nvmlDeviceSetPowerManagementLimit(gpu, 1000 * watts)
    later.callback(_put_back, before, gpu, nvml)


def _put_back(milliwatts: int, gpu: Any, nvml: Any) -> None:
    try:
        nvml.nvmlDeviceSetPowerManagementLimit(gpu, milliwatts)
    except nvml.NVMLError as error:
        log.warning("the GPU's power limit could not be put back to %d watts: %s", milliwatts // 1000, error)


def _why(error: Exception, watts: int, nvml: Any) -> str:
    if isinstance(error, nvml.NVMLError_NoPermission):
        return f"the driver lets only root change it; say `sudo nvidia-smi -pl {watts}` once, and leave the option out"
    return f"the driver does not let it be changed ({error}); leave the option out"
