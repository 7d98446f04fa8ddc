"""Sets of whole numbers as ranges: which of a peer's tokens are where. Tokens are numbered as they are trained."""

from collections.abc import Iterable

Range = tuple[int, int]
"""From the first to before the second."""


class Ranges:
    """A set of numbers that are mostly neighbours. Never changed once made."""

    def __init__(self, ranges: Iterable[Range] = ()) -> None:
        merged: list[Range] = []
        for start, stop in sorted(ranges):
            if start >= stop:
                continue
            if merged and start <= merged[-1][1]:
                merged[-1] = merged[-1][0], max(stop, merged[-1][1])
            else:
                merged.append((start, stop))
        self.ranges = tuple(merged)

    def __len__(self) -> int:
        return sum(stop - start for start, stop in self.ranges)

    def __or__(self, other: "Ranges") -> "Ranges":
        return Ranges((*self.ranges, *other.ranges))

    def __and__(self, other: "Ranges") -> "Ranges":
        return Ranges((max(a, c), min(b, d)) for a, b in self.ranges for c, d in other.ranges)

    def __sub__(self, other: "Ranges") -> "Ranges":
        left = list(self.ranges)
        for start, stop in other.ranges:
            left = [part for a, b in left for part in ((a, min(b, start)), (max(a, stop), b)) if part[0] < part[1]]
        return Ranges(left)
