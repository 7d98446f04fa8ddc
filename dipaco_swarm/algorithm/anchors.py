"""Which copies of a run's past are kept: a few, each about four times as old as the one before.

Anchors have numbers, one after the other. Kept are the newest one, the newest of every four that is not kept already,
the newest of every sixteen, and so on; where there is none such yet, the oldest.

>>> kept(range(1, 22), 3)
(16, 20, 21)
"""

from collections.abc import Iterable

FACTOR = 4


def kept(numbers: Iterable[int], most: int) -> tuple[int, ...]:
    """At most `most` of these numbers, rising."""
    left = sorted(numbers)
    chosen: list[int] = []
    for power in range(most):
        if not left:
            break
        best = max((number for number in left if number % FACTOR**power == 0), default=left[0])
        left.remove(best)
        chosen.append(best)
    return tuple(sorted(chosen))
