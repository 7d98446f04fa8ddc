"""What a machine does besides this program: processor, GPU, battery, its line. Each source is a small protocol."""

import logging
import os
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from dipaco_swarm.machine.clock import SYSTEM_CLOCK, Clock

log = logging.getLogger(__name__)


class Share(Protocol):
    """How much of something others use."""

    def look(self) -> float:
        """Since the last look, 0 to 1; 0 where nobody can say."""
        ...


class Battery(Protocol):
    def is_discharging(self) -> bool: ...


class Line(Protocol):
    def is_metered(self) -> bool: ...


@dataclass(frozen=True)
class Times:
    """Seconds of processors since the system began."""

    total: float
    normal: float
    """That programs of normal priority and the system have used."""
    ours: Mapping[int, float]
    """Of `normal`, what each process of this program has used, by its number."""


class CpuOfOthers:
    """`Share` of all cores. Programs of low priority do not count: they give way to whoever it is, as we do."""

    def __init__(self, read: Callable[[], Times] | None = None) -> None:
        self._read = read or _times
        self._before: Times | None = None

    def look(self) -> float:
        now, before = self._read(), self._before
        self._before = now
        if before is None or now.total <= before.total:
            return 0.0
        ours = sum(used - before.ours.get(process, 0.0) for process, used in now.ours.items())
        others = now.normal - before.normal - ours
        return min(1.0, max(0.0, others / (now.total - before.total)))


def _times() -> Times:
    import psutil

    system: Any = psutil.cpu_times()
    idle = system.idle + getattr(system, "iowait", 0.0)
    nice = getattr(system, "nice", 0.0)
    # what guests use is in `user` already
    total = sum(system) - getattr(system, "guest", 0.0) - getattr(system, "guest_nice", 0.0)
    ours: dict[int, float] = {}
    me = psutil.Process()
    for process in (me, *me.children(recursive=True)):
        try:
            used: Any = process.cpu_times()
            ours[process.pid] = used.system + (0.0 if _is_nice(process) else used.user)
        except psutil.Error:
            log.debug("a child process has just ended")
    return Times(total, total - idle - nice, ours)


def _is_nice(process: Any) -> bool:
    return os.name == "posix" and process.nice() > 0


class GpuOfOthers:
    """`Share` of the first NVIDIA GPU, by what its driver says of processes. Needs the package nvidia-ml-py."""

    def __init__(self) -> None:
        """Raises ImportError without the package; a machine without a driver has a GPU that nobody uses."""
        import pynvml  # type: ignore[import-not-found,unused-ignore]

        self._nvml: Any = pynvml
        self._handle: Any = None
        self._seen = 0
        try:
            pynvml.nvmlInit()
            self._handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        except pynvml.NVMLError as error:
            log.debug("no GPU to look at: %s", error)

    def look(self) -> float:
        if self._handle is None:
            return 0.0
        try:
            samples = self._nvml.nvmlDeviceGetProcessUtilization(self._handle, self._seen)
        except self._nvml.NVMLError as error:  # nothing new, or nothing that this driver can say
            log.debug("the GPU says nothing of processes: %s", error)
            return 0.0
        self._seen = max((sample.timeStamp for sample in samples), default=self._seen)
        return share_of_others({sample.pid: sample.smUtil / 100 for sample in samples}, _our_processes())


def _our_processes() -> set[int]:
    import psutil

    me = psutil.Process()
    return {me.pid, *(child.pid for child in me.children(recursive=True))}


def share_of_others(used: dict[int, float], ours: set[int]) -> float:
    """`used`: of each process. In a container the driver's numbers are not ours: then nobody can say who is who."""
    if not ours & used.keys() and len(used) == 1:
        return 0.0  # it may be ourselves, under another number
    return min(1.0, sum(share for process, share in used.items() if process not in ours))


class BatteryOfThisMachine:
    """`Battery` by psutil; a machine that has none is never on it."""

    def is_discharging(self) -> bool:
        import psutil

        state: Any = psutil.sensors_battery() if hasattr(psutil, "sensors_battery") else None
        return state is not None and state.power_plugged is False


ASKING = "busctl"
"""The program that asks NetworkManager; it comes with systemd."""
ASK_SECONDS = 5.0
"""Another program is started for it, so not every second."""
METERED = ("1", "3")
"""NetworkManager's NMMetered: somebody has said so, or it has guessed it, as with a telephone's line."""


class LineOfThisMachine:
    """`Line` by what NetworkManager says of the connection in use; where there is none, nobody counts bytes."""

    def __init__(self, clock: Clock = SYSTEM_CLOCK, ask: Callable[[], str] | None = None) -> None:
        self._clock = clock
        self._ask = ask or _ask_network_manager
        self._asked: float | None = None
        self._said = False

    def is_metered(self) -> bool:
        now = self._clock.monotonic()
        if self._asked is None or now - self._asked >= ASK_SECONDS:
            self._asked, self._said = now, self._ask().split()[-1:] in [[each] for each in METERED]
        return self._said


def _ask_network_manager() -> str:
    """As busctl prints it: `u 4`; nothing where nobody answers."""
    name = "org.freedesktop.NetworkManager"
    command = [ASKING, "--system", "get-property", name, f"/{name.replace('.', '/')}", name, "Metered"]
    try:
        said = subprocess.run(command, capture_output=True, text=True, timeout=1, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        log.debug("NetworkManager does not say whether the line is metered: %s", error)
        return ""
    return said.stdout
