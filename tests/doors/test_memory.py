"""What becomes of objects that hold each other, in a program with much loaded."""

import gc
from collections import deque
from collections.abc import Iterator

import pytest

from dipaco_swarm.machine.memory import keep_what_is_loaded


class Ring:
    """Holds itself, as the transport of a closed connection does."""

    alive = 0

    def __init__(self) -> None:
        self.itself = self
        Ring.alive += 1

    def __del__(self) -> None:
        Ring.alive -= 1


@pytest.fixture
def much_loaded() -> Iterator[None]:
    loaded = [[] for _ in range(400_000)]  # type: ignore[var-annotated]
    gc.collect()
    thresholds = gc.get_threshold()
    yield
    gc.set_threshold(*thresholds)
    gc.unfreeze()
    loaded.clear()


def most_alive() -> int:
    """Of rings that are in use long enough to count as old."""
    most = 0
    in_use: deque[Ring] = deque(maxlen=5_000)
    for _ in range(150_000):
        in_use.append(Ring())
        most = max(most, Ring.alive)
    return most


@pytest.mark.usefixtures("much_loaded")
def test_what_is_loaded_does_not_put_off_the_collector() -> None:
    before = most_alive()
    keep_what_is_loaded()
    after = most_alive()
    assert before > 50_000
    assert after < 30_000
