"""What a peer's time and its line are used for, from its first inner step to its end.

Trained is the time within inner steps (`StepReport.seconds`: forward, backward, the inner optimizer, and the rest after
a step that `--cpu-share` asks for). All else is not: waiting for a round or for other peers, outer steps, states that
come and are merged, checkpoints, reading documents of another stage. What comes before the first step does not count
for or against it, nor does a pause that the machine's owner wants, nor the time after the run has finished.
"""

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from dipaco_swarm.events.usage import Usage, Worked
from dipaco_swarm.machine.clock import Clock
from dipaco_swarm.swarm.traffic import Purpose, Traffic

LATELY_SECONDS = 900.0
"""The share of the time trained lately is of so long."""
RATE_SECONDS = 60.0
"""Bytes a second are the mean of so long: what goes in bursts should not flicker."""
MARK_SECONDS = 10.0


@dataclass(frozen=True)
class Lately:
    """How it has gone in the last minutes."""

    seconds: float
    """Of which `share` is: up to a quarter of an hour."""
    share: float
    """Of the time trained, 0 to 1."""
    sent_per_second: float
    """Bytes."""
    received_per_second: float


@dataclass(frozen=True)
class _Mark:
    """What there was at some time, by the monotonic clock."""

    at: float
    usage: Usage


class UsageMeter:
    """Counts seconds, tokens and bytes of one peer, also over several openings of its network."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._traffic: Callable[[], Traffic] = lambda: Traffic({}, {})
        self._before: tuple[Mapping[str, int], Mapping[str, int]] = {}, {}
        """Bytes sent and received by the nodes before this one, by purpose."""
        self._began: float | None = None
        self._ended: float | None = None
        self._away_since: float | None = None
        self._away = 0.0
        """Seconds that do not count, as the machine was needed otherwise."""
        self._trained = 0.0
        self._tokens = 0
        self._marks: deque[_Mark] = deque()
        """One every ten seconds of training, as long ago as `lately` looks back."""

    def joined(self, traffic: Callable[[], Traffic]) -> None:
        """The network is open, perhaps anew. `traffic`: what its streams have carried, also when it is closed."""
        self._before = self._line()
        self._traffic = traffic

    def trained(self, seconds: float, tokens: int) -> Usage | None:
        """An inner step has just ended that took so long; what there is so far, every ten seconds."""
        if self._began is None:
            self._began = self._clock.monotonic() - seconds
            self._marks.append(_Mark(self._began, Usage(0.0, 0.0, 0, *self._line())))
        self._trained += seconds
        self._tokens += tokens
        now = self._clock.monotonic()
        if now - self._marks[-1].at < MARK_SECONDS:
            return None
        self._marks.append(_Mark(now, self.so_far()))
        while len(self._marks) > 1 and now - self._marks[1].at >= LATELY_SECONDS:
            self._marks.popleft()
        return self._marks[-1].usage

    def finished(self) -> None:
        """The run has nothing to train any more: time that passes from now on does not count."""
        if self._ended is None:
            self._ended = self._clock.monotonic()

    def away(self, *, is_away: bool) -> None:
        """The machine is needed otherwise from now on, or no more; that time does not count."""
        now = self._clock.monotonic()
        if self._away_since is not None and self._began is not None:
            self._away += now - max(self._away_since, self._began)
        self._away_since = now if is_away else None

    def so_far(self) -> Usage:
        sent, received = self._line()
        return Usage(self._seconds(), self._trained, self._tokens, sent, received)

    def lately(self) -> Lately | None:
        """None before the first inner step."""
        if not self._marks:
            return None
        now, at, long_ago = self.so_far(), self._clock.monotonic(), self._marks[0].usage
        recent = next((mark for mark in reversed(self._marks) if at - mark.at >= RATE_SECONDS), self._marks[0])
        seconds, passed = now.seconds - long_ago.seconds, at - recent.at
        trained = now.trained_seconds - long_ago.trained_seconds
        return Lately(
            seconds,
            min(1.0, trained / seconds) if seconds else 0.0,
            _bytes_since(recent.usage.sent, now.sent) / passed if passed else 0.0,
            _bytes_since(recent.usage.received, now.received) / passed if passed else 0.0,
        )

    def farewell(self) -> Worked | None:
        """What there was in all; None when nothing was trained."""
        usage = self.so_far()
        if not usage.tokens:
            return None
        return Worked(usage.seconds, usage.trained_seconds, usage.tokens, usage.sent, usage.received)

    def _seconds(self) -> float:
        if self._began is None:
            return 0.0
        now = self._clock.monotonic() if self._ended is None else self._ended
        away = (
            self._away if self._away_since is None else self._away + max(0.0, now - max(self._away_since, self._began))
        )
        return now - self._began - away

    def _line(self) -> tuple[dict[str, int], dict[str, int]]:
        """Bytes sent and received by all nodes, by purpose."""
        traffic, (sent, received) = self._traffic(), self._before
        return _sum(sent, traffic.sent_for), _sum(received, traffic.received_for)


def _sum(before: Mapping[str, int], now: Mapping[Purpose, int]) -> dict[str, int]:
    total = dict(before)
    for purpose, count in now.items():
        total[str(purpose)] = before.get(purpose, 0) + count
    return total


def _bytes_since(before: Mapping[str, int], now: Mapping[str, int]) -> int:
    return sum(now.values()) - sum(before.values())
