"""How fast a run goes, by what was seen of it: tokens that counted, of how many trained, and when a stage ends."""

from dataclasses import dataclass

from dipaco_swarm.dashboard.views import SwarmStatus
from dipaco_swarm.page.history import History, tier_of

WINDOW_SECONDS = 3600.0
"""Looked back for rates at least..."""
SHORTEST = 3.0
"""... and for so many rounds, or a rate jumps with each of them."""
MARKS = 720
MARK_SECONDS = 5.0
"""From one to the next, while there are few."""
PAST_SECONDS = 2 * 86400.0
"""What was written down before this program was started is looked at for so long."""
MOST_STEP_SECONDS = 60.0
"""Nobody trained more at once, as far as we know: we may have slept."""


@dataclass(frozen=True)
class Pace:
    """How fast; None: nobody can say yet."""

    tokens: int
    """Counted since the run began, or since somebody looked."""
    counted_per_second: float | None = None
    goodput: float | None = None
    """Of the tokens trained, what counted; 0 to 1."""
    stage_seconds: float | None = None
    """Until the stage is done."""


@dataclass(frozen=True)
class _Mark:
    at: float
    """By the monotonic clock."""
    tokens: int
    said: float
    """Tokens trained so far, by what peers say of their speed."""
    version: float
    """Mean over the modules, each up to the stage's last."""
    lowest: int


class PaceMeter:
    """Sees a status now and then, and remembers as much of them as it needs."""

    def __init__(self, history: History) -> None:
        """`history`: what was counted before this program was started."""
        self._history = history
        numbers = history.remembered()
        self._stage = int(numbers.get("stage", -1))
        self._work = int(numbers.get("work", 0))
        """Of the stage, when it was seen last."""
        self._tokens = int(numbers.get("tokens", 0))
        self._said = 0.0
        self._seen: float | None = None
        """When, the last time."""
        self._marks: list[_Mark] = []

    def see(self, status: SwarmStatus, now: float, wall: float) -> Pace:
        """`now`: by the monotonic clock. `wall`: seconds since the epoch."""
        first = self._seen is None
        self._count(status)
        if first:
            self._recall(status.stage, now, wall)
        if self._seen is not None and not status.finished:  # a speed is said on when there is nothing left to train
            self._said += _trained_per_second(status) * max(0.0, min(MOST_STEP_SECONDS, now - self._seen))
        self._seen = now
        version, lowest = progress_of(status)
        mark = _Mark(now, self._tokens, self._said, version, lowest)
        self._note(mark)
        return self._pace(status, mark)

    def _note(self, mark: _Mark) -> None:
        if not self._marks or mark.at - self._marks[-1].at >= MARK_SECONDS:
            self._marks.append(mark)
        while len(self._marks) > 2 and self._is_enough(self._marks[1], mark):
            del self._marks[0]
        if len(self._marks) > MARKS:
            del self._marks[1:-1:2]

    def _is_enough(self, since: _Mark, mark: _Mark) -> bool:
        """Whether rates are known well enough from there."""
        return mark.at - since.at > WINDOW_SECONDS and mark.version - since.version >= 2 * SHORTEST

    def _recall(self, stage: int, now: float, wall: float) -> None:
        """Go on from what was written down of this stage."""
        tier, before = tier_of(PAST_SECONDS, MARKS * 4), None
        for sample in self._history.samples(wall - PAST_SECONDS, wall, tier):
            if sample.stage == stage:
                share = 1.0 if sample.trained is None else sample.trained
                self._said += sample.speed * share * (sample.at - before if before is not None else 0.0)
                before = sample.at
                at = now - (wall - sample.at)
                self._note(_Mark(at, sample.tokens, self._said, sample.version, int(sample.version)))
        if before is not None:
            self._seen = now - min(MOST_STEP_SECONDS, wall - before)

    def _count(self, status: SwarmStatus) -> None:
        work = work_of(status)
        if status.stage != self._stage:
            self._stage, self._work = status.stage, 0
            self._marks.clear()
            self._said = 0.0
        if work > self._work:
            self._tokens += work - self._work
            self._work = work
            for key, value in (("stage", self._stage), ("work", self._work), ("tokens", self._tokens)):
                self._history.remember(key, value)

    def _pace(self, status: SwarmStatus, now: _Mark) -> Pace:
        first = self._marks[0]
        rounds, seconds = now.version - first.version, now.at - first.at
        if rounds < SHORTEST or seconds <= 0:
            return Pace(self._tokens)
        counted, said = now.tokens - first.tokens, now.said - first.said
        left = None if status.target_version is None else max(0, status.target_version - now.lowest)
        return Pace(
            tokens=self._tokens,
            counted_per_second=counted / seconds,
            goodput=min(1.0, counted / said) if said else None,
            stage_seconds=None if left is None or status.finished else left * seconds / rounds,
        )


def _trained_per_second(status: SwarmStatus) -> float:
    """Tokens, of all peers: a speed is that of inner steps, and not all of the time goes into these."""
    told = [member for member in status.members if member.trained is not None]
    speed = sum(member.tokens_per_second for member in told)
    trained = sum(member.tokens_per_second * (member.trained or 0.0) for member in told)
    return status.tokens_per_second * (trained / speed if speed else 1.0)


def progress_of(status: SwarmStatus) -> tuple[float, int]:
    """Versions of the stage's modules: their mean, and the lowest."""
    versions = [min(module.version, status.target_version or module.version) for module in status.modules]
    return (sum(versions) / len(versions), min(versions)) if versions else (0.0, 0)


def work_of(status: SwarmStatus) -> int:
    """Tokens that have come into the modules of the stage: the mean over levels, each of which has every token once."""
    levels: dict[str, int] = {}
    for module in status.modules:
        level = module.name.partition("M")[0]
        levels[level] = levels.get(level, 0) + module.work
    return sum(levels.values()) // len(levels) if levels else 0
