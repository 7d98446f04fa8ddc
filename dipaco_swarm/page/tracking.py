"""`serve --log trackio:PROJECT`: the run's curves also go to an experiment tracker, beside all others that are there.

trackio (Hugging Face) keeps them on this machine; `trackio show` draws them. It is called from the thread that looks at
the run, with what the page's history has as well, and never from the node's own.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

from dipaco_swarm.page.history import Sample
from dipaco_swarm.settings import Tracking

log = logging.getLogger(__name__)

PAUSE_SECONDS = 30.0
"""Between two lines of the tracker; the history has one every five seconds."""

OnSample = Callable[[Sample], None]


@contextmanager
def tracked(tracking: Tracking | None, run: str) -> Iterator[OnSample]:
    """What takes samples, until the block ends. A tracker that fails is said so once, and left alone."""
    if tracking is None:
        yield lambda sample: None
        return
    import trackio  # type: ignore[import-not-found,unused-ignore]

    tracker: Any = trackio
    tracker.init(project=tracking.project, name=run, resume="allow")
    try:
        yield _Tracker(tracker.log)
    finally:
        try:
            tracker.finish()
        except Exception as error:  # noqa: BLE001  # theirs may be any; the run has ended well all the same
            log.warning("trackio did not take the last lines: %s", error)


class _Tracker:
    """Tells a tracker now and then."""

    def __init__(self, tell: Callable[..., object]) -> None:
        self._tell = tell
        self._told = float("-inf")
        self._failed = False

    def __call__(self, sample: Sample) -> None:
        if self._failed or sample.at - self._told < PAUSE_SECONDS:
            return
        self._told = sample.at
        try:
            self._tell(values_of(sample), step=sample.tokens)
        except Exception as error:  # noqa: BLE001  # theirs may be any, and the run goes on
            self._failed = True
            log.warning("trackio takes no more lines, and is told none from now on: %s", error)


def values_of(sample: Sample) -> dict[str, float]:
    """What a tracker draws, by name; what nobody can say is left out. The step is the tokens that counted."""
    values: dict[str, float | None] = {
        name: value for name, value in asdict(sample).items() if name not in ("at", "paths", "tokens")
    }
    values |= {f"path/{index}/loss": loss for index, loss in enumerate(sample.paths)}
    return {name: value for name, value in values.items() if value is not None}
