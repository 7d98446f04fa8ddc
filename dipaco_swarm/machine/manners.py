"""A machine that somebody else uses as well: whether a program may work now, and why not. A pure decision.

situation                                         decision           (the first row that fits)
----------------------------------------------------------------------------------------------
its owner has asked for a pause                   Pause: asked       until they say that it may go on
its owner has said all the same that it goes on   Run                until no row below fits any more
it is not one of its hours                        Pause: hours
the machine runs on its battery                   Pause: battery
bytes of its line are counted                     Pause: metered
others compute on the GPU                         Pause: gpu         until they have not for a while
others want the processor                         Pause: cpu         until they have not for a while
else                                              Run

Rows that were not asked for never fit. Where the facts come from: `others.py`; who looks, and when: `watching.py`.
"""

from dataclasses import dataclass
from datetime import time

from dipaco_swarm.events.pausing import Reason

CPU_BUSY, CPU_CALM = 0.4, 0.2
"""Shares of all cores that others use: from the one on we pause, below the other we may go on. Half of a machine of two
cores is one program that computes; what an editor or a film needs is less."""
GPU_BUSY, GPU_CALM = 0.2, 0.05
CALM_SECONDS = 20.0
"""So long others have used little before we go on: whoever compiles stops to read now and then."""


@dataclass(frozen=True)
class Hours:
    """Hours of the local day in which a program may work."""

    begin: time
    end: time
    """May be before `begin`: then they go over midnight."""

    @classmethod
    def parse(cls, text: str) -> "Hours":
        """`22-7`, `8:30-17:15`. Raises ValueError."""
        begin, dash, end = text.partition("-")
        hours = cls(_time_of(begin), _time_of(end)) if dash else None
        if hours is None or hours.begin == hours.end:
            raise ValueError(
                f"{text!r} are no hours; give two different times of the day like 22-7 or 8:30-17:15, "
                "or leave the option out: then the whole day is meant"
            )
        return hours

    def have(self, now: time) -> bool:
        if self.begin < self.end:
            return self.begin <= now < self.end
        return now >= self.begin or now < self.end

    def __str__(self) -> str:
        return f"{self.begin:%H:%M}-{self.end:%H:%M}"


@dataclass(frozen=True)
class Pause:
    """Work rests."""

    reason: Reason
    words: str
    """For people, and what ends it."""

    def __str__(self) -> str:
        return self.words


@dataclass(frozen=True)
class Run:
    """Work goes on."""


Decision = Run | Pause
RUN = Run()


@dataclass(frozen=True)
class Situation:
    """All that it depends on."""

    asked: bool = False
    insists: bool = False
    """Whether the owner has said, in this pause, that it goes on all the same."""
    hours: Hours | None = None
    now: time = time(12)
    """Of the local day."""
    on_battery: bool = False
    on_metered: bool = False
    """Whether somebody pays for what its line carries."""
    cpu: float = 0.0
    """Share of all cores that programs of normal priority use, ours excepted, 0 to 1."""
    gpu: float = 0.0
    """The same of the GPU, of whatever priority."""
    paused_for: Reason | None = None
    calm_seconds: float = 0.0
    """For so long neither has been above what counts as calm."""


def decide(now: Situation) -> Decision:
    """Whether to work; the table at the top of this file."""
    if now.asked:
        return Pause("asked", "paused, as you asked")
    reason = _reason(now)
    return RUN if reason is None or now.insists else Pause(reason, _WORDS[reason].format(hours=now.hours))


def would_pause(now: Situation) -> bool:
    """Whether there is something that its owner could insist against."""
    return _reason(now) is not None


_WORDS: dict[Reason, str] = {
    "hours": "paused outside of {hours}",
    "battery": "paused while on battery",
    "metered": "paused while on a metered line",
    "gpu": "paused while others use the GPU",
    "cpu": "paused while others use the processor",
}


def _reason(now: Situation) -> Reason | None:
    if now.hours is not None and not now.hours.have(now.now):
        return "hours"
    if now.on_battery:
        return "battery"
    if now.on_metered:
        return "metered"
    still = now.calm_seconds < CALM_SECONDS
    if now.gpu >= GPU_BUSY or (now.paused_for == "gpu" and still):
        return "gpu"
    if now.cpu >= CPU_BUSY or (now.paused_for == "cpu" and still):
        return "cpu"
    return None


def is_calm(cpu: float, gpu: float) -> bool:
    return cpu < CPU_CALM and gpu < GPU_CALM


def _time_of(text: str) -> time:
    """`7`, `07`, `7:30`; 24 is midnight. Raises ValueError."""
    hour, _, minute = text.strip().partition(":")
    if not (hour.isascii() and hour.isdecimal() and ((minute.isascii() and minute.isdecimal()) or not minute)):
        raise ValueError(f"{text!r} is no time of the day; give an hour, or 8:30")
    if int(hour) == 24 and not int(minute or 0):
        return time(0)
    if int(hour) > 23 or int(minute or 0) > 59:
        raise ValueError(f"{text!r} is no time of the day; give 0 to 24, or 8:30")
    return time(int(hour), int(minute or 0))
